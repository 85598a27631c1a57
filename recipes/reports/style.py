"""The style of all pictures: colours and matplotlib's settings, as plain data."""

from __future__ import annotations

from typing import Any

INK, MUTED, GRID, SHADE, PAPER = "#1f2328", "#59636e", "#d8dee4", "#eef1f4", "#ffffff"

# Okabe and Ito's colours, distinct with the usual kinds of colour blindness; their yellow, faint on white, replaced.
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5c00")
DASHES = ("-", (0, (5, 2)), (0, (1, 1.4)))

# The same colours on a dark page, light enough to stand out from it.
DARK = {
    INK: "#e6edf3",
    MUTED: "#9198a1",
    GRID: "#30363d",
    SHADE: "#1c2229",
    PAPER: "#0d1117",
    "#0072b2": "#58a6e8",
    "#d55e00": "#ff8a3d",
    "#009e73": "#2fc79a",
    "#cc79a7": "#e29cc4",
    "#e69f00": "#f0b83c",
    "#56b4e9": "#9ad7f7",
    "#7a5c00": "#c3a24a",
}

MATPLOTLIB: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.0,
    "text.color": INK,
    "text.parse_math": False,  # a title from a file must not be read as mathematics
    "svg.fonttype": "none",
    "svg.hashsalt": "kilobatch",
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlecolor": INK,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "butt",
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "figure.facecolor": PAPER,
    "axes.facecolor": "none",
}

_VARIABLES = "".join(f"--k{colour[1:]}:{colour};" for colour in DARK)
_DARK_VARIABLES = "".join(f"--k{colour[1:]}:{dark};" for colour, dark in DARK.items())

PAGE = f"""
:root {{ color-scheme: light dark; {_VARIABLES} --good: #1a7f37; --bad: #cf222e; --wait: #9a6700;
  --ink: var(--k{INK[1:]}); --muted: var(--k{MUTED[1:]}); --line: var(--k{GRID[1:]});
  --shade: var(--k{SHADE[1:]}); --paper: var(--k{PAPER[1:]}); }}
@media (prefers-color-scheme: dark) {{
  :root {{ {_DARK_VARIABLES} --good: #3fb950; --bad: #f85149; --wait: #d29922; }} }}
* {{ box-sizing: border-box; }}
body {{ margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 68rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }}
h1 {{ font-size: 1.75rem; line-height: 1.2; margin: 0 0 .25rem; overflow-wrap: anywhere; }}
h2 {{ font-size: 1.2rem; margin: 2.5rem 0 .75rem; padding-bottom: .3rem; border-bottom: 1px solid var(--line); }}
h3 {{ font-size: 1rem; margin: 1.5rem 0 .5rem; }}
p {{ margin: .5rem 0; max-width: 48rem; overflow-wrap: anywhere; }}
.muted, figcaption {{ color: var(--muted); font-size: .875rem; }}
.verdict {{ font-size: 1.1rem; margin: 1rem 0; }}
.badge {{ display: inline-block; padding: 0 .6rem; margin-right: .5rem; border-radius: 1rem; color: var(--paper);
  font-size: .875rem; font-weight: 600; line-height: 1.6; background: var(--wait); }}
.badge.success {{ background: var(--good); }}
.badge.failed {{ background: var(--bad); }}
.tiles {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .75rem;
  margin: 1.25rem 0; }}
.tile {{ padding: .7rem .9rem; border-radius: .5rem; background: var(--shade); }}
.tile b {{ display: block; font-size: 1.4rem; line-height: 1.25; font-variant-numeric: tabular-nums; }}
.tile span {{ color: var(--muted); font-size: .8rem; display: block; }}
.pictures {{ display: grid; gap: 1.5rem; grid-template-columns: repeat(auto-fit, minmax(min(26rem, 100%), 1fr)); }}
figure {{ margin: 0; min-width: 0; }}
.pictures > figure:only-child {{ max-width: 36rem; }}
figcaption {{ padding-left: .4rem; }}
figure svg {{ display: block; width: 100%; height: auto; fill: var(--ink); }}
svg * {{ stroke-linejoin: round; stroke-linecap: butt; }}
svg text {{ font-family: inherit !important; fill: var(--ink); }}
#controls {{ display: flex; flex-wrap: wrap; align-items: center; gap: .4rem 1.1rem; margin: 1rem 0 .75rem;
  font-size: .875rem; }}
#controls label {{ display: inline-flex; align-items: center; gap: .35rem; margin-right: .6rem; }}
[hidden], #axes:empty {{ display: none !important; }}
:is(#controls, .head) :is(select, button) {{ font: inherit; padding: .1rem .5rem; }}
#smoothing {{ width: 7rem; }}
.head {{ display: flex; flex-wrap: wrap; align-items: baseline; justify-content: space-between; gap: 0 1rem; }}
.head h3 {{ margin: 0 0 .25rem; font-size: .95rem; }}
.head span {{ font-size: .8125rem; color: var(--muted); white-space: nowrap; }}
.head label {{ margin-left: .6rem; }}
.head input {{ vertical-align: middle; margin: 0 .25rem 0 0; }}
.u-legend {{ text-align: left !important; font-size: .8125rem !important; margin: 0 !important; }}
.u-legend tr {{ border: 0; opacity: 1 !important; margin-right: 1rem !important; }}
.u-legend :is(th, td) {{ border: 0; padding: .1rem .25rem .1rem 0 !important; color: var(--ink); }}
.u-legend th {{ font-weight: 400 !important; }}
.u-legend td {{ min-width: 3rem; font-weight: 600; }}
.uplot .raw {{ display: none; }}
.u-legend {{ max-height: 12rem; overflow-y: auto; }}
.u-legend .line .u-marker {{ width: 1.6rem !important; height: 0 !important; border-width: 3px 0 0 !important; }}
.u-legend th:focus-visible {{ outline: 2px solid var(--ink); }}
tr.on td {{ background: var(--shade); }}
#picked:empty {{ display: none; }}
#picked {{ position: sticky; bottom: 0; padding: .4rem 0; background: var(--paper); font-size: .875rem; }}
.u-select {{ background: var(--muted) !important; opacity: .25; }}
.scroll {{ overflow-x: auto; margin: .5rem 0; }}
table {{ border-collapse: collapse; width: 100%; font-size: .875rem; font-variant-numeric: tabular-nums; }}
th, td {{ text-align: left; vertical-align: top; padding: .35rem .9rem .35rem 0;
  border-bottom: 1px solid var(--line); }}
th {{ color: var(--muted); font-weight: 600; vertical-align: bottom; }}
table.numbers :is(td, th):not(:first-child) {{ text-align: right; padding: .35rem 0 .35rem 1rem; }}
table.numbers :is(td, th) {{ white-space: nowrap; }}
table.trials :is(td, th):not(:last-child) {{ white-space: nowrap; }}
table.trials td:last-child:not(:empty) {{ min-width: 22rem; }}
table.values td, table.differences td {{ overflow-wrap: anywhere; min-width: 7rem; }}
table.values td {{ width: 33%; }}
table.confusion {{ width: auto; }}
table.confusion :is(td, th) {{ text-align: right; padding: .25rem .5rem; min-width: 2rem; }}
table.confusion :is(tr > :first-child) {{ text-align: left; padding-left: 0; }}
.worst {{ display: grid; gap: 1rem; grid-template-columns: repeat(auto-fill, minmax(7rem, 1fr)); }}
.worst img {{ width: 6rem; height: 6rem; object-fit: contain; image-rendering: pixelated; }}
.worst figcaption {{ padding: 0; font-size: .8125rem; overflow-wrap: anywhere; }}
code, pre, table.values td:not(:last-child) {{ font-size: .8125rem;
  font-family: ui-monospace, "SF Mono", Menlo, Consolas, monospace; }}
table.values td:last-child {{ color: var(--muted); }}
pre {{ padding: .8rem 1rem; border-radius: .5rem; background: var(--shade); white-space: pre-wrap;
  overflow-wrap: anywhere; }}
ul.warnings {{ margin: .5rem 0; padding: .6rem 1rem .6rem 2rem; border-left: 4px solid var(--wait);
  background: var(--shade); overflow-wrap: anywhere; }}
summary {{ cursor: pointer; font-weight: 600; padding: .4rem 0; overflow-wrap: anywhere; }}
.swatch {{ display: inline-block; width: 1.6rem; height: .8rem; margin-right: .5rem; vertical-align: middle; }}
@media (max-width: 30rem) {{
  body {{ padding: 1.25rem .9rem 3rem; }} h1 {{ font-size: 1.4rem; }} .tile b {{ font-size: 1.2rem; }}
  table.confusion :is(td, th) {{ padding: .2rem; min-width: 1.75rem; }} }}
@media print {{ body {{ max-width: none; }} figure, tr {{ break-inside: avoid; }} h2, h3 {{ break-after: avoid; }}
  #controls, .head span {{ display: none; }} .u-legend {{ max-height: none; }} }}
"""

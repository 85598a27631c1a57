"""Static pages of many recipes: a table to filter, and each recipe's card, runs, claims, reruns and differences."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from shlex import quote
from typing import Any

from recipes.cards.card import card_facts, claim_text
from recipes.cards.pages import card_sections, published_recipes
from recipes.diff.recipes import compare_recipes
from recipes.errors import InputRefused, printable_line
from recipes.packs.contents import open_packed
from recipes.packs.make import facts_of
from recipes.reading.load import chain_of
from recipes.reading.open import OpenedRecipe
from recipes.reading.registry import library_name, shown
from recipes.reading.tree_diff import value_text
from recipes.reports import charts
from recipes.reports.html import Markup, joined, table, tag
from recipes.reports.page import curves, document
from recipes.reports.record import Run
from recipes.reports.wording import counted, number, percent
from recipes.schema import Claim
from recipes.schema.vocabulary import Vocabulary
from recipes.sharing.canonical import mapping_in
from recipes.sharing.evidence import GOOD, instant_of, others_text, verdict_text
from recipes.sharing.pack_file import claims_of
from recipes.sharing.registries import FACTS, Entry, Registry

_STYLE = """
.chooser:not([hidden]) { margin: 1rem 0; display: flex; flex-wrap: wrap; gap: .75rem; align-items: baseline; }
input { font: inherit; padding: .4rem .6rem; flex: 1 1 14rem; max-width: 28rem; color: inherit;
  background: var(--paper); border: 1px solid var(--line); border-radius: .4rem; }
th button { font: inherit; color: inherit; background: none; border: 0; padding: 0; cursor: pointer; }
th[aria-sort=ascending] button::after { content: " ↑"; } th[aria-sort=descending] button::after { content: " ↓"; }
table.recipes td:nth-child(n+4):nth-child(-n+8), table.recipes th:nth-child(n+4):nth-child(-n+8) { text-align: right; }
table.recipes td { white-space: nowrap; } a { color: inherit; }
"""
_HEADS = ("recipe", "data set", "model", "batch", "epochs", "updates", "accuracy", "device-hours", "checked")


@dataclass(frozen=True, kw_only=True)
class Listed:
    """A recipe of the site.

    Args:
        name: by which commands take it.
        facts: what a search asks for.
        claims: of its pack, by its runs.
        runs: that its pack holds.
        reruns: evidence of reruns, the oldest first.
        parent: name of the recipe that it extends; empty if there is none.
        differences: from the parent: (key, there, here).
        signed: who signed it; empty if nobody who is known.
    """

    name: str
    opened: OpenedRecipe
    facts: Mapping[str, Any]
    claims: Sequence[Claim] = ()
    runs: Sequence[Run] = ()
    reruns: Sequence[Mapping[str, Any]] = ()
    parent: str = ""
    differences: Sequence[tuple[str, str, str]] = ()
    signed: str = ""


def of_library(vocabulary: Vocabulary) -> Iterator[Listed]:
    """The library's recipes."""
    for name, opened in published_recipes(vocabulary):
        chain = chain_of(opened.path)
        parent, found = "", {}
        if len(chain) > 1:
            parent = library_name(chain[1][0]) or ""
            found = compare_recipes([parent, name], vocabulary=vocabulary).as_tree()
        differences = tuple(_rows(found))
        yield Listed(name=name, opened=opened, facts=facts_of(opened, []), parent=parent, differences=differences)


def of_registry(registry: Registry, vocabulary: Vocabulary, *, tell: Callable[[str], None]) -> Iterator[Listed]:
    """The newest version of each name in a registry.

    Args:
        tell: called with a line for each that is left out: its pack cannot be had, is not what the registry or its own
            head says, or its recipe, runs or differences do not open here.
    Raises:
        InputRefused: the registry cannot be listed.
    """
    for entry in registry.entries():
        try:
            listed = _listed(registry, entry, vocabulary)
        except InputRefused as error:
            tell(f"{entry.name} is left out: {error}")
        else:
            yield listed


def _listed(registry: Registry, entry: Entry, vocabulary: Vocabulary) -> Listed:
    pack = registry.pull(entry)
    folder = pack.folder
    opened, runs = open_packed(pack, vocabulary)
    parent, differences = _differences(folder / "diff.json") if (folder / "diff.json").is_file() else ("", ())
    return Listed(
        name=entry.name,
        opened=opened,
        facts=entry.facts,
        claims=claims_of(pack.head) if runs else (),
        runs=runs,
        reruns=registry.reruns(entry.digest),
        parent=parent,
        differences=differences,
        signed=registry.signed_by(entry) or "",
    )


def _differences(file: Path) -> tuple[str, tuple[tuple[str, str, str], ...]]:
    """The parent that a pack names, and what differs from it; raises InputRefused if a stranger wrote other things."""
    try:
        found = mapping_in(file.read_bytes())
        return str(found.get("parent", "")), tuple(_rows(found))
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        what = f"{shown(file)} is not as a pack has it ({type(error).__name__}: {error})"
        raise InputRefused(f"{what}; ask for another copy of the pack") from None


def _rows(found: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    for difference in found.get("differences", ()):
        there, here = (value_text(value, digits=6) for value in difference["values"])
        yield str(difference["path"]), there, here


def write_site(recipes: Sequence[Listed], folder: Path) -> int:
    """Write the pages into a folder, without those of recipes that are no longer listed; returns their number.

    Raises:
        OSError: a file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pages = {_file(one.name): _page(one) for one in recipes} | {"index.html": _index(recipes)}
    for old in folder.glob("recipe-*.html"):
        if old.name not in pages:
            old.unlink()
    for name, text in pages.items():
        (folder / name).write_text(text, encoding="utf-8", errors="replace")
    return len(pages)


def _file(name: str) -> str:
    """The file of a recipe's page: other names have other files."""
    safe = re.sub("[^A-Za-z0-9_.@-]", lambda match: "~" if match[0] == "/" else f"={ord(match[0]):x}=", name)
    return f"recipe-{safe}.html"


def _index(recipes: Sequence[Listed]) -> str:
    heads = [tag("button", head, type="button") for head in _HEADS]
    shown = [_cells(one) for one in sorted(recipes, key=lambda one: one.name)]
    box = tag("input", type="search", placeholder="words, such as: imagenet ResNet50 8,192", aria_label="Filter")
    box = Markup(box.removesuffix("</input>"))
    chooser = tag("div", box, tag("output", class_="muted"), class_="chooser", hidden="")
    words = "Each row leads to the recipe's card, curves, claims and reruns. A click on a head sorts."
    body = [tag("p", words, class_="muted"), chooser, table(heads, shown, class_="recipes")]
    script = (files("recipes.packs") / "site.js").read_text(encoding="utf-8")
    return document(f"{len(recipes)} recipes", joined(body), style=_STYLE, script=script)


def _cells(one: Listed) -> list[object]:
    facts = one.facts
    words = {key: percent(value) if key == "accuracy" else number(value) for key, value in facts.items() if value}
    cells = [words.get(key, "–") for key in FACTS]
    return [tag("a", one.name, href=_file(one.name)), *cells, _checked(one)]


def _checked(one: Listed) -> object:
    if one.reruns:
        return _verdict(one.reruns[-1])
    return "by its runs" if one.runs else next((claim.status for claim in one.opened.recipe.claims), "–")


def _verdict(rerun: Mapping[str, Any]) -> Markup:
    """A badge; green only for a rerun of whole runs, and without a colour for one with other code or data."""
    good = rerun["verdict"] in GOOD and rerun.get("part", 1) == 1
    kind = "success" if good else "failed" if rerun["verdict"] == "worse" else ""
    kind = "" if others_text(rerun.get("differs")) else kind
    return tag("span", verdict_text(rerun), class_=f"badge {kind}".strip())


def _page(one: Listed) -> str:
    facts = card_facts(one.name, one.opened, claims=one.claims)
    parts = [tag("p", tag("a", "All recipes", href="index.html")), *card_sections(facts, one.opened.recipe)]
    get = [f"kilobatch recipes show {quote(one.name)}", f"kilobatch train {quote(one.name)} -n 2"]
    get += [f"kilobatch reproduce {quote(one.name)} -n 2"] if "@" in one.name else []
    parts.insert(3, joined([tag("pre", tag("code", "\n".join(get)))]))
    known = [f"Signed by {one.signed}."] if one.signed else []
    known += [f"Its runs have {claim_text(claim)} on {claim.on}." for claim in one.claims]
    last = [_verdict(one.reruns[-1]), f"says the last of {counted(len(one.reruns), 'rerun')}. "] if one.reruns else []
    parts.insert(3, tag("p", *last, " ".join(known)))
    if one.reruns:
        parts += [tag("h2", "Reruns"), table(("date", "verdict", "", "on"), [*map(_rerun, one.reruns)])]
    if one.runs:
        parts.append(curves(one.runs))
    if one.parent:
        parts.append(tag("h2", f"What differs from {one.parent}"))
        heads = ("key", one.parent, "here")
        parts.append(table(heads, one.differences, class_="differences") if one.differences else tag("p", "Nothing."))
    return document(
        facts.title or one.name,
        joined(parts),
        style=charts.style() + _STYLE if one.runs else _STYLE,
        script=charts.script() if one.runs else "",
    )


def _rerun(rerun: Mapping[str, Any]) -> tuple[object, ...]:
    environment = rerun.get("environment")
    cpu = environment.get("cpu", "") if isinstance(environment, dict) else ""
    registered = "; registered before" if rerun.get("registered") else ""
    words = f"{rerun.get('words', '')}{registered}"
    day = instant_of(rerun).date().isoformat()
    return day, _verdict(rerun), printable_line(words), printable_line(str(cpu))

"""The site's pages: every recipe has one, texts of strangers are escaped, and nothing is loaded from elsewhere."""

import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files

import pytest

from recipes.packs.make import facts_of
from recipes.packs.site import Listed, of_library, of_registry, write_site
from recipes.reading.open import open_recipe
from recipes.schema import Claim
from recipes.sharing.pack_file import write_pack
from recipes.sharing.registries import add_registry
from trainers.launch.vocabulary import vocabulary


class Page(HTMLParser):
    """Links, and texts of table cells."""

    def __init__(self, text):
        super().__init__()
        self.links, self.cells, self.tags, self._inside = [], [], [], False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [value for key, value in attributes if key in ("href", "src")]
        self._inside = tag == "td" or (self._inside and tag in ("a", "span"))
        if tag == "td":
            self.cells.append("")

    def handle_endtag(self, tag):
        self._inside = self._inside and tag != "td"

    def handle_data(self, text):
        if self._inside:
            self.cells[-1] += text


@pytest.fixture(scope="module")
def listed():
    opened = open_recipe("digits/large_batch", vocabulary=vocabulary())
    rerun = {"date": "2026-11-25T10:00:00", "verdict": "worse", "words": "worse: <b>-1 point"}
    rerun["environment"] = {"cpu": "X"}
    return Listed(
        name="team/net@1",
        opened=opened,
        facts=facts_of(opened, []),
        reruns=[rerun],
        parent="digits/baseline",
        differences=[("batch.global", "32", "<script>512")],
        signed="ann@team",
    )


def test_pages_show_verdicts_differences_and_how_to_get_it(listed, tmp_path):
    (tmp_path / "recipe-gone@1.html").touch()
    assert write_site([listed], tmp_path) == 2
    assert not (tmp_path / "recipe-gone@1.html").exists()
    text = (tmp_path / "recipe-team~net@1.html").read_text()
    page = Page(text)
    assert {"batch.global", "32", "<script>512", "worse", "X"} <= set(page.cells)
    assert "script" not in page.tags
    assert "kilobatch reproduce team/net@1" in text
    assert "Signed by ann@team" in text
    index = Page((tmp_path / "index.html").read_text())
    assert "recipe-team~net@1.html" in index.links
    assert {"digits", "SmallResNet", "512", "worse"} <= set(index.cells)


def test_a_rerun_of_a_part_is_no_success(listed, tmp_path):
    rerun = {"date": "2026-11-25T10:00:00+0000", "verdict": "the same bits", "words": "so far\x1b[2J"}
    for part, badge in ((1, '<span class="badge success">the same bits<'), (0.05, '"badge">the same bits, after 5')):
        write_site([replace(listed, reruns=[rerun | {"part": part}])], tmp_path)
        for name in ("index.html", "recipe-team~net@1.html"):
            text = (tmp_path / name).read_text()
            assert badge in text
            assert "\x1b" not in text


@pytest.mark.parametrize("verdict", ["worse", "the same run"])
def test_a_rerun_with_other_code_speaks_neither_for_nor_against_a_pack(listed, verdict, tmp_path):
    rerun = {"date": "2026-11-25T10:00:00+0000", "verdict": verdict, "differs": ["code: 1a in the pack, 2b here"]}
    write_site([replace(listed, reruns=[rerun])], tmp_path)
    for name in ("index.html", "recipe-team~net@1.html"):
        assert f'"badge">{verdict}, with other code<' in (tmp_path / name).read_text()


def test_claims_of_the_runs_take_the_place_of_the_recipes(listed, tmp_path):
    claim = Claim(metric="top1", kind="accuracy", value=0.7138, on="1 x Z80", status="reproduced")
    write_site([replace(listed, claims=[claim])], tmp_path)
    cells = Page((tmp_path / "recipe-team~net@1.html").read_text()).cells
    claims = [cell for cell in cells if cell.startswith("top-1")]
    assert [cell.replace("\xa0", " ") for cell in claims] == ["top-1 71.38 %"]
    assert {"1 x Z80", "by its runs"} <= set(cells)
    assert "reproduced" not in cells


def test_other_names_have_other_pages(listed, tmp_path):
    names = ("team/a/b@1", "team/a-b@1", "team/a b@1", "team/a/20/b@1", "team/a=20=b@1", "team/a@1")
    assert write_site([replace(listed, name=name) for name in names], tmp_path) == len(names) + 1
    assert set(Page((tmp_path / "index.html").read_text()).links) >= {file.name for file in tmp_path.glob("recipe-*")}


def test_only_the_script_of_the_table_may_run_and_no_page_loads_from_elsewhere(listed, tmp_path):
    write_site([listed], tmp_path)
    for file in tmp_path.iterdir():
        text = file.read_text()
        (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
        assert policy.startswith("default-src 'none'")
        assert ("script-src" in policy) == (file.name == "index.html")
        loaded = [link for link in Page(text).links if not link.endswith(".html")]
        assert all(link.startswith(("data:", "https://", "#")) for link in loaded)


def test_the_library_has_a_page_for_each_recipe_with_what_differs_from_its_parent(monkeypatch, tmp_path):
    monkeypatch.setattr("recipes.cards.pages.names", lambda kind: ["digits/large_batch", "goyal2017"])
    found = {one.name: one for one in of_library(vocabulary())}
    assert found["digits/large_batch"].parent == "digits/baseline"
    assert ("batch.global", "32", "512") in found["digits/large_batch"].differences
    assert found["goyal2017"].facts["accuracy"] == 0.7626
    assert write_site([*found.values(), replace(found["goyal2017"], name="a/b@1")], tmp_path) == 4


DEEP = b'{"differences": [{"path": "a", "values": [%s, 1]}]}' % (b"[" * 900 + b"]" * 900)
BAD = {
    "no JSON": {"diff.json": b"{"},
    "a list": {"diff.json": b"[]"},
    "no differences": {"diff.json": b'{"differences": 7}'},
    "no value": {"diff.json": b'{"differences": [{"path": "a"}]}'},
    "three values": {"diff.json": b'{"differences": [{"path": "a", "values": [1, 2, 3]}]}'},
    "deep": {"diff.json": DEEP},
    "no run": {"runs/0/run.yaml": b"7"},
    "no recipe": {"recipe.yaml": b"7"},
}


def test_a_bad_pack_is_left_out_of_the_site_with_a_line_and_stops_no_other(tmp_path, monkeypatch):
    for name in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    team = add_registry("team", str(tmp_path / "team"), signers=None)
    recipe = b"kilobatch: 1\nextends: digits/large_batch\n"

    def push(name, files):
        write_pack(tmp_path / "a.kilobatch", {"title": name}, {"recipe.yaml": recipe, **files})
        return team.push(tmp_path / "a.kilobatch", name)

    for number, content in enumerate(BAD.values()):
        push(f"bad{number}", content)
    gone = push("gone", {"other.txt": b""})
    shutil.rmtree(tmp_path / "kilobatch" / "packs" / gone.digest)
    (tmp_path / "team" / "packs" / f"{gone.digest}.kilobatch").write_bytes(b"")
    push("net", {"diff.json": b'{"parent": "a", "differences": [{"path": "b", "values": [1, 2]}]}'})
    lines = []
    (listed,) = of_registry(team, vocabulary(), tell=lines.append)
    assert (listed.name, listed.parent, listed.differences) == ("team/net@1", "a", (("b", "1", "2"),))
    names = [f"team/bad{number}@1" for number in range(len(BAD))]
    assert [line.partition(" is left out: ")[0] for line in lines] == [*names, "team/gone@1"]


@pytest.mark.skipif(shutil.which("node") is None, reason="no node on this machine")
def test_columns_of_numbers_are_sorted_by_value():
    script = (files("recipes.packs") / "site.js").read_text()
    part = script[script.index("const number =") : script.index("[...table.tHead")]
    program = part + 'console.log(["0.5", "10", "0.25", "1e-3", "b10", "b9"].sort(compare).join(" "))'
    done = subprocess.run(["node", "-e", program], capture_output=True, text=True, check=True)
    assert done.stdout == "1e-3 0.25 0.5 10 b9 b10\n"

"""Links in the documents lead somewhere, every page is in the site's menu, and the site builds without a warning."""

import importlib.util
import os
import pkgutil
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import pytest
import yaml

from trainers.launch.vocabulary import PACKAGES

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
LINK = re.compile(r"(?<!\\)\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)")


def without_code(text):
    text = re.sub(r"^( *)(```+|~~~+).*?^ *\2", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"(?:\A|\n)\n(?:(?: {4}|\t)[^\n]*\n)+", "\n", text)
    return re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", text)


@cache
def anchors(page):
    """The anchors of a page's headings, where code hosts and MkDocs make the same: MkDocs writes `--` as `-`."""
    text = re.sub(r"^( *)(```+|~~~+).*?^ *\2", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    found = set(re.findall(r"(?:id|name)=\"([^\"]+)\"", text))
    for heading in re.findall(r"^#{1,6} +(.*?) *#*$", text, re.MULTILINE):
        words = re.sub(r"\[(.*?)\]\(.*?\)", r"\1", heading).lower()
        found.add(re.sub(r"[^\w\- ]", "", words).strip().replace(" ", "-"))
    return {anchor for anchor in found if "--" not in anchor}


def broken_links(page):
    for link in LINK.findall(without_code(page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z][a-z0-9+.-]*:", link):
            continue
        path, _, anchor = unquote(link).partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            yield f"{link}: no such file"
        elif page.is_relative_to(DOCS) and not target.is_relative_to(DOCS):
            yield f"{link}: the site has only what is below docs/"
        elif anchor and target.suffix == ".md" and anchor not in anchors(target):
            yield f"{link}: no such heading"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    assert list(broken_links(page)) == []


def test_a_broken_link_is_found(tmp_path):
    page = tmp_path / "page.md"
    code = "    [4](g.md)\n\n```\n[5](h.md)\n```\n`[6](i.md)`\n"
    page.write_text(f"# A `b/c` d\n\n[1](#a-bc-d) [2](#e) [3](f.md)\n\n{code}")
    assert list(broken_links(page)) == ["#e: no such heading", "f.md: no such file"]


def test_the_readme_counts_recipes_and_rules_right():
    counts = dict(map(reversed, re.findall(r"# (\d+) (recipes|rules)\b", (ROOT / "README.md").read_text())))
    recipes = [path for path in (ROOT / "docs" / "library.md").read_text().splitlines() if path.startswith("| [")]
    rules = re.findall(r"^## ", (DOCS / "lint.md").read_text(), re.MULTILINE)
    assert counts == {"recipes": str(len(recipes)), "rules": str(len(rules))}, "correct the numbers in README.md"


def test_the_rooms_that_the_api_names_can_be_imported_and_hold_every_component():
    named = re.findall(r"`((?:lr_schedules|recipes|trainers)(?:\.\w+)+)`", (DOCS / "api.md").read_text())
    assert {room for room in PACKAGES.values() if room.startswith("trainers.")} <= set(named)
    for name in named:
        pkgutil.resolve_name(name)


def test_every_page_is_in_the_menu():
    def pages(entry):
        if isinstance(entry, str):
            return [entry]
        return [page for part in (entry.values() if isinstance(entry, dict) else entry) for page in pages(part)]

    listed = pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    there = [path.relative_to(DOCS).as_posix() for path in PAGES if path.is_relative_to(DOCS)]
    # The index of the experiments leads to its pages.
    assert sorted(listed) == [page for page in there if not page.startswith("experiments/") or page in listed]


@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="./scripts/docs installs MkDocs")
def test_site_builds_without_a_warning(tmp_path):
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert built.returncode == 0, built.stderr
    assert len(list((tmp_path / "site" / "pictures" / "library").glob("*.svg"))) > 50

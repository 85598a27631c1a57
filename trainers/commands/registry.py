"""`kilobatch registry ...`: share packs with a team."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from trainers.commands.options import EXIT_FOUND, OPTIONS_OF_GROUPS, Json, print_json

EXAMPLES = """\b
Examples:
  kilobatch registry add team /mnt/share/recipes
  kilobatch registry add lab git+ssh://git@host/recipes.git --signers lab_keys
  kilobatch registry add cloud s3://bucket/recipes
  kilobatch registry push mine.kilobatch team/resnet50
  kilobatch registry search dataset=imagenet 'batch>=8192'
  kilobatch train team/resnet50@3
"""
_EMPTY = "nothing; kilobatch registry add and push bring something"
app = typer.Typer(help="Share packs with a team.", epilog=EXAMPLES, **OPTIONS_OF_GROUPS)

Name = Annotated[str, typer.Argument(metavar="NAME", help="REGISTRY/NAME@VERSION; without @VERSION the newest.")]


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="What you call it, such as team.")],
    url: Annotated[str, typer.Argument(metavar="URL", help="A folder, a git repository (git+URL), or s3://, ...")],
    signers: Annotated[Path | None, typer.Option(metavar="FILE", help="Keys you trust, by line: NAME KEY.")] = None,
) -> None:
    """Remember a registry by a name.

    A folder is made if only the folder around it is there. Added again, it keeps its signers unless others are given.
    """
    from recipes.sharing.registries import add_registry

    registry = add_registry(name, url, signers=signers)
    guard = registry.store.guard
    print(f"added {name}: {registry.url}" + (f", signed by keys of {registry.signers}" if registry.signers else ""))
    print(f"Two pushes at once are kept apart by {guard}." if guard else "It can be read; pushes are refused there.")
    if Path(registry.url, ".git").exists():
        print(f"It is a git work tree, taken as a folder: nothing is committed. A repository is added as git+{url}")


@app.command()
def remove(name: Annotated[str, typer.Argument(help="As it was added.")]) -> None:
    """Forget a registry; its files and the cache stay."""
    from recipes.sharing.registries import remove_registry

    print(f"removed {name}: {remove_registry(name)}")


@app.command("list")
def list_entries(
    name: Annotated[str | None, typer.Argument(help="Of one registry: every version.")] = None, as_json: Json = False
) -> None:
    """The newest version of each name, or every one.

    Of all registries the newest, of one that is named every version.
    """
    from recipes.sharing.registries import from_each, registries

    found = from_each(registries(*([name] if name else [])), lambda each: each.entries(every_version=name is not None))
    _print_entries(found, as_json)


@app.command()
def search(
    conditions: Annotated[list[str], typer.Argument(metavar="KEY=VALUE...", help="Such as 'accuracy>=0.75'.")],
    as_json: Json = False,
) -> None:
    """Names whose newest version meets all conditions.

    Keys: dataset, model, batch, epochs, updates, accuracy, device_hours. Comparisons: = != < <= > >=
    An accuracy that is claimed and was not measured meets none.
    """
    from recipes.sharing.conditions import found_in
    from recipes.sharing.registries import Registry, from_each, registries

    there = from_each(registries(), Registry.entries)
    _print_entries(found_in(there, conditions), as_json, none="no name meets all conditions" if there else _EMPTY)


@app.command()
def push(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A pack, or the evidence.json of a rerun.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="REGISTRY/NAME; of a rerun with its @VERSION.")],
    key: Annotated[Path | None, typer.Option("--sign", metavar="KEY", help="Sign by this SSH key.")] = None,
) -> None:
    """Add a pack as the next version of a name.

    The pack must open here, and say what its recipe and runs do; none of its code is run. The evidence of a rerun is
    added to the record of a pack. Nothing is ever overwritten.
    """
    from recipes.errors import InputRefused
    from recipes.packs.contents import needs_own_code, open_packed
    from recipes.sharing.canonical import mapping_in
    from recipes.sharing.evidence import verdict_text
    from recipes.sharing.pack_file import open_pack
    from recipes.sharing.registries import registry_of
    from trainers.launch.vocabulary import vocabulary

    registry, pack, version = registry_of(name)
    if file.suffix == ".json":
        entry = registry.entry(pack, version)
        try:
            evidence = mapping_in(file.read_bytes())
        except (OSError, ValueError) as error:
            raise InputRefused(f"{file}: cannot be read: {error}; name the evidence.json of a rerun") from None
        if evidence.get("pack") != entry.digest:
            about = _line(f"pack {evidence.get('pack')}")
            raise InputRefused(f"{file} is no evidence about {entry.name}: it is about {about}")
        registry.add_rerun(entry.digest, evidence)
        print(f"added to the record of {entry.name}: {verdict_text(evidence)}")
        return
    if version is not None:
        raise InputRefused(f"{name}: the registry chooses the version; leave @{version} out")
    opened = open_pack(file)
    try:
        open_packed(opened, vocabulary())
    except InputRefused as error:
        if not needs_own_code(error):
            raise InputRefused(f"{file} goes into no registry: {error}") from None
    entry = registry.push(file, pack, key=key, opened=opened)
    print(f"in the registry as {entry.name}, digest {entry.digest[:12]}{', signed' if entry.signature else ''}")


@app.command()
def pull(
    name: Name,
    out: Annotated[Path | None, typer.Option("-o", metavar="FILE", help="Write the pack into a file, too.")] = None,
    require_signed: Annotated[
        bool, typer.Option("--require-signed", help="Refuse it unless one of the registry's signers signed it.")
    ] = False,
) -> None:
    """Bring a pack into the cache, for use without a network.

    From a registry with signers only what one of them signed, but into a file also the rest.
    """
    from recipes.errors import InputRefused
    from recipes.sharing.pack_file import files_of, write_pack
    from recipes.sharing.registries import registry_of
    from trainers.tasks.packing import file_of_pack, written_once

    def copy(part: Path) -> None:
        if write_pack(part, opened.head, files_of(opened)) != entry.digest:
            raise InputRefused(f"{opened.folder}: a file was changed there; remove this folder, and pull again")

    registry, pack, version = registry_of(name)
    file = file_of_pack(out, pack) if out else None
    entry = registry.entry(pack, version)
    if require_signed and registry.signers is None:
        way_out = f"give them: kilobatch registry add {registry.name} {quote(registry.url)} --signers FILE"
        raise InputRefused(f"--require-signed: nobody's keys are trusted in {registry.name}; {way_out}")
    by = registry.signed_by(entry) if out and not require_signed else registry.require_signed(entry)
    opened = registry.pull(entry)
    if file is not None:
        written_once(file, copy)
    print(f"pulled {entry.name}, digest {entry.digest[:12]}{f', signed by {by}' if by else ''}")
    ids = opened.head.get("ids")
    own_code = " --allow-code" if isinstance(ids, dict) and ids.get("code") else ""
    print(f"Use it by its name: kilobatch train {quote(entry.name)}{own_code}")


@app.command()
def verify(name: Name) -> None:
    """Check every byte of a pack, and say who signed it.

    The facts that it names must be those of its recipe and runs. Exit code 5 if the registry has signers, and none of
    them signed it.
    """
    from recipes.errors import InputRefused
    from recipes.packs.contents import HeadRefused, open_packed
    from recipes.sharing.evidence import instant_of, verdict_text
    from recipes.sharing.registries import registry_of
    from trainers.launch.vocabulary import vocabulary

    registry, pack, version = registry_of(name)
    entry = registry.entry(pack, version)
    pulled, unopened = registry.pull(entry, anew=True), ""
    try:
        open_packed(pulled, vocabulary())
    except HeadRefused:
        raise
    except InputRefused as error:
        unopened = _line(f"it does not open here, so what it says of itself is not checked: {error}")
    by = registry.signed_by(entry)
    print(f"{entry.name}: whole, digest {entry.digest}", *filter(None, [unopened]), sep="\n")
    print(f"signed by {by}" if by else "signed by nobody whose key is known here" if entry.signature else "not signed")
    unsigned = " (nobody signs reruns: ask who made it)" if registry.signers else ""
    for rerun in registry.reruns(entry.digest):
        print(f"rerun {instant_of(rerun):%Y-%m-%d %H:%M} UTC: {verdict_text(rerun)}{unsigned}")
    raise typer.Exit(EXIT_FOUND if registry.signers and by is None else 0)


@app.command()
def site(
    out: Annotated[Path, typer.Option("-o", metavar="DIR", help="The folder.")],
    names: Annotated[list[str] | None, typer.Argument(metavar="[REGISTRY...]", help="All, if left out.")] = None,
    library: Annotated[bool, typer.Option("--library/--no-library", help="With the library's own recipes.")] = True,
) -> None:
    """Write static pages of recipes, to read without a server.

    A table to filter; for each recipe its card, curves, claims, reruns with their verdicts, what differs from its
    parent, and how to get it. The pages load nothing from elsewhere.
    """
    from recipes.errors import InputRefused
    from recipes.packs.site import of_library, of_registry, write_site
    from recipes.sharing.registries import from_each, registries
    from trainers.launch.vocabulary import vocabulary
    from trainers.runs.errors import print_error

    known = vocabulary()
    listed = from_each(registries(*(names or ())), lambda each: of_registry(each, known, tell=print_error))
    listed += of_library(known) if library else ()
    if not listed:
        raise InputRefused("there is nothing to show; add a registry: kilobatch registry add team URL")
    number = write_site(listed, out)
    print(f"wrote {number} pages; open {out / 'index.html'}")


def _print_entries(entries: list, as_json: bool, *, none: str = _EMPTY) -> None:
    from recipes.errors import printable
    from recipes.reports.curves import points_text
    from recipes.reports.wording import percent
    from recipes.sharing.registries import FACTS

    if as_json:
        print_json([{"name": entry.name, **entry.said} for entry in entries])
        return
    rows = [{"name": entry.name, **{key: _short(entry.facts.get(key)) for key in FACTS}} for entry in entries]
    for row, entry in zip(rows, entries, strict=True):
        if row["accuracy"] is not None:
            row["accuracy"] = percent(row["accuracy"]) + (f" ({entry.unmeasured})" if entry.unmeasured else "")
    print(printable(points_text(rows)) if rows else none)


def _short(fact: object) -> object:
    return round(fact, 4) if isinstance(fact, float) else _line(fact) if isinstance(fact, str) else fact


def _line(text: str) -> str:
    """A stranger's text as one line that commands no terminal."""
    from recipes.errors import printable

    return printable(text.replace("\n", "\\n"))

"""Registries: places where a team keeps packs, by digest and by names with versions, such as `team/resnet50@3`.

In a registry's store, files are only ever added:

    packs/DIGEST.kilobatch          a pack
    names/NAME/VERSION.json         which pack a version of a name is, what it says of itself, and a signature
    reruns/DIGEST/SHA256.json       what a rerun of a pack came to

What was read once stays in the cache, which serves names, packs and searches without a network.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from recipes.errors import InputRefused, nearest, printable
from recipes.sharing.cache import cache_folder
from recipes.sharing.canonical import canonical_json, mapping_in, sha256_of
from recipes.sharing.evidence import evidence_in, instant_of, require_evidence
from recipes.sharing.pack_file import Pack, cached_pack, claims_of, open_pack
from recipes.sharing.signatures import sign, signer
from recipes.sharing.stores import Store, Unreachable, store_of

_PART = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}"
_PATH = re.compile(rf"{_PART}(/{_PART})*")  # of a file in a store: no part is `..`, which would lead out of the cache
_NAME = re.compile(rf"(?P<registry>{_PART})/(?P<pack>{_PART}(/{_PART}){{0,3}})(@(?P<version>[1-9][0-9]{{0,8}}))?")
_VERSION = re.compile(r"[1-9][0-9]*\.json")  # the file of one
_OF_THE_HEAD = ("title", "ids", "facts", "claims")  # what an entry repeats of its pack
FACTS = ("dataset", "model", "batch", "epochs", "updates", "accuracy", "device_hours")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A version of a name.

    Args:
        name: with registry and version: `team/resnet50@3`.
        said: what the pack's head said when it was pushed, its `digest`, and the date.
        signature: of SSH; empty if it is not signed.
    """

    name: str
    said: dict[str, Any]
    signature: str = ""

    @property
    def digest(self) -> str:
        return str(self.said["digest"])

    @property
    def facts(self) -> dict[str, Any]:
        """Those of `FACTS` that it has: texts, or finite numbers. A stranger's pack may say anything there."""
        said = self.said.get("facts")
        return {key: value for key in FACTS if isinstance(said, dict) and _is_fact(key, value := said.get(key))}

    @property
    def unmeasured(self) -> str:
        """The status of an accuracy that is only claimed, such as `not run`; empty where runs in the pack have it."""
        statuses = [claim.status for claim in claims_of(self.said) if claim.kind == "accuracy"]
        if "device_hours" not in self.facts:  # as in a pack without runs, whose recipe may say that it was reproduced
            statuses = ["claimed" if status == "reproduced" else status for status in statuses]
        return next((status for status in statuses if status != "reproduced"), "")


def settings_file() -> Path:
    """Where the names and URLs of registries are kept: in XDG_CONFIG_HOME, else in ~/.config."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "kilobatch" / "registries.json"


def settings() -> dict[str, dict[str, Any]]:
    """The registries that were added: name -> `url`, and `signers`, a list of keys, or null."""
    try:
        return mapping_in(settings_file().read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise InputRefused(f"{settings_file()}: {error}; remove it, and add the registries again") from None


def add_registry(name: str, url: str, *, signers: Path | None) -> Registry:
    """Remember a registry by a name; a folder is made in a folder that is there.

    Added again, it keeps its signers unless others are given.

    Raises:
        InputRefused: the name cannot be one or is that of another place, the place cannot be reached or made, or the
            file of `signers` is missing.
    """
    if not re.fullmatch(_PART, name):
        raise InputRefused(f"{name!r} cannot name a registry; use letters, digits, `_`, `.` and `-`")
    if re.search("//[^/@]*:[^/@]*@", url) or (re.search("//[^/]*@", url) and not url.startswith("git")):
        raise InputRefused("the URL holds credentials; leave them to the configuration of fsspec or git")
    is_folder = "://" not in url and not url.startswith("git+") and not url.endswith(".git")
    if is_folder:
        url = os.path.abspath(os.path.expanduser(url))
    elif Path(repository := url.removeprefix("git+")).is_dir():
        url = f"git+{os.path.abspath(repository)}"  # git runs in a folder of its own
    known = settings()
    before = known.get(name, {"url": url, "signers": None})
    if before["url"] != url:
        raise InputRefused(f"{name} is {before['url']}; take another name, or: kilobatch registry remove {name}")
    if signers is not None and not signers.is_file():
        raise InputRefused(f"--signers: there is no file {signers}")
    if is_new := is_folder and not Path(url).exists():
        try:
            Path(url).mkdir()
        except OSError as error:
            raise InputRefused(f"{url}: cannot be made: {error.strerror}; is the folder around it mounted?") from None
    trusted = str(signers.absolute()) if signers else before["signers"]
    registry = Registry(name, url, signers=trusted and Path(trusted))
    try:
        registry.store.names("names")  # it answers
        _write_settings(known | {name: {"url": url, "signers": trusted}})
    except InputRefused:
        if is_new:
            Path(url).rmdir()
        raise
    return registry


def remove_registry(name: str) -> str:
    """Forget a registry, and return its URL; raises InputRefused if it was not added."""
    (registry,) = registries(name)
    _write_settings({other: facts for other, facts in settings().items() if other != name})
    return registry.url


def _write_settings(known: dict[str, dict[str, Any]]) -> None:
    file = settings_file()
    part = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
        part.replace(file)
    except OSError as error:
        way_out = "set XDG_CONFIG_HOME to a folder of your own"
        raise InputRefused(f"{file} cannot be written: {error.strerror}; {way_out}") from None


def registries(*names: str) -> list[Registry]:
    """The registries of these names; without names all.

    Raises:
        InputRefused: one of them was not added.
    """
    known = settings()
    for name in names:
        if name not in known:
            way_out = nearest(name, sorted(known), called="added")
            raise InputRefused(f"there is no registry {name}; {way_out}; kilobatch registry add {name} URL adds one")
    chosen = {name: known[name] for name in names or sorted(known)}
    return [Registry(name, facts["url"], signers=facts.get("signers")) for name, facts in chosen.items()]


def from_each(found: Sequence[Registry], read: Callable[[Registry], Iterable[Any]]) -> list[Any]:
    """What `read` finds in several registries, joined; one that cannot be reached is left out, and named on stderr.

    Raises:
        InputRefused: none of them can be reached.
    """
    joined, away = [], []
    for registry in found:
        try:
            joined += read(registry)
        except InputRefused as error:
            away.append((registry.name, error))
    if away and len(away) == len(found):
        raise away[0][1]
    for name, error in away:
        print(printable(f"registry {name}: left out: {error}"), file=sys.stderr)
    return joined


def is_in_registry(name: str) -> bool:
    """Whether a name of a recipe is one of a registry that was added."""
    match = _NAME.fullmatch(name)
    return match is not None and (match["version"] is not None or match["registry"] in settings())


def registry_of(name: str) -> tuple[Registry, str, int | None]:
    """The registry of a name such as `team/resnet50@3`, the name in it, and the version; None: the newest.

    Raises:
        InputRefused: it is no such name, or there is no such registry.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise InputRefused(f"{name!r} is no name of a registry; write REGISTRY/NAME, or REGISTRY/NAME@VERSION")
    (registry,) = registries(match["registry"])
    return registry, match["pack"], match["version"] and int(match["version"])


class _OtherThanBefore(InputRefused):
    """A store has another file than was read there before, or none."""


class Registry:
    """One registry.

    Args:
        name: by which it was added.
        url: see `store_of`.
        signers: list of the keys that are trusted here.
    """

    def __init__(self, name: str, url: str, *, signers: str | Path | None = None) -> None:
        self.name, self.url = name, url
        self.signers = None if signers is None else Path(signers)
        self._cache = cache_folder() / "registries" / sha256_of(url.encode())[:16]

    @cached_property
    def store(self) -> Store:
        """Where it keeps its files; raises InputRefused if something to reach it is not installed."""
        return store_of(self.url)

    def entries(self, *, every_version: bool = False) -> list[Entry]:
        """The newest version of each name, or every one; a damaged one is left out, and named on stderr."""
        found = sorted(_by_name(self._names("names")).items())
        kept = {pack: known if every_version else known[-1:] for pack, known in found}
        return [entry for pack, known in kept.items() for entry in self._whole(pack, known)]

    def _whole(self, pack: str, versions: Sequence[int], *, anew: bool = False) -> Iterator[Entry]:
        """The entries of these versions; a damaged one is left out, and named on stderr."""
        for version in versions:
            try:
                yield self.entry(pack, version, anew=anew)
            except (Unreachable, _OtherThanBefore):
                raise
            except InputRefused as error:
                print(printable(f"registry {self.name}: left out: {error}"), file=sys.stderr)

    def entry(self, pack: str, version: int | None = None, *, anew: bool = False) -> Entry:
        """A version of a name; None: the newest.

        Args:
            anew: from the store in any case.
        Raises:
            InputRefused: there is none, it is damaged, or another one than before.
        """
        if version is None:
            version = max(self._versions(pack), default=0)
        name = f"{self.name}/{pack}@{version}"
        try:
            if not version:
                raise FileNotFoundError
            path = f"names/{pack}/{version}.json"
            return self._entry_in(self._read(path, anew=anew), path)
        except FileNotFoundError:
            known = sorted({path.split("/", 1)[1].rpartition("/")[0] for path in self._names("names")})
            way_out = f"it has versions {self._versions(pack)}" if pack in known else nearest(pack, known)
            raise InputRefused(f"{self.name} has no {name.removesuffix('@0')}; {way_out}") from None

    def _entry_in(self, data: bytes, path: str) -> Entry:
        ((pack, (version,)),) = _by_name([path]).items()
        name = f"{self.name}/{pack}@{version}"
        try:
            tree = mapping_in(data)
            canonical_json(tree)  # of which signatures are: not every JSON has one
            entry = Entry(name=name, said=tree["entry"], signature=tree.get("signature", ""))
            if not isinstance(entry.signature, str):
                raise TypeError("its signature is no text")
            fits = (entry.said["name"], entry.said["version"]) == (pack, version)
            fits = fits and re.fullmatch("[0-9a-f]{64}", entry.digest)
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise InputRefused(f"{name}: its entry is damaged: {error}; ask who keeps {self.url}") from None
        if not fits:
            raise InputRefused(f"{name}: its entry belongs to another name; ask who keeps {self.url}")
        return entry

    def push(self, path: Path, pack: str, *, key: Path | None = None, opened: Pack | None = None) -> Entry:
        """Add a pack as the next version of a name.

        The pack of the newest version is not added again; nor is that of an older one which is gone or damaged in the
        store, and is put right. Which versions there are, the store says, never the cache.

        Args:
            opened: the pack at `path`, if it was opened already.
        Raises:
            InputRefused: the pack or its name is refused, the store cannot be reached or written, it has not what was
                read there before, or the key cannot sign.
        """
        if any(_VERSION.fullmatch(part) for part in pack.split("/")):
            raise InputRefused(f"{pack}: a registry calls its own files so; choose a name without .json")
        opened, taken = opened or open_pack(path), 0
        before = {f"packs/{opened.digest}.kilobatch": path.absolute()}  # git runs in a folder of its own
        self._require_same(pack)
        while True:
            known = self._versions(pack, anew=True)
            version = max(taken, *known, 0) + 1
            same = [each.said["version"] for each in self._whole(pack, known) if each.digest == opened.digest]
            for entry in self._whole(pack, same, anew=True):
                if self._make_whole(entry, before) or entry.said["version"] == version - 1:
                    return entry
            said = {"name": pack, "version": version, "digest": opened.digest, "pushed": time.strftime("%Y-%m-%d")}
            said |= {key: opened.head.get(key) for key in _OF_THE_HEAD}
            signature = sign(canonical_json(said), key) if key else ""
            tree = {"entry": said} | ({"signature": signature} if signature else {})
            if self.store.create(f"names/{pack}/{version}.json", canonical_json(tree), before=before):
                return Entry(name=f"{self.name}/{pack}@{version}", said=said, signature=signature)
            try:
                self._read(f"names/{pack}/{version}.json", anew=True)
            except (FileNotFoundError, Unreachable) as error:
                why = getattr(error, "strerror", None) or error
                what = f"{self.name}/{pack}@{version} cannot be made, and is not there: {why}"
                raise InputRefused(f"{what}; choose another name, or ask who keeps {self.url}") from None
            taken = version

    def _make_whole(self, entry: Entry, files: Mapping[str, Path]) -> bool:
        """Put the pack of an entry into the store again if it is gone or damaged there; returns whether it was."""
        try:
            self._fetched(entry)
            return False
        except InputRefused:
            path = f"names/{entry.said['name']}/{entry.said['version']}.json"
            self.store.create(path, self._read(path), before=files)
            self._fetched(entry)
            return True

    def pull(self, entry: Entry, *, anew: bool = False) -> Pack:
        """The pack of an entry, from the cache or the store.

        Args:
            anew: from the store in any case.
        Raises:
            InputRefused: it cannot be reached, or is not the pack that the entry names and describes.
        """
        if anew or (pack := cached_pack(entry.digest)) is None:
            pack = self._fetched(entry)
        for key in _OF_THE_HEAD:
            if entry.said.get(key) != pack.head.get(key):
                what = f"{entry.name}: its entry has other {key} than its pack"
                raise InputRefused(f"{what}; do not use it, and ask who keeps {self.url}")
        return pack

    def _fetched(self, entry: Entry) -> Pack:
        with tempfile.TemporaryDirectory(prefix="kilobatch-pull-") as folder:
            path = Path(folder, f"{entry.digest}.kilobatch")
            try:
                self.store.fetch(f"packs/{entry.digest}.kilobatch", path)
                pack = open_pack(path)
            except FileNotFoundError:
                raise InputRefused(f"{entry.name}: its pack is gone from {self.url}") from None
            except Unreachable as error:
                raise InputRefused(f"{entry.name} is not in the cache, and {error}") from None
        if pack.digest != entry.digest:
            raise InputRefused(f"{entry.name}: {self.url} holds another pack under its digest; do not use it")
        return pack

    def signed_by(self, entry: Entry) -> str | None:
        """Who of this registry's signers has signed an entry, which names the pack's digest; None: nobody."""
        if self.signers is None or not entry.signature:
            return None
        return signer(canonical_json(entry.said), entry.signature, self.signers)

    def require_signed(self, entry: Entry) -> str | None:
        """Refuse what none of this registry's signers has signed; who has, or None where no signers are named.

        Raises:
            InputRefused: none of them has.
        """
        by = self.signed_by(entry)
        if self.signers is not None and by is None:
            look = f"to look at it: kilobatch registry pull {entry.name} -o FILE"
            raise InputRefused(f"{entry.name} is not signed by a key in {self.signers}; have it signed; {look}")
        return by

    def add_rerun(self, digest: str, evidence: dict[str, Any]) -> None:
        """Add what a rerun of a pack came to; the pack stays as it is.

        Raises:
            InputRefused: it is no evidence of a rerun, or the store cannot be written.
        """
        try:
            require_evidence(evidence)
        except ValueError as error:
            raise InputRefused(f"{error}; name the evidence.json that kilobatch reproduce wrote") from None
        data = canonical_json(evidence)
        self.store.create(f"reruns/{digest}/{sha256_of(data)}.json", data, before={})

    def reruns(self, digest: str) -> list[dict[str, Any]]:
        """What reruns of a pack came to, the oldest first; files that are none are passed over, and named on stderr.

        Of a store that cannot be reached these are the ones that the cache has.
        """
        found = []
        for path in self._names(f"reruns/{digest}", needed=False):
            data = self._read(path)
            if sha256_of(data) == path.rpartition("/")[2].removesuffix(".json"):
                try:
                    found.append(evidence_in(data))
                except ValueError as error:
                    print(f"registry {self.name}: {path} is no evidence of a rerun: {error}", file=sys.stderr)
        return sorted(found, key=instant_of)

    def _require_same(self, pack: str) -> None:
        """Refuse a store that lacks what was read there before: it was made anew, or an empty folder is in its place.

        Of this name the newest version must be there, else any version of any name. Damaged ones are passed over.
        """
        read = _by_name(path.relative_to(self._cache).as_posix() for path in (self._cache / "names").rglob("*.json"))
        if pack in read:
            [*self._whole(pack, read[pack][-1:], anew=True)]  # raises if it is gone or another
            return
        there = _by_name(self.store.names("names")) if read else {}
        before = sorted((name, version) for name, known in read.items() for version in known)
        still = [(name, version) for name, version in before if version in there.get(name, ())]
        refused = None if still or not before else self._other("names/{}/{}.json".format(*before[0]))
        for name, version in still:
            try:
                if [*self._whole(name, [version], anew=True)]:
                    return
            except InputRefused as error:
                refused = error
        if refused:
            raise refused

    def _other(self, path: str) -> _OtherThanBefore:
        what = f"{self.name}: {self.url} is another registry than before: {path} is gone from it, or was changed"
        way_out = f"ask who keeps it; if that is right, remove {self._cache} to forget the one before"
        return _OtherThanBefore(f"{what}; {way_out}")

    def _versions(self, pack: str, *, anew: bool = False) -> list[int]:
        paths = self.store.names(f"names/{pack}") if anew else self._names(f"names/{pack}")
        return _by_name(paths).get(pack, [])

    def _names(self, folder: str, *, needed: bool = True) -> list[str]:
        """Paths below a folder of the store; where that cannot be reached, those that the cache has.

        Args:
            needed: raise Unreachable where the cache has none.
        """
        try:
            return [path for path in self.store.names(folder) if _PATH.fullmatch(path)]
        except Unreachable as error:
            here = sorted(path.relative_to(self._cache).as_posix() for path in (self._cache / folder).rglob("*.json"))
            if needed and not here:
                raise
            print(printable(f"registry {self.name}: {error}; going on with what the cache has"), file=sys.stderr)
            return here

    def _read(self, path: str, *, anew: bool = False) -> bytes:
        """A file of the store, from the cache if it was read before: files never change.

        Args:
            anew: from the store in any case.
        Raises:
            InputRefused: it is a damaged entry, or another file than was read before.
        """
        place = self._cache / path
        if anew or not place.is_file():
            place.parent.mkdir(parents=True, exist_ok=True)
            part = place.with_name(f".{place.name}.{os.getpid()}.part")
            try:
                self.store.fetch(path, part)
                if path.startswith("names/"):
                    self._entry_in(part.read_bytes(), path)
                if place.is_file() and place.read_bytes() != part.read_bytes():
                    raise self._other(path)
                part.replace(place)
            except FileNotFoundError:
                if place.is_file():
                    raise self._other(path) from None
                raise
            finally:
                part.unlink(missing_ok=True)
        return place.read_bytes()


def _by_name(paths: Iterable[str]) -> dict[str, list[int]]:
    """The versions of each name, ascending, of which these are the files."""
    found: dict[str, list[int]] = {}
    for path in paths:
        pack, _, file = path.removeprefix("names/").rpartition("/")
        if pack and _VERSION.fullmatch(file):
            found.setdefault(pack, []).append(int(file.removesuffix(".json")))
    return {pack: sorted(versions) for pack, versions in found.items()}


def _is_fact(key: str, value: Any) -> bool:
    if key in ("dataset", "model"):
        return isinstance(value, str)
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)

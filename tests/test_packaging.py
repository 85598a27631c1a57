"""A wheel of the checkout holds all code and all YAML, and starts with the `kilobatch` command."""

import ctypes
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("configs", "lr_schedules", "recipes", "trainers")


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """A folder with what the sdist of a copy holds: setuptools leaves folders behind, which would enter the wheel."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / "copy" / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for name in ("kilobatch.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "copy")
    (path,) = made(folder / "copy", "sdist", "*.tar.gz")
    shutil.unpack_archive(path, folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    return unpacked


def built(sources, folder, **more):
    """The wheel of the sources."""
    shutil.copytree(sources, folder / "sources")
    (path,) = made(folder / "sources", "wheel", "*.whl", **more)
    return zipfile.ZipFile(path)


def made(folder, what, names, **more):
    """What the backend that pyproject.toml names makes of a folder."""
    command = [sys.executable, "-c", f"import setuptools.build_meta; setuptools.build_meta.build_{what}('dist')"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=120, env=os.environ | more)
    return (folder / "dist").glob(names)


def held(wheel):
    """Its files but what pip wants to know, and of them those that were compiled."""
    names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    compiled = {name for name in names if name.endswith(".so")}
    return names - compiled, compiled


@pytest.fixture(scope="module")
def wheel(sources, tmp_path_factory):
    return built(sources, tmp_path_factory.mktemp("wheel"))


def expected():
    kept = {
        str(path.relative_to(ROOT))
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".yaml", ".json", ".cu", ".c", ".h", ".js", ".css", ".npz")
    }
    assert len([name for name in kept if name.endswith(".yaml")]) >= 12
    return kept | {"kilobatch.py", "trainers/datasets/digits.txt", "recipes/reports/uplot/LICENSE"}


def test_wheel_holds_exactly_the_code_and_the_yaml_of_the_checkout(wheel):
    assert held(wheel)[0] == expected()


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_wheel_holds_compiled_passes_that_load(wheel, tmp_path):
    names = sorted(held(wheel)[1])
    libraries = ["augmentations/_resampling", "communicators/_half", "kernels/cpu/_passes"]
    assert [name.split(".")[0] for name in names] == [f"trainers/{library}" for library in libraries]
    for name in names:
        assert ctypes.CDLL(wheel.extract(name, tmp_path)).serves() >= 0


def test_wheel_without_a_compiler_holds_the_rest(sources, tmp_path):
    assert held(built(sources, tmp_path, CC="/bin/false")) == (expected(), set())


def test_wheel_brings_the_command(wheel):
    (name,) = (name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    assert "kilobatch = kilobatch:main" in wheel.read(name).decode()

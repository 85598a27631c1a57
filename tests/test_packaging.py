"""A wheel of the checkout holds all code and all YAML, and starts with the `kilobatch` command."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("configs", "lr_schedules", "recipes", "trainers")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from a copy: setuptools leaves folders behind, whose files would enter the next wheel."""
    copy = tmp_path_factory.mktemp("checkout")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("kilobatch.py", "kilobatch_recipes.py", "pyproject.toml", "README.md"):
        shutil.copy(ROOT / file, copy)
    build = "import setuptools.build_meta; print(setuptools.build_meta.build_wheel('dist'))"
    subprocess.run([sys.executable, "-c", build], cwd=copy, check=True, capture_output=True, timeout=120)
    (path,) = (copy / "dist").glob("*.whl")
    return zipfile.ZipFile(path)


def test_wheel_holds_exactly_the_code_and_the_yaml_of_the_checkout(wheel):
    expected = {
        str(path.relative_to(ROOT))
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".yaml", ".cu")
    }
    assert len([name for name in expected if name.endswith(".yaml")]) >= 12
    held = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert held == expected | {"kilobatch.py", "kilobatch_recipes.py"}


def test_wheel_brings_the_command(wheel):
    (name,) = (name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    assert "kilobatch = kilobatch:main" in wheel.read(name).decode()

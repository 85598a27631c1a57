"""The arrows between the packages: lr_schedules <- recipes <- trainers <- kilobatch.py."""

import ast
import functools
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OURS = {"lr_schedules", "recipes", "trainers", "configs", "scripts", "kilobatch", "tests"}
MAY_IMPORT = {
    "lr_schedules": {"lr_schedules"},
    "recipes": {"lr_schedules", "recipes", "fsspec", "numpy", "yaml", "pydantic", "rfc8785"},
    "trainers": {"lr_schedules", "recipes", "trainers"}
    | {"chainer", "chainermn", "chainercv", "cupy", "mpi4py", "optuna", "numpy"}
    | {"PIL", "cv2", "simplejpeg", "rich", "safetensors", "sqlalchemy", "threadpoolctl", "torch", "typer"}
    | {"yaml", "cudnn", "fsspec", "mlflow", "nvidia", "onnx", "pyarrow", "scipy", "tensorboardX"},
}
PLOTS = "recipes/reports/plots/"
# The rooms of a package, floor by floor: a room imports from the floors below its own only.
FLOORS = {
    "trainers": (
        {"compat", "runs"},
        {"augmentations", "communicators", "kernels"},
        {"datasets", "gradients", "losses", "metrics", "models", "optimizers"},
        {"training"},
        {"launch"},
        {"tasks"},
        {"search"},
        {"frontier"},
        {"commands"},
    ),
    "recipes": (
        {"errors", "arguments", "extras"},
        {"schema"},
        {"planning", "sharing"},
        {"reading"},
        {"lint", "search_space", "reports"},
        {"scale"},
        {"cards", "frontiers"},
        {"diff"},
        {"packs"},
    ),
}


def imports_of(path):
    """(module, line) of every import, also those inside functions."""
    return _imports(path, path.read_text())


@functools.cache
def _imports(path, text):
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            found += [(f"{node.module}.{alias.name}", node.lineno) for alias in node.names]
    return found


def files_of(package):
    files = sorted((ROOT / package).rglob("*.py"))
    assert len(files) > 5
    return files


def strays(package, allowed):
    """Imports of a package that are neither the standard library's nor allowed."""
    forbidden = []
    for path in files_of(package):
        name = str(path.relative_to(ROOT))
        for module, line in imports_of(path):
            top = module.partition(".")[0]
            is_plot = name.startswith(PLOTS) and top == "matplotlib"
            if top not in allowed and top not in sys.stdlib_module_names and not is_plot:
                forbidden.append(f"{name}:{line}: {module}")
    return forbidden


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_package_imports_only_what_lies_to_its_left(package):
    assert strays(package, MAY_IMPORT[package]) == []


def test_configs_hold_no_code():
    assert list((ROOT / "configs").rglob("*.py")) == []


@pytest.mark.parametrize("package", FLOORS)
def test_rooms_import_only_from_floors_below(package):
    floor_of = {room: number for number, rooms in enumerate(FLOORS[package]) for room in rooms}
    there = {path.stem for path in (ROOT / package).iterdir() if not path.name.startswith("__")}
    assert there - {"papers"} == set(floor_of)
    upwards = []
    for path in files_of(package):
        room = path.relative_to(ROOT / package).parts[0].removesuffix(".py")
        for module, line in imports_of(path):
            parts = module.split(".")
            other = parts[1] if parts[0] == package and len(parts) > 1 else room
            if room != "__init__" and other != room and floor_of[other] >= floor_of[room]:
                upwards.append(f"{path.relative_to(ROOT)}:{line}: {module}")
    assert upwards == []


def test_nothing_is_imported_from_the_command_line():
    assert [
        f"{path.relative_to(ROOT)}:{line}"
        for package in MAY_IMPORT
        for path in files_of(package)
        for module, line in imports_of(path)
        if module.partition(".")[0] in OURS - set(MAY_IMPORT)
    ] == []


def test_the_scan_finds_a_forbidden_import(tmp_path, monkeypatch):
    """The test of this test: an import inside a function counts."""
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    (tmp_path / "recipes").mkdir()
    for number in range(6):
        (tmp_path / "recipes" / f"file_{number}.py").write_text("import json\n")
    assert strays("recipes", MAY_IMPORT["recipes"]) == []
    (tmp_path / "recipes" / "file_0.py").write_text(
        "def late():\n    from chainer import links\n    import trainers.training.build\n"
    )
    assert strays("recipes", MAY_IMPORT["recipes"]) == [
        "recipes/file_0.py:2: chainer.links",
        "recipes/file_0.py:3: trainers.training.build",
    ]

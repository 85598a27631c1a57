"""The arrows between the packages: lr_schedules <- recipes <- trainers <- kilobatch.py."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OURS = {"lr_schedules", "recipes", "trainers", "configs", "scripts", "kilobatch", "tests"}
MAY_IMPORT = {
    "lr_schedules": {"lr_schedules"},
    "recipes": {"lr_schedules", "recipes", "numpy", "yaml", "pydantic"},
    "trainers": {"lr_schedules", "recipes", "trainers"}
    | {"chainer", "chainermn", "chainercv", "cupy", "mpi4py", "optuna", "numpy"}
    | {"PIL", "rich", "safetensors", "sklearn", "sqlalchemy", "threadpoolctl", "torch", "typer", "yaml", "cudnn"},
}
PLOTS = "recipes/reports/plots/"
# The rooms of trainers, floor by floor: a room imports from the floors below its own only.
FLOORS = (
    {"compat", "runs"},
    {"augmentations", "communicators", "kernels"},
    {"datasets", "gradients", "losses", "models", "optimizers"},
    {"training"},
    {"launch"},
    {"search"},
    {"commands"},
)
FLOOR_OF = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
# Likewise of recipes; its two files of checks come before the rooms.
RECIPES_FLOORS = (
    {"errors", "arguments"},
    {"schema"},
    {"planning"},
    {"reading"},
    {"lint", "scale", "search_space", "reports"},
    {"cards"},
    {"diff"},
)
RECIPES_FLOOR_OF = {room: number for number, rooms in enumerate(RECIPES_FLOORS) for room in rooms}


def imports_of(path):
    """(module, line) of every import, also those inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def files_of(package):
    files = sorted((ROOT / package).rglob("*.py"))
    assert len(files) > 5
    return files


def strays(package, allowed):
    """Imports of a package that are neither the standard library's nor allowed."""
    found = []
    for path in files_of(package):
        name = str(path.relative_to(ROOT))
        for module, line in imports_of(path):
            top = module.partition(".")[0]
            is_plot = name.startswith(PLOTS) and top == "matplotlib"
            if top not in allowed and top not in sys.stdlib_module_names and not is_plot:
                found.append(f"{name}:{line}: {module}")
    return found


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_package_imports_only_what_lies_to_its_left(package):
    assert strays(package, MAY_IMPORT[package]) == []


def test_configs_hold_no_code():
    assert list((ROOT / "configs").rglob("*.py")) == []


def room_of(parts):
    return parts[0].removesuffix(".py") if parts else None


def test_rooms_of_trainers_import_only_from_floors_below():
    found = []
    for path in files_of("trainers"):
        room = room_of(path.relative_to(ROOT / "trainers").parts)
        for module, line in imports_of(path):
            parts = module.split(".")
            other = parts[1] if parts[0] == "trainers" and len(parts) > 1 else room
            if room != "__init__" and other != room and FLOOR_OF[other] >= FLOOR_OF[room]:
                found.append(f"{path.relative_to(ROOT)}:{line}: {module}")
    assert found == []


def test_these_are_all_rooms_of_trainers():
    rooms = {path.stem for path in (ROOT / "trainers").iterdir() if not path.name.startswith("__")}
    assert rooms == set(FLOOR_OF)


def test_rooms_of_recipes_import_only_from_floors_below():
    found = []
    for path in files_of("recipes"):
        room = room_of(path.relative_to(ROOT / "recipes").parts)
        for module, line in imports_of(path):
            parts = module.split(".")
            other = parts[1] if parts[0] == "recipes" else room
            if room != "__init__" and other != room and RECIPES_FLOOR_OF[other] >= RECIPES_FLOOR_OF[room]:
                found.append(f"{path.relative_to(ROOT)}:{line}: {module}")
    assert found == []


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

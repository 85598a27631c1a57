"""Where names are looked for, and in what order."""

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from recipes.reading import registry
from recipes.reading.registry import UnknownNameError, find, find_or_refuse, names, shown, typed


def test_library_comes_before_the_working_directory(write):
    write(name="goyal2017.yaml")
    assert find("recipes", "goyal2017").parent.name == "papers"
    assert shown(find("recipes", "goyal2017.yaml")) == "goyal2017.yaml"


@pytest.mark.parametrize("file", ["configs/recipes/own.yaml", "own.yaml", "own.yml", "configs/recipes/deep/own.yaml"])
def test_own_recipes_are_found_below_the_working_directory(write, file):
    path = write(name=file)
    name = "deep/own" if "deep" in file else "own"
    assert find("recipes", name).resolve() == path
    assert (name in names("recipes")) == file.startswith("configs")


def test_name_of_a_run_folder_finds_its_recipe():
    assert find("recipes", "digits-ramp") == find("recipes", "digits/ramp")


def test_the_folder_of_a_run_names_its_recipe_on_the_command_line_only(write):
    path = write(name="runs/a/recipe.yaml")
    assert find_or_refuse("recipes", "runs/a").resolve() == path
    with pytest.raises(UnknownNameError):
        find("recipes", "runs/a")  # as `extends` does


@pytest.mark.parametrize("name", ["../mine", "/mine", "digits/../../mine", ""])
def test_names_do_not_leave_their_folder(write, tmp_path, monkeypatch, name):
    write()
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    with pytest.raises(UnknownNameError):
        find("recipes", name)


@pytest.fixture
def install(write, tmp_path, monkeypatch):
    """Installs a package `acme` with some code and an entry point of recipes."""

    def installed(code, value="acme"):
        write(code, "site/acme/__init__.py")
        entry = EntryPoint(name="acme", value=value, group="kilobatch.recipes")
        monkeypatch.setattr(registry, "entry_points", lambda group: [entry] if group == entry.group else [])
        monkeypatch.syspath_prepend(tmp_path / "site")

    return installed


def test_recipes_of_an_installed_package_are_found_without_running_it(install, write):
    install("raise SystemExit('this package was run')\n")
    path = write(name="site/acme/deep/fast.yaml")
    assert find("recipes", "acme/deep/fast") == path
    assert "acme/deep/fast" in names("recipes")
    assert "acme" not in sys.modules


def test_a_package_that_is_installed_meanwhile_is_found(write, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(write("", "site/acme/__init__.py").parent.parent)
    write(name="site/acme/fast.yaml")
    assert "acme/fast" not in names("recipes")
    write("Metadata-Version: 2.1\nName: acme\nVersion: 1\n", "site/acme-1.dist-info/METADATA")
    write("[kilobatch.recipes]\nacme = acme\n", "site/acme-1.dist-info/entry_points.txt")
    assert "acme/fast" in names("recipes")


def test_a_path_that_begins_with_a_dash_can_be_typed():
    assert [typed(Path(name)) for name in ("-c.yaml", "a b.yaml", "/-c.yaml")] == [
        "./-c.yaml",
        "'a b.yaml'",
        "/-c.yaml",
    ]


@pytest.mark.parametrize("value", ["nowhere.recipes", "acme.recipes"])
def test_an_installed_package_that_is_broken_hides_no_other_recipe(install, value):
    install("1 / 0\n", value)
    assert "goyal2017" in names("recipes")
    with pytest.raises(UnknownNameError):
        find("recipes", "acme/fast")


def test_refusal_of_an_unknown_name_lists_the_nearest_or_all():
    with pytest.raises(UnknownNameError) as caught:
        find("clusters", "laptops")
    assert caught.value.way_out.startswith("did you mean laptop?")
    with pytest.raises(UnknownNameError) as caught:
        find("clusters", "qqqq")
    assert f"known clusters: {', '.join(names('clusters'))}" in caught.value.way_out

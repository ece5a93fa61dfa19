"""Implementations are found in packages, by import paths and by entry points."""

import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from flipbench.core.errors import ConfigError
from flipbench.core.registry import discover, entry_points, load_target


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Write a namespace package with a subpackage, neither with an ``__init__.py``."""
    root = tmp_path / "things_to_find"
    (root / "b_family" / "__pycache__").mkdir(parents=True)
    (root / "a_family").mkdir()
    (root / "zebra.py").write_text("NUMBER = 1\n")
    (root / "b_family" / "one.py").write_text("import no_such_package_at_all\n")
    (root / "a_family" / "two.py").write_text("from ..zebra import NUMBER\n")
    (root / "a_family" / "notes.txt").write_text("not a module\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield root.name
    for name in [name for name in sys.modules if name.startswith(root.name)]:
        del sys.modules[name]


def test_modules_of_subpackages_are_discovered_in_name_order(package: str, tmp_path: Path) -> None:
    (tmp_path / package / "b_family" / "one.py").write_text("NUMBER = 2\n")
    names = [module.__name__.removeprefix(f"{package}.") for module in discover(package)]
    assert names == ["zebra", "a_family.two", "b_family.one"]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("things_to_find.zebra", "not an import path"),
        ("things_to_find.zebra:", "not an import path"),
        ("../zebra.py:NUMBER", "not an import path"),
        ("things_to_fin.zebra:NUMBER", "no module 'things_to_fin'"),
        ("things_to_find.zebra.two:NUMBER", "no module 'things_to_find.zebra.two'"),
        ("things_to_find.zebr:NUMBER", "did you mean 'things_to_find.zebra'?"),
        ("things_to_find.zebra:NUMBERS", "has no 'NUMBERS'; did you mean 'NUMBER'?"),
        ("things_to_find.b_family.one:X", "needs the package 'no_such_package_at_all'"),
    ],
)
def test_a_target_that_does_not_exist_is_refused(package: str, target: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_target(target, "evaluate.detectors")
    assert message in str(error.value) and str(error.value).startswith("evaluate.detectors: ")


def test_a_module_in_the_current_folder_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless the user says so; until then the message says how."""
    monkeypatch.setattr("sys.path", [path for path in sys.path if path])
    (tmp_path / "beside_the_configuration.py").write_text("NUMBER = 3\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="the current folder is not searched: .*PYTHONPATH"):
        load_target("beside_the_configuration:NUMBER")
    assert str(tmp_path) not in sys.path and "beside_the_configuration" not in sys.modules
    monkeypatch.syspath_prepend(tmp_path)
    assert load_target("beside_the_configuration:NUMBER") == 3


def test_entry_points_are_loaded_by_name(
    tmp_path: Path, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "example-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: example\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[flipbench.things]\nnumber = {package}.zebra:NUMBER\nlost = {package}.zebra:LOST\n"
    )
    assert "example" in {found.name for found in metadata.distributions(path=[str(tmp_path)])}
    loaders = entry_points("flipbench.things")
    assert list(loaders) == ["lost", "number"] and loaders["number"]() == 1
    with pytest.raises(ConfigError, match="has no 'LOST'"):
        loaders["lost"]()

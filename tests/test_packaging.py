"""What an installed flipbench holds, and a checkout whose links are plain files."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LINKED = ("configs", "contaminate", "evaluate", "filters", "generate")


def tracked() -> list[str]:
    git = ["git", "-C", str(ROOT), "ls-files", "-z"]
    try:
        listed = subprocess.run(git, capture_output=True, text=True, check=True).stdout
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        pytest.skip(f"not a git checkout: {error}")
    return [name for name in listed.split("\0") if name and (ROOT / name).exists()]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the tracked files, in which links stay links."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in tracked():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    return folder


def build(source: Path, kind: str, out: Path) -> Path:
    """Build a ``wheel`` or an ``sdist`` of a source tree."""
    out.mkdir(exist_ok=True)
    code = f"from setuptools import build_meta as b; b.build_{kind}({str(out)!r})"
    done = subprocess.run([sys.executable, "-c", code], cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (made,) = out.iterdir()
    return made


def names_in(wheel: Path) -> set[str]:
    return {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}


@pytest.fixture(scope="module")
def sdist(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the unpacked source distribution."""
    folder = tmp_path_factory.mktemp("sdist")
    with tarfile.open(build(checkout, "sdist", folder / "dist")) as archive:
        archive.extractall(folder, filter="data")
    return next(folder.glob("flipbench-*"))


@pytest.fixture(scope="module")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(checkout, "wheel", tmp_path_factory.mktemp("wheel"))


@pytest.mark.slow
def test_a_wheel_holds_every_file_of_the_package_and_no_other(wheel: Path) -> None:
    expected = set()
    for name in tracked():
        top = name.partition("/")[0]
        if top in LINKED:
            expected.add(f"flipbench/{name}")
        elif top == "flipbench" and not (ROOT / name).is_symlink():
            expected.add(name)
    assert "flipbench/configs/generate/any-tsv.yaml" in expected
    assert names_in(wheel) == expected


@pytest.mark.slow
def test_a_source_distribution_builds_the_same_wheel(
    sdist: Path, wheel: Path, tmp_path: Path
) -> None:
    again = build(sdist, "wheel", tmp_path / "again")
    assert names_in(again) == names_in(wheel)
    one, other = zipfile.ZipFile(wheel), zipfile.ZipFile(again)
    assert all(one.read(name) == other.read(name) for name in names_in(wheel))


@pytest.mark.slow
def test_what_the_docs_refer_to_is_in_the_source_distribution(sdist: Path) -> None:
    pages = [*sdist.glob("docs/*.md"), sdist / "README.md", sdist / "CONTRIBUTING.md"]
    assert len(pages) > 10
    folders = "configs|docs|benchmarks|examples|studies|tests"
    texts = {page.name: page.read_text() for page in pages}
    missing = [
        (page, name)
        for page, text in texts.items()
        for name in re.findall(
            rf"(?<![\w/.-])(?:{folders})/[\w./-]+\.(?:yaml|md|py|png|ipynb)", text
        )
        if not (sdist / name).exists() and (ROOT / name).exists()
    ]
    assert missing == []


@pytest.mark.slow
def test_an_installed_flipbench_finds_its_configurations(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    code = (
        "import flipbench; from flipbench.config.experiment import load_config as load;"
        "print(flipbench.__file__, load('configs/shapes.yaml').benchmark.n_items,"
        " load('configs/contaminate/shapes.yaml').benchmark.n_items,"
        " load('configs/generate/any-tsv.yaml').generate.editor.kind)"
    )
    env = os.environ | {"PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert done.stderr == ""
    assert done.stdout.split() == [
        str(tmp_path / "site" / "flipbench" / "__init__.py"),
        "480",
        "120",
        "flux-controlnet",
    ]


@pytest.fixture
def import_copy(tmp_path: Path) -> Callable[[], subprocess.CompletedProcess[str]]:
    """Copy ``flipbench/__init__.py`` and links beside it, and import that."""
    (tmp_path / "flipbench").mkdir()
    shutil.copy(ROOT / "flipbench" / "__init__.py", tmp_path / "flipbench")
    for name in LINKED:
        (tmp_path / name).mkdir()
        (tmp_path / "flipbench" / name).symlink_to(f"../{name}")

    def run() -> subprocess.CompletedProcess[str]:
        env = os.environ | {"PYTHONPATH": str(tmp_path)}
        command = [sys.executable, "-c", "import flipbench; print(flipbench.__file__)"]
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)

    return run


def test_a_checkout_whose_links_are_plain_files_says_so_at_import(
    import_copy: Callable[[], subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    whole = import_copy()
    assert whole.returncode == 0 and whole.stdout.startswith(str(tmp_path))
    for name in ("evaluate", "configs"):  # as git writes a link where it may not make one
        (tmp_path / "flipbench" / name).unlink()
        (tmp_path / "flipbench" / name).write_text(f"../{name}")
    broken = import_copy()
    assert broken.returncode == 1
    last = broken.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: flipbench/configs flipbench/evaluate: ")
    assert "git config core.symlinks true" in last
    assert "git checkout -- flipbench/configs flipbench/evaluate'" in last


def test_every_link_of_the_package_is_checked_at_import() -> None:
    links = sorted(path.name for path in (ROOT / "flipbench").iterdir() if path.is_symlink())
    assert links == sorted(LINKED)


def test_every_extra_is_described() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    page = (ROOT / "docs" / "install.md").read_text()
    described = set(re.findall(r"^\| `(\w+)` \|", page, re.M))
    assert described == set(extras["optional-dependencies"])

"""Who may import whom, and that our folders hide no other package."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
STAGES = ("generate", "filters", "contaminate", "evaluate")
KNOW_THE_STAGES = (
    "auditing.py",
    "backends.py",
    "cli.py",
    "demo.py",
    "detection.py",
    "detectors.py",
    "commands/",
    "contamination.py",
    "evaluation.py",
    "loop.py",
    "training_exports.py",
    "raters.py",
    "shapes/",
    "twins.py",
)
MAX_LINES = 400


def imported_modules(source: str, package: str) -> set[str]:
    """Return the full names of all that ``source``, a module of ``package``, imports anywhere."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) + 1 - node.level]
            base = ".".join([*(parents if node.level else []), *filter(None, [node.module])])
            found |= {base} | {f"{base}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            found |= {str(a.value) for a in node.args if isinstance(a, ast.Constant)}
    return found


def stages_imported(source: str, package: str) -> set[str]:
    """Return the stages that ``source`` imports as ``flipbench.<stage>``.

    A bare ``generate``, ``filters`` or ``contaminate`` counts too: it works from the repository
    root only. A bare ``evaluate`` is another project's package.
    """
    names = {
        name.removeprefix("flipbench.").split(".")[0]
        for name in imported_modules(source, package)
        if name.startswith("flipbench.") or name.split(".")[0] in STAGES[:3]
    }
    return names & set(STAGES)


def spine_files() -> list[Path]:
    """Return the modules of flipbench that must not know the stages."""
    found = []
    for folder, names, files in os.walk(ROOT / "flipbench"):  # follows no link, so no stage
        names[:] = [name for name in names if name != "__pycache__"]
        found += [Path(folder, file) for file in files if file.endswith(".py")]
    relative = [path.relative_to(ROOT / "flipbench") for path in found]
    return sorted(p for p in relative if not p.as_posix().startswith(KNOW_THE_STAGES))


def stage_files() -> Iterator[tuple[str, Path]]:
    for stage in STAGES:
        for path in sorted((ROOT / stage).rglob("*.py")):
            yield stage, path.relative_to(ROOT / stage)


@pytest.mark.parametrize(
    ("source", "package", "expected"),
    [
        ("import flipbench.filters.judging", "flipbench.generate", {"filters"}),
        ("from flipbench.filters import judge", "flipbench.generate", {"filters"}),
        ("from flipbench import filters, run", "flipbench.generate", {"filters"}),
        ("from ..filters import judge", "flipbench.generate", {"filters"}),
        ("from .. import evaluate", "flipbench.generate", {"evaluate"}),
        ("from ...evaluate.grid import x", "flipbench.generate.deep", {"evaluate"}),
        ("def f():\n    import flipbench.contaminate", "flipbench", {"contaminate"}),
        ("importlib.import_module('flipbench.evaluate.protocol.grid')", "flipbench", {"evaluate"}),
        ("from filters.judge import Judge", "flipbench.generate", {"filters"}),
        ("from flipbench.core.run import Run", "flipbench.generate", set()),
        ("from .flip import draw", "flipbench.generate", {"generate"}),
        ("import evaluate", "flipbench.generate", set()),
        ("# flipbench.filters\nx = 'flipbench.filters'", "flipbench.generate", set()),
        ("from flipbench.evaluated import x", "flipbench.generate", set()),
    ],
)
def test_the_check_sees_every_kind_of_import(source: str, package: str, expected: set[str]) -> None:
    assert stages_imported(source, package) == expected


def test_no_stage_imports_another() -> None:
    offenders = {
        f"{stage}/{path}": sideways
        for stage, path in stage_files()
        if (
            sideways := stages_imported(
                (ROOT / stage / path).read_text(),
                ".".join(["flipbench", stage, *path.parent.parts]),
            )
            - {stage}
        )
    }
    assert offenders == {}


def test_the_spine_imports_no_stage() -> None:
    files = spine_files()
    assert {Path("run.py"), Path("stage.py"), Path("models/protocols.py")} <= set(files)
    offenders = {
        str(path): stages
        for path in files
        if (
            stages := stages_imported(
                (ROOT / "flipbench" / path).read_text(),
                ".".join(["flipbench", *path.parent.parts]),
            )
        )
    }
    assert offenders == {}


@pytest.mark.parametrize("stage", STAGES)
def test_stage_folders_are_linked_and_are_no_packages(stage: str) -> None:
    assert (ROOT / stage).is_dir()
    assert not (ROOT / stage).is_symlink()
    assert list((ROOT / stage).rglob("__init__.py")) == []
    link = ROOT / "flipbench" / stage
    assert link.is_symlink()
    assert os.readlink(link) == f"../{stage}"


def package_found_first(root: Path, elsewhere: Path) -> str:
    """Return the text of the ``evaluate`` that Python finds from ``root``, then ``elsewhere``."""
    code = "import evaluate; print(getattr(evaluate, 'WHOSE', evaluate.__path__))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=root,  # first on the path of `python -c`
        env=os.environ | {"PYTHONPATH": str(elsewhere)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_the_evaluate_package_of_others_is_not_hidden(tmp_path: Path) -> None:
    (tmp_path / "others" / "evaluate").mkdir(parents=True)
    (tmp_path / "others" / "evaluate" / "__init__.py").write_text("WHOSE = 'theirs'\n")
    assert package_found_first(ROOT, tmp_path / "others") == "theirs"

    # with an __init__.py ours would be found first
    (tmp_path / "wrong" / "evaluate").mkdir(parents=True)
    (tmp_path / "wrong" / "evaluate" / "__init__.py").write_text("WHOSE = 'ours'\n")
    assert package_found_first(tmp_path / "wrong", tmp_path / "others") == "ours"


def test_stages_are_found_below_flipbench() -> None:
    code = "import flipbench.evaluate, flipbench.generate; print(*flipbench.evaluate.__path__)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd="/", capture_output=True, text=True, check=True
    )
    assert Path(done.stdout.strip()).resolve() == ROOT / "evaluate"


def test_no_file_is_longer_than_a_reader_s_patience() -> None:
    git = ["git", "-C", str(ROOT), "ls-files", "-z", "*.py"]
    try:
        listed = subprocess.run(git, capture_output=True, text=True, check=True).stdout
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        pytest.skip(f"not a git checkout: {error}")
    paths = [ROOT / name for name in listed.split("\0") if name]
    assert paths
    lengths = {p: len(p.read_text().splitlines()) for p in paths if p.exists()}
    assert {str(p): n for p, n in lengths.items() if n > MAX_LINES} == {}

"""The rooms of the house: which may import which, and what hides nothing."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
STAGES = ("generate", "filters", "contaminate", "evaluate")

SPINE = ("core", "prompting", "reporting", "benchmarks", "config")
MODELS = (*SPINE, "models", "models/chat", "models/vlm")
BASE = (*MODELS, "shapes")
SCORING = ("evaluate/statistics", "evaluate/protocol", "evaluate/scoring")
FAMILIES = tuple(
    f"evaluate/detectors/{family}"
    for family in ("perturbation", "completion", "likelihood", "grounding", "several_models")
)
JUDGED = (*SCORING, "evaluate/detectors", *FAMILIES, "evaluate/validation")
EVERYTHING = ("*",)

MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "core": (),
    "prompting": ("core",),
    "reporting": ("core", "prompting"),
    "benchmarks": ("core", "prompting"),
    "export": ("core", "prompting", "reporting", "benchmarks"),
    "config": ("core", "prompting", "benchmarks"),
    "distributed": ("core", "config"),
    "models": ("core",),
    "models/chat": ("core", "prompting", "config"),
    "models/vlm": ("core", "prompting", "config", "models", "models/chat"),
    "models/serving": ("core", "config", "models", "models/vlm"),
    "shapes": ("core", "prompting", "models"),
    "generate": (*BASE, "generate/captioners", "generate/editors"),
    "generate/captioners": BASE,
    "generate/editors": BASE,
    "filters": (*BASE, "filters/judges"),
    "filters/judges": BASE,
    "filters/agreement": (*BASE, "filters", "filters/audit/corpus_overlap"),
    "filters/review": (*BASE, "filters", "filters/audit/corpus_overlap"),
    "filters/audit": BASE,
    "filters/audit/corpus_overlap": BASE,
    "contaminate": (*BASE, "contaminate/data"),
    "contaminate/data": BASE,
    "contaminate/checks": (*BASE, "contaminate", "contaminate/data"),
    "contaminate/training": (*BASE, "contaminate", "contaminate/data", "contaminate/checks"),
    "contaminate/backends": (
        *BASE,
        "contaminate",
        "contaminate/data",
        "contaminate/checks",
        "contaminate/training",
    ),
    "evaluate": (*MODELS, "evaluate/protocol"),
    "evaluate/statistics": ("core",),
    "evaluate/protocol": (*MODELS, "evaluate/statistics"),
    "evaluate/scoring": (*MODELS, "evaluate/statistics", "evaluate/protocol"),
    **{family: (*MODELS, *SCORING) for family in FAMILIES},
    "evaluate/detectors/several_models": (
        *MODELS,
        *SCORING,
        "evaluate/detectors/perturbation",
    ),
    "evaluate/detectors": (*MODELS, *SCORING, *FAMILIES),
    "evaluate/cohort": ("core", "reporting", "benchmarks", "config", "evaluate/statistics"),
    "evaluate/validation": (*SPINE, "evaluate/statistics", "evaluate/protocol"),
    "evaluate/report": (*SPINE, *JUDGED),
    "evaluate/page": (*SPINE, *JUDGED, "evaluate/report"),
    "evaluate/diagnosis": (*MODELS, *SCORING, "evaluate/report"),
    "evaluate/verdict": (
        *MODELS,
        *JUDGED,
        "evaluate/report",
        "evaluate/page",
        "evaluate/diagnosis",
    ),
    "evaluate/predictions": (*MODELS, *SCORING, "evaluate/report", "evaluate/verdict"),
    "evaluate/reasoning": (*MODELS, "evaluate/statistics"),
    "evaluate/published": (*SPINE, *JUDGED),
    "studies": EVERYTHING,
    "studies/confound": EVERYTHING,
    "studies/population": EVERYTHING,
    "studies/published": EVERYTHING,
    "studies/tiny_models": (*MODELS, "shapes"),
    "studies/tiny_models/flux": (*MODELS, "shapes"),
    "api": EVERYTHING,
    "api/stages": EVERYTHING,
    "commands": EVERYTHING,
    "": EVERYTHING,
}
"""Which room may import which; a room may always import itself. ``""`` holds the entry points."""

FORBIDDEN_TO_ALL = {
    "api/stages": {"api", "commands"},
    "api": {"commands"},
}


def room_of(file: str) -> str:
    """Return the room of a file, named by its path below the repository or below ``flipbench``."""
    return str(Path(file).parent.as_posix()).removeprefix("flipbench").strip("./")


@cache
def modules() -> dict[str, str]:
    """Return every product file by its module's name."""
    names = {}
    for top in ("flipbench", "studies", *STAGES):
        for folder, subfolders, files in os.walk(ROOT / top):  # follows no link, so no stage twice
            subfolders[:] = [name for name in subfolders if name != "__pycache__"]
            for path in (Path(folder, name) for name in files if name.endswith(".py")):
                file = path.relative_to(ROOT)
                parts = [
                    *(["flipbench"] if top in STAGES else []),
                    *file.with_suffix("").parts,
                ]
                names[".".join(parts).removesuffix(".__init__")] = file.as_posix()
    return names


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


@cache
def arrows() -> dict[str, dict[str, set[str]]]:
    """Return, by room, the rooms it imports and by which files."""
    known, found = modules(), {}
    for module, file in known.items():
        package = module if file.endswith("__init__.py") else module.rpartition(".")[0]
        for name in imported_modules((ROOT / file).read_text(), package):
            target = known.get(name)
            if target is None or target == "flipbench/__init__.py":
                continue
            here, there = room_of(file), room_of(target)
            if here != there:
                found.setdefault(here, {}).setdefault(there, set()).add(file)
    return found


def test_every_room_is_in_the_table() -> None:
    rooms = {room_of(file) for file in modules().values()}
    assert rooms == set(MAY_IMPORT)


@pytest.mark.parametrize("room", sorted(MAY_IMPORT))
def test_a_room_imports_only_what_the_table_allows(room: str) -> None:
    allowed = set(MAY_IMPORT[room])
    forbidden = {
        there: sorted(files)
        for there, files in arrows().get(room, {}).items()
        if (there not in allowed and "*" not in allowed)
        or there in FORBIDDEN_TO_ALL.get(room, set())
    }
    assert forbidden == {}


def test_no_two_rooms_import_each_other() -> None:
    def reachable(room: str, seen: set[str]) -> set[str]:
        for there in arrows().get(room, {}):
            if there not in seen:
                seen.add(there)
                reachable(there, seen)
        return seen

    assert [room for room in MAY_IMPORT if room in reachable(room, set())] == []


def test_a_stage_never_imports_another() -> None:
    crossings = {
        (here, there)
        for here, targets in arrows().items()
        for there in targets
        if here.split("/")[0] in STAGES
        and there.split("/")[0] in STAGES
        and here.split("/")[0] != there.split("/")[0]
    }
    assert crossings == set()


def test_nothing_that_is_installed_imports_a_study() -> None:
    importing = {
        (here, there)
        for here, targets in arrows().items()
        for there in targets
        if there.startswith("studies") and not here.startswith("studies")
    }
    assert importing == set()


def test_imports_are_relative_at_home_and_absolute_abroad() -> None:
    offenders = []
    for module, file in modules().items():
        stage = file.split("/")[0]
        for node in ast.walk(ast.parse((ROOT / file).read_text())):
            if not isinstance(node, ast.ImportFrom):
                continue
            absolute_at_home = stage in STAGES and (node.module or "").startswith(
                (f"flipbench.{stage}.", f"{stage}.")
            )
            if absolute_at_home and node.level == 0 or (stage not in STAGES and node.level):
                offenders.append(f"{module}:{node.lineno}")
    assert offenders == []


def test_every_room_documents_what_lives_there() -> None:
    silent = []
    for room in sorted(MAY_IMPORT):
        top = room.split("/")[0]
        folder = ROOT / room if top in (*STAGES, "studies") else ROOT / "flipbench" / room
        readme, init = folder / "README.md", folder / "__init__.py"
        text = readme.read_text() if readme.exists() else ""
        if not text and init.exists():
            text = ast.get_docstring(ast.parse(init.read_text())) or ""
        if room and len(text.strip().splitlines()) < 3:
            silent.append(room)
    assert silent == []


@pytest.mark.parametrize("stage", STAGES)
def test_stage_folders_are_linked_and_are_not_packages(stage: str) -> None:
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


def test_the_evaluate_package_of_hugging_face_is_not_shadowed(tmp_path: Path) -> None:
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

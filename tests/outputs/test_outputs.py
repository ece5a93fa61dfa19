"""What users see: every line, table and page of the main commands is a text in ``golden/``.

Where a change is meant, ``FLIPBENCH_GOLDEN=write pytest tests/outputs`` writes the texts anew.
"""

from __future__ import annotations

import difflib
import os
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from transformers.utils import is_torchvision_available

import flipbench as fb
from flipbench.core.paired import PairedBenchmark
from flipbench.shapes import demos
from tests.fixtures.command_line import Flipbench
from tests.fixtures.stored_run import unpack
from tests.outputs.visible_text import visible_text
from tests.pipelines.test_stored_jobs import DETECT
from tests.pipelines.test_stored_run import KEPT, SAME_QUESTIONS

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
GOLDEN = HERE / "golden"
REWRITE = "run `FLIPBENCH_GOLDEN=write pytest tests/outputs`"
WRITE = os.environ.get("FLIPBENCH_GOLDEN") == "write"
PACKAGES = (
    "flipbench|python|torch|transformers|peft|trl|accelerate|diffusers|datasets|numpy|pillow"
    "|opencv-python-headless"
)
MASKED = {
    r"\x1b\[[\d;]*m": "",
    r"\b[\d.]+ [TG]FLOP/s": "N FLOP/s",
    r" *(?<![\w.,])[\d.,]+ (s|min|h)\b": " N s",
    rf'\b({PACKAGES})("?:|\n| v?) *"?\d+\.\d+\.\d+[^"\s]*': r"\1\2 VERSION",
}
"""What another machine, day or release says otherwise."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        is_torchvision_available(), reason="torchvision prepares pictures otherwise"
    ),
]


@dataclass(frozen=True)
class Session:
    """Commands, and the files they write that people read."""

    commands: tuple[tuple[str, ...], ...]
    files: tuple[str, ...] = ()
    on_terminal: bool = False


FILES = ("index.html", "*.md", "*.csv", "*.tex")
RUN = ("shapes.yaml", KEPT, SAME_QUESTIONS)
SUSPECT = tuple(f"predictions/suspect-{side}.csv" for side in ("original", "perturbed"))
CLEAN = [f"predictions/{name}-original.csv,predictions/{name}-perturbed.csv"
         for name in ("clean", "clean-2")]  # fmt: skip
JUDGED = ("--judged-by", "two people")
SESSIONS = {
    "demo": Session(
        tuple(("demo", *size, "--dry-run") for size in ((), ("--small",), ("--diffusion",)))
    ),
    "demo-small": Session(
        (("demo", "--small", "--quiet"),),
        tuple(f"runs/demo-small/report/{name}" for name in ("index.html", "*.md")),
        on_terminal=True,
    ),
    "run": Session(
        (("run", *RUN, "--dry-run"), ("run", *RUN, "--quiet")),
        tuple(f"runs/shapes/{folder}/{name}" for folder in ("report", "filter") for name in FILES),
    ),
    "stages": Session(
        (
            *((stage, "shapes.yaml", KEPT, "--dry-run") for stage in
              ("generate", "filter", "contaminate", "evaluate")),
            ("generate", "shapes.yaml", "seed=4", "benchmark.n_items=12", "--dry-run"),
            ("run", "pairs.yaml", "--dry-run"),
            ("import", "discs.yaml"),
        ),
    ),
    "grid": Session(
        (("evaluate", "planted.yaml", "--dry-run"), ("evaluate", "planted.yaml", "--quiet"),
         ("card", "runs/planted")),
        tuple(f"runs/planted/report/{name}" for name in FILES),
        on_terminal=True,
    ),
    "detect": Session(
        ((*DETECT, "--dry-run"), (*DETECT, "--quiet"), ("card", "runs/detect")),
        tuple(f"runs/detect/report/{name}" for name in (*FILES, "verdict.json")),
    ),
    "gap": Session(
        (
            ("gap", *SUSPECT),
            ("gap", *SUSPECT, *JUDGED, "--reference", CLEAN[0], "--reference", CLEAN[1], "--sign"),
            *(("gap", *SUSPECT, *JUDGED, "--format", form) for form in ("csv", "latex", "json")),
            ("gap", *CLEAN[0].split(","), *JUDGED, "--sequential", "--model", "heron"),
        )
    ),
    "audit": Session(
        (("audit", "audit.yaml", "--dry-run"), ("audit", "audit.yaml", "--quiet"),
         ("review", "audit.yaml", "--flagged", "--agreement")),
        tuple(f"runs/audit/audit/{name}" for name in FILES),
    ),
    "validate": Session(
        (
            ("validate", "example", "--example"),
            ("validate", "example/models.csv", "--items", "example/items.csv", "--out", "out"),
        ),
        tuple(f"out/{name}" for name in ("index.html", "*.md")),
    ),
    "people": Session(
        (
            ("review", "discs.yaml", "--agreement"),
            ("filter", "discs.yaml", "--limit", "8", "--quiet"),
            ("review", "runs/discs", "--export", "verdicts.csv"),
            ("review", "runs/discs", "--doubtful", "--export", "doubtful.csv"),
        ),
        ("runs/discs/filter/*.md", "runs/discs/filter/*.csv", "verdicts.csv", "doubtful.csv"),
    ),
}  # fmt: skip


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with stored jobs, and with a grid of models whose memory is planted."""
    monkeypatch.syspath_prepend(ROOT)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # for workers, which import models of tests, too
    unpack(tmp_path, jobs=True)
    shutil.copy(HERE / "planted.yaml", tmp_path)
    benchmark = PairedBenchmark.load(tmp_path / "discs")
    few = replace(benchmark, pairs=benchmark.pairs[:24])
    few.save(tmp_path / "runs" / "planted" / "benchmark")
    return tmp_path


def masked(text: str) -> str:
    """Mask what varies, and round numbers, whose last digits depend on the processor."""
    for pattern, mask in MASKED.items():
        text = re.sub(pattern, mask, text)
    return re.sub(r"-?\d+\.\d{7,}(e-\d+)?", lambda number: f"{float(number[0]):.6g}", text)


def assert_golden(name: str, texts: Mapping[str, str]) -> None:
    """Compare texts with those in the golden folder ``name``, all of them."""
    folder = GOLDEN / name
    texts = {file: masked(text) for file, text in texts.items()}
    if WRITE:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for file, text in texts.items():
            (folder / file).write_text(text)
    stored = {path.name: path.read_text() for path in folder.iterdir()}
    diff = [
        line
        for file in sorted(stored.keys() | texts.keys())
        for line in difflib.unified_diff(
            stored.get(file, "").splitlines(),
            texts.get(file, "").splitlines(),
            f"golden/{name}/{file}",
            f"today's {file}",
            lineterm="",
            n=1,
        )
    ]
    shown = [line if len(line) < 2000 else f"{line[:2000]} …" for line in diff]
    assert not diff, "\n".join([f"users see other texts; if that is meant, {REWRITE}", *shown])


@pytest.fixture(autouse=True)
def quick_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the demo ask models that need no training; a dry run describes the real one."""
    demo_of = demos.demo_of

    def quick_demo_of(**options: bool) -> demos.Demo:
        demo = demo_of(**options)
        return demo if "--dry-run" in sys.argv else replace(demo, file=HERE / "demo.yaml")

    monkeypatch.setattr(demos, "demo_of", quick_demo_of)


@pytest.mark.parametrize("name", SESSIONS)
def test_commands_say_and_write_what_they_did(
    name: str, stored: Path, flipbench: Flipbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    if SESSIONS[name].on_terminal:
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setattr(type(sys.stdout), "isatty", lambda self: True)
    said = []
    for command in SESSIONS[name].commands:
        result = flipbench(*command)
        said += [f"$ flipbench {' '.join(command)}", result.out, result.err]
        said.append(f"exit status {result.status}\n")
    texts = {"terminal.txt": "\n".join(said)}
    for pattern in SESSIONS[name].files:
        for path in sorted(stored.glob(pattern)):
            text = path.read_text()
            is_page = path.suffix == ".html"
            file = f"{path.name}.txt" if is_page else path.name
            assert file not in texts
            texts[file] = visible_text(text) if is_page else text
    assert_golden(name, texts)


def two_files(pair: str) -> tuple[str, str]:
    original, _, perturbed = pair.partition(",")
    return original, perturbed


def test_a_notebook_shows_a_verdict_and_a_gap(stored: Path, flipbench: Flipbench) -> None:
    job: dict[str, Any] = {"run": "runs/detect", "limit": 8, "diagnose": True, "progress": False}
    results: dict[str, fb.DetectionResult | fb.GapResult] = {
        "detect": fb.detect(DETECT[2], "discs", "shapes:llava", **job),
        "gap": fb.gap(*SUSPECT, reference=list(map(two_files, CLEAN)), judged_by="two people"),
        "gap-alone": fb.gap(*SUSPECT),
    }
    texts = {}
    for name, result in results.items():
        frame = result.to_frame().to_csv(index=False)
        texts[f"{name}.txt"] = f"{result!r}\n{visible_text(result._repr_html_())}\n{frame}"
    assert_golden("notebook", texts)

"""The whole loop: every stage in order, for a configured experiment and for ``flipbench demo``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from flipbench.api.stages.assembly import Assembly
from flipbench.api.stages.contamination import contaminate, plan_contamination
from flipbench.api.stages.evaluation import count_work, evaluate
from flipbench.api.stages.filtering import make_pairs, plan_pairs
from flipbench.api.stages.results import EvaluationResult
from flipbench.config.experiment import Config, ShapesSpec, load_config
from flipbench.distributed.workers import default_workers
from flipbench.shapes.demos import Demo
from flipbench.shapes.other import write_corpus


def run_all(assembly: Assembly, notes: Sequence[str] = ()) -> EvaluationResult:
    """Run every stage in order; return the evaluation with the reports of all stages."""
    _, reports = make_pairs(assembly)
    benchmark = assembly.kept_pairs  # before hours of training
    plans = contaminate(assembly)
    evaluated = evaluate(assembly, benchmark, plans, notes)
    return replace(evaluated, reports=[*reports, *evaluated.reports])


def plan_all(assembly: Assembly) -> list[str]:
    """Return the remaining work of every stage and its cost, for ``--dry-run``.

    Questions depend on which pairs are kept, so they are counted after filtering; so is training
    on kept pairs only.
    """
    lines = plan_pairs(assembly)
    if assembly.benchmark_folder.exists() and (pairs := assembly.pairs).pairs:
        return [*lines, *plan_contamination(assembly), *count_work(assembly, pairs)]
    later = "counted once 'flipbench filter' has kept pairs"
    if assembly.config.contaminate.items == "kept":
        return [*lines, f"training and questions: {later}"]
    return [*lines, *plan_contamination(assembly), f"questions: {later}"]


def describe_demo(demo: Demo, out: Path) -> list[str]:
    """Return what the demo does, how long it takes, and where it writes."""
    config = load_config(demo.file, demo.overrides)
    assert isinstance(config.benchmark, ShapesSpec)
    grid, n_models = config.contaminate, len(config.models)
    n_trained = n_models * len(grid.strategies)
    n_asked = n_models + 2 * n_trained * grid.epochs
    drawn_by = "a diffusion model" if "--diffusion" in demo.options else "a template"
    return [
        f"1. {config.benchmark.n_items} questions about drawn scenes, redrawn by {drawn_by} so that"
        " another answer is right",
        f"2. tiny models fine-tuned: {n_trained} on these questions, {n_trained} on others as"
        f" controls ({', '.join(grid.strategies)})",
        f"3. {n_asked} models asked by {len(config.evaluate.detectors)} detectors, and a page:"
        f" {out}/report/index.html",
        f"Takes {demo.takes}; no GPU, key or download.",
    ]


def configure_demo(demo: Demo, out: Path) -> Config:
    """Return a demo's configuration; the controls' data are written to ``out``."""
    overrides = [f"run={json.dumps(str(out))}", *demo.overrides]
    config = load_config(demo.file, overrides)
    n_items = config.benchmark.n_items if isinstance(config.benchmark, ShapesSpec) else 0
    copies = config.contaminate.copies
    corpus = write_corpus(out / f"other-shapes-{n_items}x{copies}", n_items, copies=copies)
    data = {"verbatim": {}, "control": {"copies": 0, "corpus": {"path": str(corpus)}}}
    return load_config(demo.file, [*overrides, f"contaminate.data={json.dumps(data)}"])


def run_demo(demo: Demo, out: Path, *, progress: bool = True) -> EvaluationResult:
    """Run a demo into ``out``; what an earlier run left there is not done again."""
    config = configure_demo(demo, out)
    command = " ".join(["flipbench demo", *demo.options])
    opened = partial(Assembly.open, config, progress=progress, command=command)
    if config.generate.editor.kind == "shapes":
        make_pairs(opened())  # before a worker had started, the pictures are drawn
    return run_all(opened(n_workers=default_workers()), demo.notes)

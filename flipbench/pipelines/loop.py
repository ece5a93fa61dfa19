"""The whole loop: every stage in order, for a configured experiment and for ``flipbench demo``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from flipbench.config.experiment import Config, ShapesSpec, load_config
from flipbench.core.workers import default_workers
from flipbench.pipelines.assembly import Assembly
from flipbench.pipelines.contamination import contaminate, plan_contamination
from flipbench.pipelines.evaluation import Evaluated, count_work, evaluate
from flipbench.pipelines.filtering import make_pairs, plan_filtering
from flipbench.shapes.other import write_corpus

DEMO = Path(__file__).parents[1] / "shapes" / "demo.yaml"
DIFFUSION_DEMO = DEMO.with_name("demo-diffusion.yaml")
SMALL_DEMO = (
    "benchmark.n_items=60",
    "contaminate.epochs=1",
    "contaminate.copies=2",
)
DEMO_NOTES = (
    "Everything here is real but small: two VLMs of about two million weights each, trained on"
    " other scenes of the same world, contaminated with trl and peft, and run with transformers.",
    "The original of each pair is chosen by a coin toss from two scenes that differ only in the"
    " answer, so a clean model's gap has expectation zero. Edits of real photographs carry no such"
    " guarantee.",
    "Learning rates and copies were chosen by eye from earlier results on the same items, so that"
    " the gap would show. The tables say which detectors notice such training, not how large an"
    " effect other training would have.",
    "The controls were fine-tuned in the same way as the contaminated models, on as many questions"
    " about other scenes: a detector that flags one raises a false alarm. They descend from two"
    " clean models and one seed, so the page shows how the method works and what it costs; it does"
    " not measure how often a detector errs on models in general.",
)
DIFFUSION_NOTES = (
    "The originals are rendered; the perturbed pictures are drawn by a tiny Flux with a ControlNet"
    " from the originals' edges and a caption. The two kinds of pictures differ, so a clean model's"
    " gap need not have expectation zero: compare its gap with those of the rules that take a clean"
    " model for reference, and with old-answer attraction.",
    "An oracle that reads the pixels keeps a pair if every cell can be read and the new answer is"
    " true; what it drops is in filter/reasons.csv of the run.",
    DEMO_NOTES[0],
    *DEMO_NOTES[2:],
)


def run_all(assembly: Assembly, notes: Sequence[str] = ()) -> Evaluated:
    """Run every stage in order; return the evaluation with the reports of all stages."""
    benchmark, reports = make_pairs(assembly)
    trained = contaminate(assembly)
    evaluated = evaluate(assembly, benchmark, trained, notes)
    return replace(evaluated, reports=[*reports, *evaluated.reports])


def plan_all(assembly: Assembly) -> list[str]:
    """Return the remaining work of every stage and its cost, for ``--dry-run``.

    Questions depend on which pairs are kept, so they are counted after filtering; so is training
    on kept pairs only.
    """
    lines = plan_filtering(assembly)
    if assembly.benchmark_folder.exists():
        return [*lines, *plan_contamination(assembly), *count_work(assembly, assembly.pairs)]
    later = "counted once 'flipbench filter' has kept pairs"
    if assembly.config.contaminate.items == "kept":
        return [*lines, f"training and questions: {later}"]
    return [*lines, *plan_contamination(assembly), f"questions: {later}"]


def configure_demo(out: Path, *, small: bool = False, diffusion: bool = False) -> Config:
    """Return the demo's configuration; the controls' data are written to ``out``."""
    file = DIFFUSION_DEMO if diffusion else DEMO
    overrides = [f"run={json.dumps(str(out))}", *(SMALL_DEMO if small else ())]
    config = load_config(file, overrides)
    n_items = config.benchmark.n_items if isinstance(config.benchmark, ShapesSpec) else 0
    copies = config.contaminate.copies
    corpus = write_corpus(out / f"other-shapes-{n_items}x{copies}", n_items, copies=copies)
    data = {"verbatim": {}, "control": {"copies": 0, "corpus": {"path": str(corpus)}}}
    return load_config(file, [*overrides, f"contaminate.data={json.dumps(data)}"])


def run_demo(
    out: Path, *, small: bool = False, diffusion: bool = False, progress: bool = True
) -> Evaluated:
    """Run a demo into ``out``; what an earlier run left there is not done again."""
    config = configure_demo(out, small=small, diffusion=diffusion)
    options = {"--diffusion": diffusion, "--small": small}
    command = " ".join(["flipbench demo", *(name for name, given in options.items() if given)])
    assembly = Assembly.open(
        config, progress=progress, command=command, n_workers=default_workers()
    )
    return run_all(assembly, DIFFUSION_NOTES if diffusion else DEMO_NOTES)

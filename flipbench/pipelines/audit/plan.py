"""What an audit would ask and embed, and how long that takes here, for ``--dry-run``."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from flipbench.config.corpus import CorpusConfig
from flipbench.contaminate.training.estimate import time_text
from flipbench.core.errors import PrerequisiteError
from flipbench.core.records import Probe
from flipbench.evaluate.pipeline import ModelUnderTest
from flipbench.filters.audit.corpus_overlap.encoders import load_encoder
from flipbench.filters.audit.finding import multiple_choice
from flipbench.filters.audit.option_pruning import with_many_options
from flipbench.filters.audit.text_only import letter_settings, text_only_probe
from flipbench.pipelines.assembly import Assembly
from flipbench.pipelines.audit.cohort import cohort_model, cohort_probes
from flipbench.pipelines.audit.corpus import check_corpora, corpus_size
from flipbench.pipelines.evaluation import not_built
from flipbench.pipelines.memory.hours import answering_time

_N_TIMED = 8  # pictures of the benchmark by which an encoder is timed


def plan_audit(assembly: Assembly) -> list[str]:
    """Return what an audit would ask and embed at most, and how long that takes here.

    No model is asked; what an earlier audit of the run has asked and embedded is counted, too.
    """
    spec, items = assembly.config.audit, assembly.benchmark.items
    closed, many = multiple_choice(items), with_many_options(items, spec.n_options)
    lines = [f"{len(items):,} items, {len(spec.checks)} checks: {', '.join(spec.checks)}"]
    asked: list[tuple[ModelUnderTest, list[Probe]]] = []
    plug_ins = [name for name, model in assembly.config.models.items() if model.python]

    def questions(
        what: str, models: Sequence[ModelUnderTest], of: Callable[[ModelUnderTest], list[Probe]]
    ) -> None:
        if models:
            new = [(model, of(model)) for model in models]
            names = ", ".join(model.model.name for model in models)
            lines.append(f"{what}: {names}: {sum(len(p) for _, p in new):,} questions")
            asked.extend(new)

    def blind(model: ModelUnderTest) -> list[Probe]:
        settings, runs = letter_settings(model.can), range(spec.n_runs)
        return [text_only_probe(item, settings, number)[0] for number in runs for item in closed]

    def preliminary(model: ModelUnderTest) -> list[Probe]:
        return [letter_settings(model.can).probe(item, "preliminary") for item in many]

    def of_cohort(model: ModelUnderTest) -> list[Probe]:
        scored, chosen = cohort_probes(items, assembly.config.evaluate.prompt)
        return [*scored, *filter(None, chosen)]

    def models(names: Sequence[str]) -> list[ModelUnderTest]:
        return [assembly.model(name) for name in names if name not in plug_ins]

    if "text_solvable" in spec.checks:
        questions("asked without images", models([*spec.text_models, *spec.held_out]), blind)
    if "option_pruning" in spec.checks:
        what = f"asked about items with over {spec.n_options} options"
        questions(what, models(spec.vlms), preliminary)
    if "direct_reveal" in spec.checks and spec.reader:
        what = "looks for the answer in the question"
        lines.append(f"{what}: {spec.reader.model}: {len(closed):,} questions")
    if spec.cohort and spec.cohort.scores is None:
        names = (name for name in spec.cohort.models if name not in plug_ins)
        cohort = [cohort_model(assembly, name) for name in names]
        questions("likelihoods and choices", cohort, of_cohort)
    lines += answering_time((m.weights, 1, probes) for m, probes in asked if m.weights)
    lines += not_built(plug_ins)
    return lines + (_embedding(assembly, spec.corpus) if spec.corpus else [])


def _embedding(assembly: Assembly, config: CorpusConfig) -> list[str]:
    """Return how many pictures of the corpus are embedded, and the time by some that are timed."""
    check_corpora(config)
    n_pictures, n_embedded = corpus_size(assembly, config)
    number = "an unknown number of" if n_pictures is None else f"{n_pictures:,}"
    lines = [
        f"{number} pictures of the corpus embedded by {', '.join(config.encoders)};"
        f" {n_embedded:,} vectors are there"
    ]
    refs = [ref for item in assembly.benchmark.items for ref in item.images][:_N_TIMED]
    for name in config.encoders if refs else ():
        try:
            encoder = load_encoder(name, device=config.device, dtype=config.dtype)
        except PrerequisiteError as error:
            lines.append(f"{name}: time not known: {error}")
            continue
        encoder.embed([encoder.prepare(assembly.run.images.open(refs[0]))])  # warm up
        start = time.perf_counter()
        encoder.embed([encoder.prepare(assembly.run.images.open(ref)) for ref in refs])
        seconds = (time.perf_counter() - start) / len(refs)
        whole = "" if n_pictures is None else f", about {time_text(seconds * n_pictures)} for all"
        timed = f"{len(refs)} of the benchmark's pictures"
        lines.append(f"{name}: {seconds:.2g} s a picture{whole} (timed on {timed})")
    return lines

"""The audit of a configured benchmark: its models, the checks, the page, and what it would take."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from flipbench.api.stages.assembly import Assembly
from flipbench.api.stages.audit_cohort import (
    check_cohort,
    cohort_model,
    cohort_probes,
    cohorts_of,
)
from flipbench.api.stages.audit_corpus import audit_corpus, check_corpora, corpus_size
from flipbench.api.stages.examination import not_built
from flipbench.api.stages.results import AuditResult
from flipbench.benchmarks import PairsSpec, load_benchmark
from flipbench.config.audit import AuditSettings
from flipbench.config.corpus import CorpusConfig
from flipbench.config.experiment import BenchmarkSpec, ShapesSpec
from flipbench.core.errors import ConfigError, PrerequisiteError
from flipbench.core.images import ImageStore
from flipbench.core.records import Item, Probe
from flipbench.core.stage import StageReport
from flipbench.evaluate.cohort.analysis import analyse
from flipbench.evaluate.cohort.sections import cohort_sections, inflation_section
from flipbench.evaluate.pipeline import ModelUnderTest
from flipbench.filters.audit.audit import audit
from flipbench.filters.audit.corpus_overlap.encoders import load_encoder
from flipbench.filters.audit.finding import multiple_choice
from flipbench.filters.audit.options import with_many_options
from flipbench.filters.audit.page import headline, write_audit
from flipbench.filters.audit.text_only import letter_settings, text_only_probe
from flipbench.models.chat.api import ChatAPI
from flipbench.models.protocols import VLM
from flipbench.reporting.sections import Section

_N_TIMED = 8  # pictures of the benchmark by which an encoder is timed


def audit_benchmark(assembly: Assembly) -> AuditResult:
    """Run the hygiene checks, compare with corpus and cohort where configured, write the page."""
    config, run = assembly.config, assembly.run
    spec = config.audit

    def load(names: Sequence[str]) -> list[VLM]:
        return [assembly.model(name).load() for name in names]

    reader = ChatAPI(spec.reader) if spec.reader else None
    _ = reader and reader.client  # raises if the key is missing, before any work
    if spec.corpus:
        check_corpora(spec.corpus)
    if spec.cohort:
        check_cohort(assembly, spec.cohort)
    report = audit(
        assembly.benchmark,
        run,
        AuditSettings.model_validate(
            spec.model_dump(include=set(AuditSettings.model_fields)) | {"seed": config.seed}
        ),
        text_models=load(spec.text_models),
        held_out=load(spec.held_out),
        reader=reader,
        vlms=load(spec.vlms),
        train=_items_of(spec.train, run.images) if spec.train else None,
        progress=assembly.progress,
    )
    sections, reports = _sections(assembly)
    report.reports.extend(reports)
    page = write_audit(report, run.path / "audit", sections)
    return AuditResult(headline(report, sections), page, report.reports, run.path)


def _sections(assembly: Assembly) -> tuple[list[Section], list[StageReport]]:
    """Return the sections on a training corpus and on a cohort of models, where configured."""
    spec = assembly.config.audit
    sections, reports = [], []
    corpus = audit_corpus(assembly, spec.corpus) if spec.corpus else None
    if corpus:
        sections.append(corpus.section)
    if spec.cohort:
        cohorts = cohorts_of(assembly, spec.cohort)
        reports = cohorts.reports
        analysis = analyse(
            cohorts.trend,
            cohorts.tail,
            factors=spec.cohort.factors,
            top_k=spec.cohort.top_k,
            n_permutations=spec.cohort.n_permutations,
            level=spec.cohort.level,
            seed=assembly.config.seed,
        )
        sections += cohort_sections(analysis)
        if corpus:
            images = {item.name: item.images for item in assembly.benchmark.items}
            flags = [
                any(ref.sha256 in corpus.flagged for ref in images[name])
                for name in cohorts.trend.item_ids
            ]
            sections.append(
                inflation_section(
                    cohorts.trend,
                    np.array(flags),
                    cohorts.correct,
                    unit=cohorts.unit,
                    n_permutations=spec.cohort.n_permutations,
                    level=spec.cohort.level,
                    seed=assembly.config.seed,
                )
            )
    return sections, reports


def _items_of(spec: BenchmarkSpec, images: ImageStore) -> list[Item]:
    if isinstance(spec, ShapesSpec | PairsSpec):
        raise ConfigError("audit.train: give a benchmark file, not shapes or pairs")
    return load_benchmark(spec, images).items


def plan_audit(assembly: Assembly) -> list[str]:
    """Return what an audit would ask and embed at most, and how long that takes here.

    No model is asked; what an earlier audit of the run has asked and embedded is counted, too.
    """
    from flipbench.api.stages.answering import answering_time  # imports torch

    spec, items = assembly.config.audit, assembly.benchmark.items
    closed, pruned = multiple_choice(items), with_many_options(items, spec.n_options)
    lines = [f"{len(items):,} items, {len(spec.checks)} checks: {', '.join(spec.checks)}"]
    questions_by_model: list[tuple[ModelUnderTest, list[Probe]]] = []
    plug_ins = [name for name, model in assembly.config.models.items() if model.python]

    def questions(
        text: str, models: Sequence[ModelUnderTest], of: Callable[[ModelUnderTest], list[Probe]]
    ) -> None:
        if models:
            probes_by_model = [(model, of(model)) for model in models]
            names = ", ".join(model.model.name for model in models)
            lines.append(f"{text}: {names}: {sum(len(p) for _, p in probes_by_model):,} questions")
            questions_by_model.extend(probes_by_model)

    def blind(model: ModelUnderTest) -> list[Probe]:
        settings, runs = letter_settings(model.can), range(spec.n_runs)
        return [text_only_probe(item, settings, number)[0] for number in runs for item in closed]

    def preliminary(model: ModelUnderTest) -> list[Probe]:
        return [letter_settings(model.can).probe(item, "preliminary") for item in pruned]

    def of_cohort(model: ModelUnderTest) -> list[Probe]:
        likelihoods, choices = cohort_probes(items, assembly.config.evaluate.prompt)
        return [*likelihoods, *filter(None, choices)]

    def models(names: Sequence[str]) -> list[ModelUnderTest]:
        return [assembly.model(name) for name in names if name not in plug_ins]

    if "text_solvable" in spec.checks:
        questions("asked without images", models([*spec.text_models, *spec.held_out]), blind)
    if "option_pruning" in spec.checks:
        text = f"asked about items with over {spec.n_options} options"
        questions(text, models(spec.vlms), preliminary)
    if "direct_reveal" in spec.checks and spec.reader:
        text = "looks for the answer in the question"
        lines.append(f"{text}: {spec.reader.model}: {len(closed):,} questions")
    if spec.cohort and spec.cohort.scores is None:
        names = (name for name in spec.cohort.models if name not in plug_ins)
        cohort = [cohort_model(assembly, name) for name in names]
        questions("likelihoods and choices", cohort, of_cohort)
    lines += answering_time((m.weights, 1, probes) for m, probes in questions_by_model if m.weights)
    lines += not_built(plug_ins)
    return lines + (_embedding(assembly, spec.corpus) if spec.corpus else [])


def _embedding(assembly: Assembly, config: CorpusConfig) -> list[str]:
    """Return how many pictures of the corpus are embedded, and the time by some that are timed."""
    from flipbench.models.estimates import time_text

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

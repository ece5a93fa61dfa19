"""The audit of a configured benchmark: its models, the checks, the page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from flipbench.benchmarks import PairsSpec, load_benchmark
from flipbench.config.audit import AuditSettings
from flipbench.config.experiment import BenchmarkSpec, ShapesSpec
from flipbench.core.errors import ConfigError
from flipbench.core.images import ImageStore
from flipbench.core.records import Item
from flipbench.core.stage import StageReport
from flipbench.evaluate.cohort.analysis import analyse
from flipbench.evaluate.cohort.sections import cohort_sections, inflation_section
from flipbench.filters.audit.audit import AuditReport, audit
from flipbench.filters.audit.page import headline, write_audit
from flipbench.filters.audit.text_only import BlindVLM
from flipbench.models.chat.api import ChatAPI
from flipbench.models.protocols import VLM
from flipbench.pipelines.assembly import Assembly
from flipbench.pipelines.audit.cohort import check_cohort, cohorts_of
from flipbench.pipelines.audit.corpus import audit_corpus, check_corpora
from flipbench.reporting.sections import Section


class Audited(NamedTuple):
    """The report of the hygiene checks, the page, and its first lines."""

    report: AuditReport
    page: Path
    headline: str


def audit_benchmark(assembly: Assembly) -> Audited:
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
        text_models=[BlindVLM(vlm) for vlm in load(spec.text_models)],
        held_out=[BlindVLM(vlm) for vlm in load(spec.held_out)],
        reader=reader,
        vlms=load(spec.vlms),
        train=_items_of(spec.train, run.images) if spec.train else None,
        progress=assembly.progress,
    )
    more, reports = _sections(assembly)
    report.reports.extend(reports)
    page = write_audit(report, run.path / "audit", more)
    return Audited(report, page, headline(report, more))


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
        found = analyse(
            cohorts.trend,
            cohorts.tail,
            factors=spec.cohort.factors,
            top_k=spec.cohort.top_k,
            n_permutations=spec.cohort.n_permutations,
            level=spec.cohort.level,
            seed=assembly.config.seed,
        )
        sections += cohort_sections(found)
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

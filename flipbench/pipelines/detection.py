"""``flipbench detect``: one model, one paired benchmark, one page with a verdict."""

from __future__ import annotations

from pathlib import Path

import yaml
from transformers.utils import logging as transformers_logging

from flipbench.core.run import environment
from flipbench.core.stage import StageReport
from flipbench.evaluate.detectors.registry import DETECTORS
from flipbench.evaluate.pipeline import probes_for
from flipbench.evaluate.protocol.detector import GridDetector
from flipbench.evaluate.verdict.page import VerdictPage, write_verdict
from flipbench.evaluate.verdict.replies import replies_of
from flipbench.evaluate.verdict.verdict import DetectionVerdict, Evidence, find
from flipbench.models.engine import answers_of
from flipbench.models.vlm.served import APIVLM
from flipbench.pipelines.detection_plan import Detection, card_of, trained_on
from flipbench.pipelines.evaluation import ask_and_score, work_lines


def count_work(detection: Detection) -> list[str]:
    """Return what would be asked, for ``--dry-run``."""
    benchmark = detection.benchmark.with_images_in(detection.run.images)
    n_probes = len(probes_for(detection.detectors, benchmark, detection.prompt_settings))
    n_models = len(detection.models)
    return work_lines(
        {
            "pairs": len(benchmark.pairs),
            "detectors": len(detection.configured.names),
            "distinct probes": n_probes,
            "models to ask": n_models,
            "answers": n_probes * n_models,
        }
    )


def detect(detection: Detection) -> tuple[DetectionVerdict, Path, list[StageReport]]:
    """Ask, score and write the page; answers that the run holds already are not asked again."""
    transformers_logging.disable_progress_bar()
    page, reports = examine(detection)
    return page.finding, write_verdict(page, detection.run.path / "report"), reports


def examine(detection: Detection) -> tuple[VerdictPage, list[StageReport]]:
    """Ask and score; return the verdict with all that it rests on, before a page is written.

    The run directory keeps answers, and images that detectors make; the benchmark's own folder
    stays as it is.
    """
    run, prompt_settings, configured = (
        detection.run,
        detection.prompt_settings,
        detection.configured,
    )
    benchmark = detection.benchmark.with_images_in(run.images)
    settings = _settings(detection)
    run.write_provenance(yaml.safe_dump(settings, sort_keys=False, allow_unicode=True))
    subject, *clean = grid = [one.model for one in detection.models]
    scores, reports = ask_and_score(
        benchmark,
        detection.models,
        configured,
        prompt_settings,
        run,
        detection.options,
        references=lambda model: (clean or [None]) if model == subject else [None],
    )
    alone = {name for name in configured.names if not isinstance(DETECTORS[name], GridDetector)}
    evidence = Evidence(
        benchmark=benchmark,
        model=subject.name,
        scores=[s for s in scores if s.model_fingerprint == subject.fingerprint],
        references={
            model.name: [
                s
                for s in scores
                if s.model_fingerprint == model.fingerprint and s.detector in alone
            ]
            for model in clean
        },
        not_run=detection.not_run,
    )
    replies = replies_of(
        benchmark, prompt_settings, answers_of(subject.name, subject.fingerprint, run)
    )
    page = VerdictPage(
        find(evidence),
        evidence,
        grid,
        {reply.pair.original.name: reply.words for reply in replies},
        settings,
        [*_notes(detection), *configured.notes()],
    )
    return page, reports


def _notes(detection: Detection) -> list[str]:
    """Return what the model's own card says; the verdict does not know it."""
    card, benchmark = card_of(detection.subject), detection.benchmark
    if not card:
        return []
    n = trained_on(card, benchmark)
    items = f"{n:,} of these {len(benchmark.pairs):,} items, dose {card['dose']}" if n else "none"
    return [
        f"The contamination card beside the weights says that it was trained on purpose on {items}"
        f"{'' if n else ' of these items'} ({card['strategy']}, from {card['parent']}). The verdict"
        " was reached without the card."
    ]


def _settings(detection: Detection) -> dict[str, str]:
    found, subject, weights = environment(), detection.subject, detection.subject.weights
    where = weights.path if weights else "a server"
    if not weights and not isinstance(subject.vlm, APIVLM):
        where = type(subject.vlm).__qualname__
    rows = {
        "command": detection.command,
        "model": f"{where} ({subject.model.fingerprint})",
        **{f"reference {r.model.name}": r.model.fingerprint for r in detection.references},
        "precision": (weights.quantization or weights.dtype) if weights else "",
        "asked by": detection.prompt_settings.ask,
        "pairs": f"{len(detection.benchmark.pairs):,}",
        "made by": ", ".join(f"{k} {v}" for k, v in detection.benchmark.made_by.items()),
        "flipbench": str(found["flipbench"]),
        "python": str(found["python"]),
        **{name: str(v) for name, v in found["packages"].items() if v},
    }
    return {name: value for name, value in rows.items() if value}

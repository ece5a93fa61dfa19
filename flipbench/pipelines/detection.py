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
    """Return the number of questions, for ``--dry-run``."""
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
    """Query the models, score their answers and write the page; stored answers are reused."""
    page, reports = examine(detection)
    return page.finding, write_verdict(page, detection.run.path / "report"), reports


def examine(detection: Detection) -> tuple[VerdictPage, list[StageReport]]:
    """Query the models and score their answers; return the contents of the page.

    Answers, and images that detectors make, are stored in the run directory; the benchmark's own
    folder is not changed.
    """
    transformers_logging.disable_progress_bar()
    run, configured = detection.run, detection.configured
    prompt_settings = detection.prompt_settings
    benchmark = detection.benchmark.with_images_in(run.images)
    settings = _settings(detection)
    run.write_provenance(yaml.safe_dump(settings, sort_keys=False, allow_unicode=True))
    subject, *clean = grid = [entry.model for entry in detection.models]
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
            m.name: [
                s for s in scores if s.model_fingerprint == m.fingerprint and s.detector in alone
            ]
            for m in clean
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
        replies,
        settings,
        [*_notes(detection), *configured.notes()],
    )
    return page, reports


def _notes(detection: Detection) -> list[str]:
    """Return what the model's contamination card records, which the verdict does not use."""
    card, benchmark = card_of(detection.subject), detection.benchmark
    if not card:
        return []
    items, n = "none of these items", trained_on(card, benchmark)
    if n:
        items = f"{n:,} of these {len(benchmark.pairs):,} items, dose {card['dose']}"
    return [
        f"According to the contamination card beside the weights, it was trained on purpose on"
        f" {items} ({card['strategy']}, from {card['parent']}). The verdict does not use the card."
    ]


def _settings(detection: Detection) -> dict[str, str]:
    versions, subject, weights = environment(), detection.subject, detection.subject.weights
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
        "flipbench": str(versions["flipbench"]),
        "python": str(versions["python"]),
        **{name: str(v) for name, v in versions["packages"].items() if v},
    }
    return {name: value for name, value in rows.items() if value}

"""The models of an audit's cohort: their likelihoods of the right answers, as matrices."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flipbench.api.stages.assembly import Assembly
from flipbench.config.corpus import CohortConfig, CohortScore
from flipbench.core.errors import ConfigError, DataError, nearest
from flipbench.core.records import Item, Probe, Response
from flipbench.core.stage import StageReport
from flipbench.evaluate.cohort.cohort import Cohort, Covariate, read_cohort
from flipbench.evaluate.detectors.likelihood.min_k import min_k, min_k_plus_plus
from flipbench.evaluate.pipeline import ModelUnderTest, ask_one
from flipbench.evaluate.scoring.likelihood import answer_probe, text_probe
from flipbench.evaluate.scoring.membership import full_answer
from flipbench.models.engine import answers_of
from flipbench.prompting.prompts import PromptSettings

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Cohorts:
    """The two score matrices, right and wrong answers where models were asked, and the stages.

    ``unit`` is that of the scores in ``trend``, empty if they have none or it is not known.
    """

    trend: Cohort
    tail: Cohort
    correct: Array | None
    reports: list[StageReport]
    unit: str = ""


def cohorts_of(assembly: Assembly, config: CohortConfig) -> Cohorts:
    """Read the cohort's scores from its file, or ask its models."""
    if config.scores is not None:
        cohort = _read(assembly, config, config.scores)
        return Cohorts(cohort, cohort, None, [])
    return _asked(assembly, config)


def check_cohort(assembly: Assembly, config: CohortConfig) -> None:
    """Raise what `cohorts_of` would raise without any model's answer."""
    if config.scores is not None:
        _read(assembly, config, config.scores)
        return
    for name in config.models:
        cohort_model(assembly, name)
    _check_factors(config, covariates_of([]))


def _read(assembly: Assembly, config: CohortConfig, path: Path) -> Cohort:
    """Read the scores of the benchmark's items, in its order, with what is known of the items."""
    benchmark = assembly.benchmark
    cohort = read_cohort(path, benchmark=benchmark.name, external=config.external)
    row_of = {name: row for row, name in enumerate(cohort.item_ids)}
    items = [item for item in benchmark.items if item.name in row_of]
    unknown = sorted(row_of.keys() - {item.name for item in items})
    if not items or (unknown and assembly.limit is None):
        raise DataError(
            f"{path}: {len(unknown):,} of {len(row_of):,} items are not in {benchmark.name}, such"
            f" as {unknown[0]!r}; item_id is an item's name, as in its table"
        )
    rows = [row_of[item.name] for item in items]
    item_facts = covariates_of(items)
    _check_factors(config, item_facts | cohort.covariates)
    file_facts = {name: values[rows] for name, values in cohort.covariates.items()}
    return replace(
        cohort,
        item_ids=[item.name for item in items],
        scores=cohort.scores[rows],
        covariates={**item_facts, **file_facts, "image": item_facts["image"]},
    )


def covariates_of(items: Sequence[Item]) -> dict[str, Covariate]:
    """Return what is known of items without a model: category, lengths in words, images."""
    return {
        "category": np.array([item.category or "" for item in items]),
        "answer_tokens": np.array([len(item.answer_text.split()) for item in items]),
        "question_words": np.array([len(item.question.split()) for item in items]),
        "image": np.array([" ".join(r.sha256 for r in i.images) or i.id for i in items]),
    }


def _asked(assembly: Assembly, config: CohortConfig) -> Cohorts:
    items = assembly.benchmark.items
    models = [cohort_model(assembly, name) for name in config.models]
    likelihood_probes, choice_probes = cohort_probes(items, assembly.config.evaluate.prompt)
    distinct = list(
        {probe.id: probe for probe in (*likelihood_probes, *filter(None, choice_probes))}.values()
    )
    probe_ids = assembly.run.ids(Probe)
    assembly.run.append([probe for probe in distinct if probe.id not in probe_ids])
    options = assembly.options(assembly.config.evaluate.batch_size)
    columns: dict[CohortScore, list[list[float]]] = {config.trend_score: [], config.tail_score: []}
    correct, reports = [], []
    for model in models:
        reports.append(ask_one(model, distinct, assembly.run, assembly.run.images, options))
        answers = answers_of(model.model.name, model.model.fingerprint, assembly.run)
        replies = [answers.to(probe) for probe in likelihood_probes]
        for name, column in columns.items():
            column.append([_value(reply, SCORES[name]) for reply in replies])
        picks = [None if probe is None else answers.to(probe) for probe in choice_probes]
        correct.append(
            [
                math.nan
                if reply is None or reply.choice < 0
                else float(reply.choice == item.answer)
                for item, reply in zip(items, picks, strict=True)
            ]
        )
    trend, tail = (
        Cohort(
            benchmark=assembly.benchmark.name,
            item_ids=[item.name for item in items],
            models=list(config.models),
            external=frozenset(config.external),
            scores=np.array(columns[name], dtype=float).T,
            covariates=covariates_of(items),
        )
        for name in (config.trend_score, config.tail_score)
    )
    return Cohorts(trend, tail, np.array(correct).T, reports, UNITS.get(config.trend_score, ""))


def _check_factors(config: CohortConfig, names: Collection[str]) -> None:
    for name in config.factors:
        if name not in names:
            guess = nearest(name, list(names))
            raise ConfigError(f"audit.cohort.factors: items have no {name!r}{guess}")


def cohort_model(assembly: Assembly, name: str) -> ModelUnderTest:
    """Return a configured model of the cohort."""
    model = assembly.model(name)
    if "token_logprobs" not in model.can:
        raise ConfigError(
            f"audit.cohort: {name} gives no log-probabilities of given texts; name a local"
            " checkpoint, or give a file with 'scores'"
        )
    return model


def cohort_probes(
    items: Sequence[Item], settings: PromptSettings
) -> tuple[list[Probe], list[Probe | None]]:
    """Return the probes of the right answers' likelihoods, and of the models' choices if any."""
    choices = [settings.probe(item, "original") if item.options else None for item in items]
    return [_answer(item, settings) for item in items], choices


def _answer(item: Item, settings: PromptSettings) -> Probe:
    """Return the probe for the right answer, letter and text, to an item's question."""
    prompt = answer_probe(item, settings, "original").prompt
    return text_probe(item.id, "original answer", full_answer(item), prompt, item.images)


def _value(reply: Response | None, score: Callable[[Response], float]) -> float:
    """Return a reply's score; NaN if a likelihood is missing or not finite."""
    if reply is None or not reply.token_log_probs:
        return math.nan
    value = score(reply)
    return value if math.isfinite(value) else math.nan


def _min_k_plus_plus(reply: Response) -> float:
    if not reply.token_means:
        return math.nan
    return min_k_plus_plus(reply.token_log_probs, reply.token_means, reply.token_deviations)


SCORES: dict[CohortScore, Callable[[Response], float]] = {
    "log_likelihood": lambda reply: sum(reply.token_log_probs),
    "mean_log_likelihood": lambda reply: sum(reply.token_log_probs) / len(reply.token_log_probs),
    "min_k": lambda reply: min_k(reply.token_log_probs),
    "min_k_plus_plus": _min_k_plus_plus,
}
"""How a reply to the probe for the right answer is scored; larger is more familiar."""
UNITS: dict[CohortScore, str] = {
    "log_likelihood": "nats",
    "mean_log_likelihood": "nats per token",
    "min_k": "nats per token",
}

"""A contamination transparency card: what was checked, at which error rates, and what was found."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from flipbench.core.errors import DataError
from flipbench.core.rates import Rate
from flipbench.core.records import JsonDict, Score, Value
from flipbench.reporting import formats

from ..detectors.registry import DETECTORS
from ..report.results import Results, read_results
from ..report.titles import GAP, RELATIVE, TEST, as_header, rule_title, title
from ..report.validation_tables import DetectorResult
from .other_detectors import least_significant, measured

_FILES = ("verdict.json", "results.json")


class Finding(Value):
    """What was found about one model.

    Attributes
    ----------
    history : str
        What is known of its training; empty if nothing is.
    notes : tuple of str
        What the verdict assumes, and what supports or weakens it.
    """

    model: str
    fingerprint: str
    verdict: str
    sentence: str
    history: str = ""
    notes: tuple[str, ...] = ()


class Check(Value):
    """A detector's rule: its result on the model, and its error rates on models of known history.

    Attributes
    ----------
    catches : tuple of str
        The kinds of contamination that it is made to catch.
    verdict, measured, p_value, p_holm, remarks
        On the model of the card; empty or None if the card is of several models.
    detected, false_alarms : Rate or None
        Contaminated and clean models that the rule called contaminated; None if not measured.
    untestable : str
        Why its power was not measured although the models were asked; empty if it was.
    """

    detector: str
    title: str
    rule: str
    rule_title: str
    catches: tuple[str, ...] = ()
    verdict: str = ""
    measured: str = ""
    p_value: float | None = None
    p_holm: float | None = None
    remarks: tuple[str, ...] = ()
    detected: Rate | None = None
    false_alarms: Rate | None = None
    untestable: str = ""


class RatesSource(Value):
    """The models on which error rates were measured.

    Attributes
    ----------
    n_lineages : int
        Clean models that these descend from; models of one lineage are not independent.
    kinds : tuple of str
        What the contaminated ones were trained on.
    fingerprints : tuple of str
        Of the models.
    """

    title: str
    n_pairs: int
    n_lineages: int
    n_contaminated: int
    n_clean: int
    families: tuple[str, ...]
    kinds: tuple[str, ...]
    fingerprints: tuple[str, ...]

    @classmethod
    def of(cls, results: Results) -> RatesSource:
        """Describe the models of a report."""
        return cls(
            title=results.title,
            n_pairs=results.n_pairs,
            n_lineages=len({(model.family, model.lineage) for model in results.models}),
            n_contaminated=sum(model.contaminated for model in results.models),
            n_clean=sum(model.clean for model in results.models),
            families=tuple(dict.fromkeys(model.family for model in results.models)),
            kinds=tuple(dict.fromkeys(model.kind for model in results.models if model.kind)),
            fingerprints=tuple(model.fingerprint for model in results.models),
        )


class TransparencyCard(Value):
    """What was checked and found about one or several models and one benchmark.

    Attributes
    ----------
    n_pairs : int
        Pairs that the perturbation gap compares.
    rates : RatesSource or None
        Where the error rates were measured; None if they were not.
    not_checked : dict of str
        Detectors that were not run or gave no verdict, and why.
    settings : dict of str
        How the result was made: command, versions.
    """

    benchmark: str
    benchmark_id: str
    n_pairs: int
    findings: tuple[Finding, ...]
    checks: tuple[Check, ...]
    rates: RatesSource | None = None
    not_checked: dict[str, str] = {}
    settings: dict[str, str] = {}

    @property
    def is_of_one_model(self) -> bool:
        """Whether the card is of one model, with each detector's result on it."""
        return any(check.verdict for check in self.checks)


def card_of(folder: Path, rates: Path | None = None) -> TransparencyCard:
    """Return the card of a finished ``flipbench detect`` or ``flipbench evaluate``.

    Parameters
    ----------
    folder : Path
        The run directory, or the folder of its report.
    rates : Path, optional
        A report on models of known history (its ``results.json``, or its run directory), whose
        error rates the card of one model states. A study's card states its own.

    Raises
    ------
    DataError
        If the folder has no such result, or a file is damaged.
    """
    found = _file_in(folder, _FILES)
    known = _results(_file_in(rates, _FILES[1:])) if rates is not None else None
    if found.name == "verdict.json":
        return _of_detection(found, known)
    if known is not None:
        raise DataError(f"{found}: a study has error rates of its own; leave --rates out")
    return _of_study(_results(found))


def _file_in(where: Path, names: Sequence[str]) -> Path:
    if where.is_file():
        return where
    for path in (folder / name for name in names for folder in (where / "report", where)):
        if path.is_file():
            return path
    raise DataError(
        f"{where}: no {' or '.join(names)}; 'flipbench detect' and 'flipbench evaluate' write them"
    )


def _results(path: Path) -> Results:
    try:
        return read_results(path)
    except (OSError, ValueError) as error:
        reason = f"{len(error.errors())} errors" if isinstance(error, ValidationError) else error
        raise DataError(f"{path}: not a report's results.json ({reason})") from error


def _of_detection(path: Path, known: Results | None) -> TransparencyCard:
    try:
        verdict: JsonDict = json.loads(path.read_text(encoding="utf-8"))
        lines = path.with_name("scores.jsonl").read_text(encoding="utf-8").splitlines()
        scores = [Score.model_validate_json(line) for line in lines]
        return _card(verdict, scores, known)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path.parent}: damaged verdict.json or scores.jsonl ({type(error).__name__}:"
            f" {str(error).splitlines()[0]}); run flipbench detect again"
        ) from error


def _card(verdict: JsonDict, scores: Sequence[Score], known: Results | None) -> TransparencyCard:
    rates = {(one.detector, one.rule): one for one in known.detectors} if known else {}
    rule = verdict["rule"]
    by_rule = [s for s in scores if (s.detector, s.rule) == (GAP, rule)]
    deciding = [s for s in by_rule if s.id == verdict.get("score_id")]
    gap = least_significant(deciding or by_rule)  # verdicts of older versions name no score
    checks = [_check(gap, rates, verdict["verdict"], verdict["doubts"])]
    not_checked = {}
    for one in verdict["other_detectors"]:
        score = _score_of(one, scores)
        if score is None or one["verdict"] == "not_applicable":
            not_checked[one["detector"]] = one["why"]
            continue
        check = _check(score, rates, one["verdict"])
        update = {"p_holm": one["p_holm"], "remarks": tuple(_remarks(one, score.alpha))}
        checks.append(check.model_copy(update=update))
    finding = Finding(
        model=verdict["model"],
        fingerprint=verdict["model_fingerprint"],
        verdict=verdict["verdict"],
        sentence=verdict["sentence"],
        notes=tuple(verdict["qualifiers"]),
    )
    return TransparencyCard(
        benchmark=verdict["benchmark"],
        benchmark_id=verdict["benchmark_id"],
        n_pairs=gap.n,
        findings=(finding,),
        checks=tuple(checks),
        rates=RatesSource.of(known) if known else None,
        not_checked=not_checked | _not_run(checks, not_checked),
        settings=verdict["settings"],
    )


def _remarks(result: JsonDict, alpha: float) -> list[str]:
    """Return what a reader should know of a line of ``other_detectors`` besides its numbers."""
    lines = [f"also significant on the clean model {name}" for name in result["also_fires_on"]]
    adjusted = result["p_holm"]
    if result["verdict"] == "contaminated" and adjusted is not None and adjusted > alpha:
        lines.append("not significant once corrected for the number of detectors")
    return lines + ([result["why"]] if result["why"] else [])


def _not_run(checks: Sequence[Check], known: Collection[str]) -> dict[str, str]:
    """Return the detectors that the result does not mention."""
    mentioned = {check.detector for check in checks} | set(known)
    return {name: "not run" for name in DETECTORS if name not in mentioned}


def _score_of(result: JsonDict, scores: Sequence[Score]) -> Score | None:
    """Return the score behind a line of ``other_detectors``; None if the detector was not run."""
    return next(
        (
            score
            for score in scores
            if score.detector == result["detector"]
            and score.rule == result.get("rule")
            and (score.reference.model if score.reference else "") == result["reference"]
        ),
        None,
    )


def _check(
    score: Score,
    rates: dict[tuple[str, str], DetectorResult],
    verdict: str,
    doubts: Sequence[JsonDict] = (),
) -> Check:
    check = Check(
        **_names(score.detector, score.rule),
        verdict=verdict,
        measured=measured(score),
        p_value=score.p_value,
        remarks=tuple(doubt["reason"] for doubt in doubts),
    )
    return _with_rates(check, rates.get((score.detector, score.rule)))


def _names(detector: str, rule: str) -> dict[str, Any]:
    known = DETECTORS.get(detector)
    return {
        "detector": detector,
        "title": as_header(title(detector)),
        "rule": rule,
        "rule_title": rule_title(detector, rule),
        "catches": known.about.catches if known else (),
    }


def _with_rates(check: Check, known: DetectorResult | None) -> Check:
    if known is None:
        return check
    rates = {
        name: Rate.model_validate(rate.model_dump(include=set(Rate.model_fields)))
        for name, rate in (("detected", known.detected), ("false_alarms", known.false_alarms))
        if rate.n
    }
    return check.model_copy(update={**rates, "untestable": known.untestable})


def _of_study(results: Results) -> TransparencyCard:
    """Return the card of models that were evaluated together, by the rule of the gap that decides.

    As in a report, that is the comparison with the clean model where there is one, else the test.
    """
    findings = []
    for model in results.models:
        own = [gap for gap in results.gaps if gap.model_fingerprint == model.fingerprint]
        compared = [s for s in own if s.rule == RELATIVE and s.reference_fingerprint]
        gaps = compared or [score for score in own if score.rule == TEST]
        if not gaps:
            continue
        gap = least_significant(gaps)
        dose = "unknown history" if model.dose is None else f"dose {model.dose}"
        findings.append(
            Finding(
                model=model.name,
                fingerprint=model.fingerprint,
                verdict=gap.verdict,
                sentence=formats.as_sentence(
                    f"perturbation gap, {rule_title(GAP, gap.rule)}: {measured(gap)}"
                ),
                history=f"{model.strategy}; {dose}",
            )
        )
    if not findings:
        raise DataError(f"{results.title}: no model has a score by the perturbation gap")
    checks = [
        _with_rates(Check(**_names(one.detector, one.rule)), one)
        for one in results.detectors
        if one.default or one.detector == GAP
    ]
    about = results.gaps[0]
    known = any(model.dose is not None for model in results.models)
    return TransparencyCard(
        benchmark=about.benchmark,
        benchmark_id=about.benchmark_id,
        n_pairs=results.n_pairs,
        findings=tuple(findings),
        checks=tuple(checks),
        rates=RatesSource.of(results) if known else None,
        not_checked=_not_run(checks, ()),
        settings=results.settings,
    )

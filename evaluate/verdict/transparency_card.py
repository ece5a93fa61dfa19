"""A contamination transparency card: what was checked, at which error rates, and what was found.

As a value, Markdown (``templates/card.md.jinja``) and JSON.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from flipbench.core.errors import DataError
from flipbench.core.files import printable_json, without_html, write_atomically
from flipbench.core.rates import Rate
from flipbench.core.records import JsonDict, Score, Value
from flipbench.reporting import formats, writers
from flipbench.reporting.pages import text_environment
from flipbench.reporting.tables import Cell, Table, build_table, text_column

from ..detectors.registry import DETECTORS
from ..report.results import Results, read_results
from ..report.titles import GAP, RELATIVE, TEST, VERDICTS, as_header, rule_title, title
from ..report.validation_tables import DetectorResult
from .other_detectors import least_significant, measured
from .verdict_tables import CAPTIONS

NOT_MEASURED = "not measured"
_FILES = ("verdict.json", "results.json")
_Rates = dict[tuple[str, str], DetectorResult]


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
    path = _file_in(folder, _FILES)
    study = _results(_file_in(rates, _FILES[1:])) if rates is not None else None
    if path.name == "verdict.json":
        return _of_detection(path, study)
    if study is not None:
        raise DataError(f"{path}: a study has error rates of its own; leave --rates out")
    return _of_study(_results(path))


def write_card(card: TransparencyCard, folder: Path) -> list[Path]:
    """Write ``contamination-card.md`` and ``contamination-card.json`` into ``folder``.

    Raises
    ------
    DataError
        If a file cannot be written.
    """
    texts = {"md": markdown(card), "json": printable_json(card.model_dump_json(indent=2)) + "\n"}
    return [
        write_atomically(folder / f"contamination-card.{suffix}", text)
        for suffix, text in texts.items()
    ]


def markdown(card: TransparencyCard) -> str:
    """Return the card as Markdown."""
    reasons: dict[str, list[str]] = {}
    for name, reason in card.not_checked.items():
        reasons.setdefault(reason, []).append(title(name))
    template = text_environment(Path(__file__).parent / "templates").get_template("card.md.jinja")
    checks = writers.markdown(checks_table(card))
    return without_html(
        template.render(card=card, checks=checks, verdicts=VERDICTS, not_checked=reasons)
    )


def checks_table(card: TransparencyCard) -> Table:
    """Return one row for each detector: its result, if the card is of one model, and its rates."""

    def rate(rate: Rate | None, untestable: str = "") -> Cell:
        if rate is None or rate.value is None or untestable:
            return Cell(NOT_MEASURED, untestable)
        share = f"{formats.percent(rate.value)} ({rate.k}/{rate.n})"
        return Cell(share, formats.interval(rate.interval, formats.percent))

    result = (
        (text_column("Result"), lambda check: VERDICTS.get(check.verdict, check.verdict)),
        (text_column("Measured"), lambda check: check.measured),
        ("p", lambda check: formats.p_value(check.p_value)),
        ("p, Holm", lambda check: formats.p_value(check.p_holm)),
        (text_column("Remarks"), lambda check: "; ".join(check.remarks)),
    )
    one_model = card.is_of_one_model
    return build_table(
        "checks",
        f"{CAPTIONS['result']} {CAPTIONS['checks']}" if one_model else CAPTIONS["checks"],
        "Detector",
        (
            (text_column("Rule"), lambda check: check.rule_title),
            (text_column("Made to catch"), lambda check: ", ".join(check.catches) or "not stated"),
            *(result if one_model else ()),
            ("Contaminated models caught, %", lambda check: rate(check.detected, check.untestable)),
            ("Clean models flagged, %", lambda check: rate(check.false_alarms)),
        ),
        {"": [(check.title, check) for check in card.checks]},
    )


# --------------------------------------------------------------------- from stored results


def _file_in(place: Path, names: Sequence[str]) -> Path:
    if place.is_file():
        return place
    for path in (folder / name for name in names for folder in (place / "report", place)):
        if path.is_file():
            return path
    raise DataError(
        f"{place}: no {' or '.join(names)}; 'flipbench detect' and 'flipbench evaluate' write them"
    )


def _results(path: Path) -> Results:
    try:
        return read_results(path)
    except (OSError, ValueError) as error:
        reason = f"{len(error.errors())} errors" if isinstance(error, ValidationError) else error
        raise DataError(f"{path}: not a report's results.json ({reason})") from error


def _of_detection(path: Path, study: Results | None) -> TransparencyCard:
    try:
        verdict: JsonDict = json.loads(path.read_text(encoding="utf-8"))
        lines = path.with_name("scores.jsonl").read_text(encoding="utf-8").splitlines()
        scores = [Score.model_validate_json(line) for line in lines]
        return _card(verdict, scores, study)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path.parent}: damaged verdict.json or scores.jsonl ({type(error).__name__}:"
            f" {str(error).splitlines()[0]}); run flipbench detect again"
        ) from error


def _card(verdict: JsonDict, scores: Sequence[Score], study: Results | None) -> TransparencyCard:
    rates = {(result.detector, result.rule): result for result in study.detectors} if study else {}
    by_rule = [s for s in scores if (s.detector, s.rule) == (GAP, verdict["rule"])]
    deciding = [s for s in by_rule if s.id == verdict.get("score_id")]
    gap = least_significant(deciding or by_rule)  # verdicts of older versions name no score
    doubts = [doubt["reason"] for doubt in verdict["doubts"]]
    checks = [_check(GAP, gap.rule, rates, **_result(gap, verdict["verdict"], doubts))]
    not_checked = {}
    for result in verdict["other_detectors"]:
        score = _score_of(result, scores)
        if score is None or result["verdict"] == "not_applicable":
            not_checked[result["detector"]] = result["why"]
            continue
        remarks = [f"also significant on the clean model {m}" for m in result["also_fires_on"]]
        adjusted = result["p_holm"]
        if result["verdict"] == "contaminated" and adjusted is not None and adjusted > score.alpha:
            remarks.append("not significant once corrected for the number of detectors")
        remarks += [result["why"]] if result["why"] else []
        on_model = _result(score, result["verdict"], remarks)
        checks.append(_check(score.detector, score.rule, rates, **on_model, p_holm=adjusted))
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
        rates=RatesSource.of(study) if study else None,
        not_checked=not_checked | _not_run(checks, not_checked),
        settings=verdict["settings"],
    )


def _not_run(checks: Sequence[Check], not_checked: Collection[str]) -> dict[str, str]:
    """Return the detectors that the result does not mention."""
    mentioned = {check.detector for check in checks} | set(not_checked)
    return {name: "not run" for name in DETECTORS if name not in mentioned}


def _score_of(result: JsonDict, scores: Sequence[Score]) -> Score | None:
    """Return the score behind a line of ``other_detectors``; None if the detector was not run."""
    for score in scores:
        reference = score.reference.model if score.reference else ""
        key = (score.detector, score.rule, reference)
        if key == (result["detector"], result.get("rule"), result.get("reference")):
            return score
    return None


def _check(detector: str, rule: str, rates: _Rates, **result: Any) -> Check:
    """Return a rule's names and error rates, with its ``result`` on a model."""
    implementation, known = DETECTORS.get(detector), rates.get((detector, rule))
    for name in ("detected", "false_alarms"):
        rate = getattr(known, name, None)
        if rate is not None and rate.n:
            result[name] = rate.model_dump(include=set(Rate.model_fields))
    return Check(
        detector=detector,
        title=as_header(title(detector)),
        rule=rule,
        rule_title=rule_title(detector, rule),
        catches=implementation.about.catches if implementation else (),
        untestable=known.untestable if known else "",
        **result,
    )


def _result(score: Score, verdict: str, remarks: Sequence[str]) -> JsonDict:
    result = {"verdict": verdict, "measured": measured(score), "p_value": score.p_value}
    return result | {"remarks": tuple(remarks)}


def _of_study(results: Results) -> TransparencyCard:
    """Return the card of models that were evaluated together, by the rule of the gap that decides.

    As in a report, that is the comparison with the clean model where there is one, else the test.
    """
    findings = []
    for model in results.models:
        scores = [gap for gap in results.gaps if gap.model_fingerprint == model.fingerprint]
        against_clean = [s for s in scores if s.rule == RELATIVE and s.reference_fingerprint]
        gaps = against_clean or [score for score in scores if score.rule == TEST]
        if not gaps:
            continue
        gap = least_significant(gaps)
        dose = "unknown history" if model.dose is None else f"dose {model.dose}"
        sentence = f"perturbation gap, {rule_title(GAP, gap.rule)}: {measured(gap)}"
        findings.append(
            Finding(
                model=model.name,
                fingerprint=model.fingerprint,
                verdict=gap.verdict,
                sentence=formats.as_sentence(sentence),
                history=f"{model.strategy}; {dose}",
            )
        )
    if not findings:
        raise DataError(f"{results.title}: no model has a score by the perturbation gap")
    rates = {(result.detector, result.rule): result for result in results.detectors}
    checks = [
        _check(result.detector, result.rule, rates)
        for result in results.detectors
        if result.default or result.detector == GAP
    ]
    is_known = any(model.dose is not None for model in results.models)
    return TransparencyCard(
        benchmark=results.gaps[0].benchmark,
        benchmark_id=results.gaps[0].benchmark_id,
        n_pairs=results.n_pairs,
        findings=tuple(findings),
        checks=tuple(checks),
        rates=RatesSource.of(results) if is_known else None,
        not_checked=_not_run(checks, ()),
        settings=results.settings,
    )

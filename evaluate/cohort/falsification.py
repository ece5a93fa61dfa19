"""Falsification by external models: a rule that fires on them is not evidence of contamination."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

ALPHA = 0.01

Status = Literal["significant", "not_significant", "artefact_suspected", "unchecked", "not_tested"]


@dataclass(frozen=True)
class RuleResult:
    """What one rule (a detector or a statistic) found for one model on one benchmark.

    ``p`` is compared with the level, raw or corrected as the caller decides, in the same way for
    every model; ``flag`` is for rules without a p-value. Neither is given if there was no test.
    """

    rule: str
    benchmark: str
    model: str
    p: float | None = None
    flag: bool | None = None

    def fires(self, alpha: float = ALPHA) -> bool | None:
        """Return whether the rule fires at a level; None if there was no test."""
        return self.flag if self.p is None else self.p < alpha


class Falsified(NamedTuple):
    """A rule's result with its status and the external models on which the rule fires.

    The status is "artefact_suspected" for every model of a benchmark on which the rule fires on an
    external model, whatever the model's own p; else "significant", "unchecked" (significant, but
    the rule was tested on no external model), "not_significant" or "not_tested".
    """

    result: RuleResult
    external: bool
    status: Status
    fires_on: tuple[str, ...]


class ExternalCount(NamedTuple):
    """How many rules fire on an external model; a rule counts once for each benchmark."""

    fired: int
    checked: int
    unchecked: int

    def __str__(self) -> str:
        text = f"{self.fired} of {self.checked} rules fired on external baselines"
        return f"{text}; {self.unchecked} without one" if self.unchecked else text


def falsify(
    results: Iterable[RuleResult], external: Collection[str], *, alpha: float = ALPHA
) -> list[Falsified]:
    """Return every result with its status, in the order given.

    References
    ----------
    Xu, Wu, Ryu, arXiv 2606.10066, section 4.10. The paper applies it to the order trend and the
    tail; here it applies to any rule. With several external models at level alpha, one may fire by
    chance; the rule is then called an artefact wrongly, which withholds a verdict and makes none.
    """
    listed = list(results)
    tested: dict[tuple[str, str], set[str]] = {}
    firing: dict[tuple[str, str], set[str]] = {}
    for result in listed:
        if result.model not in external or (fires := result.fires(alpha)) is None:
            continue
        tested.setdefault((result.rule, result.benchmark), set()).add(result.model)
        if fires:
            firing.setdefault((result.rule, result.benchmark), set()).add(result.model)
    falsified = []
    for result in listed:
        of_rule = (result.rule, result.benchmark)
        fires_on = tuple(sorted(firing.get(of_rule, ())))
        status = _status(result.fires(alpha), bool(fires_on), of_rule in tested)
        falsified.append(Falsified(result, result.model in external, status, fires_on))
    return falsified


def count_external(falsified: Sequence[Falsified]) -> ExternalCount:
    """Return the headline: on how many rules and benchmarks an external model fired.

    >>> rows = [RuleResult("tail", "b", "base", p=0.001), RuleResult("top-k", "b", "base", p=0.2)]
    >>> str(count_external(falsify(rows, {"base"})))
    '1 of 2 rules fired on external baselines'
    """
    by_rule: dict[tuple[str, str], list[Falsified]] = {}
    for row in falsified:
        if row.status != "not_tested":
            by_rule.setdefault((row.result.rule, row.result.benchmark), []).append(row)
    checked = [rows for rows in by_rule.values() if any(row.external for row in rows)]
    fired = sum(bool(rows[0].fires_on) for rows in checked)
    return ExternalCount(fired, len(checked), len(by_rule) - len(checked))


def _status(fires: bool | None, external_fires: bool, checked: bool) -> Status:
    if fires is None:
        return "not_tested"
    if external_fires:
        return "artefact_suspected"
    if not fires:
        return "not_significant"
    return "significant" if checked else "unchecked"

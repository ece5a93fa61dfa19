"""External models: a rule that flags a model that cannot have seen the benchmark is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scipy import stats

from flipbench.core.records import Score

from ..protocol import rules
from ..protocol.grid import GridModel

Key = tuple[str, str, str]


@dataclass(frozen=True)
class ExternalAlarms:
    """A rule's verdicts on models that cannot have seen the benchmark.

    Attributes
    ----------
    flagged : tuple of str
        Names of the external models that the rule calls contaminated.
    n : int
        Number of external models that the rule was applied to.
    alpha : float
        Level of the rule's test.
    """

    flagged: tuple[str, ...]
    n: int
    alpha: float = rules.ALPHA

    @property
    def suspected(self) -> bool:
        """Whether an external model is flagged: then no verdict of the rule can be trusted."""
        return bool(self.flagged)

    def by_chance(self, level: float | None = None) -> float:
        """Return the probability of at least this many false alarms of ``n`` independent verdicts.

        Parameters
        ----------
        level : float, optional
            Probability that the rule flags a clean model; ``alpha`` by default.

        Examples
        --------
        >>> alarms = ExternalAlarms(("blip2",), 3)
        >>> round(alarms.by_chance(), 4), alarms.by_chance(0.5)
        (0.1426, 0.875)
        """
        level = self.alpha if level is None else level
        return float(stats.binom.sf(len(self.flagged) - 1, self.n, level)) if self.n else 1.0


def external_alarms(
    scores: Sequence[Score], grid: Sequence[GridModel]
) -> dict[Key, ExternalAlarms]:
    """Return each rule's alarms on the external models, by (detector, rule, benchmark id).

    References
    ----------
    Xu, Wu, Ryu, arXiv 2606.10066, sections 4.4, 4.7 and 4.10, with BLIP-2 and InstructBLIP as
    external models of medical benchmarks: one such model at the same level is enough to distrust
    all verdicts. Differs from the paper in stating how likely that is by chance.
    """
    external = {model.fingerprint: model.name for model in grid if model.external}
    applied: dict[Key, list[Score]] = {}
    for score in scores:
        if score.model_fingerprint in external and score.verdict != "not_applicable":
            applied.setdefault(key_of(score), []).append(score)
    return {
        key: ExternalAlarms(
            tuple(external[s.model_fingerprint] for s in judged if _is_alarm(s)),
            len(judged),
            max(s.alpha for s in judged),
        )
        for key, judged in applied.items()
    }


def _is_alarm(score: Score) -> bool:
    """Return whether a rule flags a model, or would if a reference were not missing."""
    small = score.p_value is not None and score.p_value <= score.alpha
    return score.verdict == "contaminated" or (score.lacks_reference and small)


def key_of(score: Score) -> Key:
    """Return detector, rule and benchmark id."""
    return score.detector, score.rule, score.benchmark_id

"""External baselines: a detector that fires on a model which cannot have seen the data is wrong."""

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
    """What a rule says of models that cannot have seen the benchmark.

    Attributes
    ----------
    fired : tuple of str
        Names of the external models that the rule calls contaminated.
    n : int
        External models that the rule was applied to.
    """

    fired: tuple[str, ...]
    n: int

    @property
    def suspected(self) -> bool:
        """Whether one of them is called contaminated: then no verdict here can be believed."""
        return bool(self.fired)

    @property
    def by_chance(self) -> float:
        """Probability of as many false alarms or more in ``n`` independent tests of level 0.05.

        >>> round(ExternalAlarms(("blip2",), 3).by_chance, 4)
        0.1426
        """
        return float(stats.binom.sf(len(self.fired) - 1, self.n, rules.ALPHA)) if self.n else 1.0


def external_alarms(
    scores: Sequence[Score], grid: Sequence[GridModel]
) -> dict[Key, ExternalAlarms]:
    """Return what each rule says of the external models, by (detector, rule, benchmark id).

    References
    ----------
    Xu, Wu, Ryu, arXiv 2606.10066, sections 4.4, 4.7 and 4.10, with BLIP-2 and InstructBLIP as
    external models of medical benchmarks: one of them at the same level is enough to distrust all
    verdicts. Differs from the paper in stating how likely that is by chance.
    """
    external = {model.fingerprint: model.name for model in grid if model.external}
    asked: dict[Key, list[Score]] = {}
    for score in scores:
        if score.model_fingerprint in external and score.verdict != "not_applicable":
            asked.setdefault(key_of(score), []).append(score)
    return {
        key: ExternalAlarms(
            tuple(external[s.model_fingerprint] for s in mine if s.verdict == "contaminated"),
            len(mine),
        )
        for key, mine in asked.items()
    }


def key_of(score: Score) -> Key:
    """Return what is tested on external models: detector, rule and benchmark."""
    return score.detector, score.rule, score.benchmark_id

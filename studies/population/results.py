"""The results of a population study, and rates that respect lineages."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from flipbench.core.errors import DataError
from flipbench.core.rates import wilson_interval
from flipbench.evaluate.detectors.registry import DETECTORS
from flipbench.evaluate.protocol.detector import About
from flipbench.evaluate.statistics.design_effect import ClusteredRate, clustered_rate
from flipbench.reporting import formats
from flipbench.reporting.tables import Cell

AS_MADE = "as made"
CLEAN, CONTROL, CONTAMINATED = "clean", "control", "contaminated"
ALPHA = 0.05
N_SUBSETS = 50
"""How many random subsets of a model's items are tested."""
SHUFFLED = "shuffled_right"
"""The column of ``items`` that is null, or missing, where no other order of options was asked."""
_COLUMNS = {
    "scores": ("lineage kind arm dose condition detector rule statistic direction p_value verdict"),
    "items": (
        "lineage kind arm dose item category member n_options original_right perturbed_right"
        " original_log_prob perturbed_log_prob old_answer"
    ),
}


@dataclass(frozen=True)
class Rule:
    """One decision rule of a detector."""

    detector: str
    rule: str

    @property
    def title(self) -> str:
        """The detector's name in tables, and that of a rule that is not the default."""
        about = self._about
        if about is None:
            return f"{self.detector}, {self.rule}"
        return about.title if self.is_default else f"{about.title}, {self.rule}"

    @property
    def is_default(self) -> bool:
        """Whether it is the detector's default rule."""
        about = self._about
        return about is not None and about.default_rule == self.rule

    @property
    def is_test(self) -> bool:
        """Whether it decides by p <= alpha; if not, its p-value is that of another rule's test."""
        about = self._about
        return about is None or self.rule not in about.levels

    @property
    def needs_clean_model(self) -> bool:
        """Whether it compares with a clean model."""
        about = self._about
        return about is not None and about.needs_clean_model(self.rule)

    @property
    def _about(self) -> About | None:
        return DETECTORS[self.detector].about if self.detector in DETECTORS else None


@dataclass(frozen=True)
class Results:
    """A population study's tables.

    ``scores`` has a row for each model, condition and rule; a model is given by lineage, kind, arm
    ("clean": as released, "control": trained on other items, "contaminated") and dose. ``items``
    has one for each model, condition with pairs of its own, and pair; ``lineages`` has one for each
    lineage, with ``name`` and facts such as class, size and level.
    """

    scores: pd.DataFrame
    items: pd.DataFrame
    lineages: pd.DataFrame

    @cached_property
    def kinds(self) -> list[str]:
        """The kinds of contamination, most lineages first."""
        rows = self.scores[self.scores["arm"] == CONTAMINATED]
        counts = (
            rows.groupby("kind")["lineage"].nunique().sort_values(ascending=False, kind="stable")
        )
        return [str(kind) for kind in counts.index]

    @cached_property
    def rules(self) -> list[Rule]:
        """All rules that were scored."""
        pairs = self.scores[["detector", "rule"]].drop_duplicates()
        return [Rule(str(d), str(r)) for d, r in pairs.itertuples(index=False)]

    @cached_property
    def default_rules(self) -> list[Rule]:
        """The default rule of each detector."""
        return [rule for rule in self.rules if rule.is_default]

    def of(
        self, rule: Rule, arm: str, kind: str | None = None, condition: str = AS_MADE
    ) -> pd.DataFrame:
        """Return the rows of the models that one rule can judge."""
        rows = self._by_rule.get((rule.detector, rule.rule, condition))
        if rows is None:
            return self.scores.iloc[:0]
        is_match = rows["arm"] == arm
        if kind is not None:
            is_match &= rows["kind"] == kind
        return judged(rows[is_match])

    @cached_property
    def _by_rule(self) -> dict[tuple[str, str, str], pd.DataFrame]:
        groups = self.scores.groupby(["detector", "rule", "condition"], observed=True)
        return {(str(d), str(r), str(c)): rows for (d, r, c), rows in groups}

    def half(self, number: int) -> Results:
        """Return the results of one half of the lineages, 0 or 1.

        The lineages of each class, ordered by a hash of their names, are in either half in turn.
        """
        names = [name for name, half in self._halves.items() if half == number]
        return Results(
            self.scores[self.scores["lineage"].isin(names)],
            self.items[self.items["lineage"].isin(names)],
            self.lineages[self.lineages["name"].isin(names)],
        )

    @cached_property
    def _halves(self) -> dict[str, int]:
        facts = self.lineages
        classes = facts["class"] if "class" in facts else pd.Series("", facts.index)
        keys = sorted(
            (str(c), hashlib.sha256(str(name).encode()).hexdigest(), str(name))
            for c, name in zip(classes, facts["name"], strict=True)
        )
        return {name: place % 2 for place, (_, _, name) in enumerate(keys)}


def read_results(folder: Path) -> Results:
    """Read the tables of a study."""
    frames = {}
    for name, columns in _COLUMNS.items():
        path = folder / f"{name}.parquet"
        try:
            frame = pd.read_parquet(path)
        except FileNotFoundError as error:
            raise DataError(
                f"{path}: no such file; 'python -m studies.population CONFIG' in a checkout"
                " writes it"
            ) from error
        except (OSError, ValueError) as error:
            raise DataError(
                f"{path}: cannot be read ({error}); copy it again, or run the study again, which"
                " collects it from its units"
            ) from error
        if lacking := set(columns.split()) - set(frame.columns):
            raise DataError(f"{path}: the column {sorted(lacking)[0]!r} is missing")
        for column in frame.columns[frame.dtypes == "category"]:
            frame[column] = frame[column].astype(str)
        frames[name] = frame if "condition" in frame else frame.assign(condition=AS_MADE)
    path = folder / "lineages.csv"
    try:
        lineages = pd.read_csv(path, dtype=str)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error
    if "name" not in lineages:
        raise DataError(f"{path}: the column 'name' is missing")
    return Results(frames["scores"], frames["items"], lineages)


def judged(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of models that their rule can judge.

    It cannot where it does not apply, nor where it withholds its verdict for want of a clean model
    to compare with.
    """
    rows = rows[rows["verdict"] != "not_applicable"]
    if "lacks_reference" in rows:
        rows = rows[~(rows["lacks_reference"] & (rows["verdict"] == "inconclusive"))]
    return rows


def flagged(rows: pd.DataFrame, *, exact: bool = False) -> ClusteredRate:
    """Return the rate of verdicts "contaminated"; lineages are the clusters."""
    counts = (
        (rows["verdict"] == "contaminated").groupby(rows["lineage"]).agg(["sum", "size"]).to_numpy()
    )
    return clustered_rate([(int(k), int(n)) for k, n in counts], exact=exact)


def mean_share_cell(shares: Sequence[float]) -> Cell:
    """Return the mean in percent, with Wilson's interval of as many cases: shares vary no more."""
    n = len(shares)
    if not n:
        return Cell(formats.NOTHING)
    mean = float(np.mean(shares))
    between = wilson_interval(n * mean, n)
    return Cell(formats.percent(mean), formats.interval(between, formats.percent))


def suspicion(rows: pd.DataFrame) -> NDArray[np.float64]:
    """Return the statistics, shape (M,), with the sign for which larger is more suspicious."""
    signs = np.where(rows["direction"] == "falls", -1.0, 1.0)
    values: NDArray[np.float64] = rows["statistic"].to_numpy(dtype=float) * signs
    return values


def models_of(
    items: pd.DataFrame, condition: str = AS_MADE
) -> Iterator[tuple[tuple[str, str, str], pd.DataFrame]]:
    """Yield (lineage, kind, arm) and rows of each model asked about a condition's pairs."""
    items = items[items["condition"] == condition]
    for key, rows in items.groupby(["lineage", "kind", "arm"], sort=True):
        lineage, kind, arm = map(str, key)
        yield (lineage, kind, arm), rows

"""What people see in the flagged pairs of a corpus audit: labels, agreement, a consensus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from flipbench.core.files import write_atomically
from flipbench.core.rates import Rate
from flipbench.core.records import Adjudication
from flipbench.core.run import Run
from flipbench.reporting import formats
from flipbench.reporting.tables import (
    Column,
    Content,
    Table,
    build_table,
    estimate_cell,
    text_column,
)
from flipbench.reporting.writers import records_csv, write_tables

from ..audit.corpus_overlap.flagged import FLAGGED, LABELS, FlaggedPair, read_flagged
from .agreement import Agreement, Estimate, agreement, krippendorff_alpha

UNSETTLED = "ambiguous"


@dataclass(frozen=True)
class AdjudicatedPair:
    """A flagged pair and what people say of it.

    Attributes
    ----------
    labels, notes : dict of str to str
        By rater; without those who have not decided, or written nothing.
    consensus : str
        The label of more than half of the raters who decided; without one, ``ambiguous``. Empty if
        nobody decided.
    is_disputed : bool
        Whether no label has such a majority.
    """

    flagged: FlaggedPair
    labels: dict[str, str]
    notes: dict[str, str]
    consensus: str
    is_disputed: bool


@dataclass(frozen=True)
class AdjudicationOutcome:
    """The adjudication of a run's flagged pairs.

    Attributes
    ----------
    pairs : tuple of AdjudicatedPair
        All flagged pairs, in the order of the audit.
    raters : tuple of str
    agreements : tuple of Agreement
        Every two raters, over all labels.
    alpha : Estimate
        Krippendorff's nominal alpha of all raters.
    """

    pairs: tuple[AdjudicatedPair, ...]
    raters: tuple[str, ...]
    agreements: tuple[Agreement, ...]
    alpha: Estimate

    @property
    def n_pairs(self) -> int:
        """Number of flagged pairs."""
        return len(self.pairs)

    @property
    def n_raters(self) -> int:
        """Number of people who decided on any pair."""
        return len(self.raters)

    @property
    def n_labelled(self) -> int:
        """Number of pairs that at least one person decided on."""
        return sum(bool(pair.labels) for pair in self.pairs)

    @property
    def disputed(self) -> list[AdjudicatedPair]:
        """The pairs without a majority, which count as ambiguous."""
        return [pair for pair in self.pairs if pair.is_disputed]

    @property
    def counts(self) -> dict[str, int]:
        """Number of pairs by consensus label; they sum to ``n_labelled``."""
        return self.counts_of({pair.flagged.key for pair in self.pairs})

    def counts_of(self, keys: Collection[tuple[str, str]]) -> dict[str, int]:
        """Return the number of labelled pairs by label among those with these keys."""
        counts = Counter(pair.consensus for pair in self.pairs if pair.flagged.key in keys)
        return {label: counts[label] for label in LABELS}

    @property
    def kappa(self) -> Estimate:
        """Cohen's kappa of two raters, alpha of more; undefined for one."""
        return self.agreements[0].kappa if self.n_raters == 2 else self.alpha

    def __str__(self) -> str:
        """Return the consensus and how well the raters agree, on one line."""
        if not self.n_labelled:
            return f"none of {self.n_pairs} flagged pairs is adjudicated"
        counts = (
            f"{n} of {self.n_labelled} {LABELS[label]}" for label, n in self.counts.items() if n
        )
        text = ", ".join(counts)
        if self.disputed:
            text += f" (without a majority: {len(self.disputed)})"
        if self.n_labelled < self.n_pairs:
            text += f", {self.n_pairs - self.n_labelled} not adjudicated"
        if self.n_raters < 2:
            return f"{text}; one rater, so agreement is unknown"
        name = "kappa" if self.n_raters == 2 else "alpha"
        value = estimate_cell(self.kappa.value, self.kappa.interval, digits=2).plain()
        return f"{text}; {self.n_raters} raters, {name} {value}"


def adjudication_outcome(
    flagged: Sequence[FlaggedPair], adjudications: Iterable[Adjudication], *, seed: int = 0
) -> AdjudicationOutcome:
    """Return the consensus on each flagged pair and how well the raters agree.

    Parameters
    ----------
    flagged : sequence of FlaggedPair
        Adjudications of other pairs, such as those of an earlier audit, are ignored.
    adjudications : iterable of Adjudication
        The newest of each person on each pair counts, unless it is withdrawn.

    References
    ----------
    Agreement and its 95 % bootstrap intervals as in `agreement`; whole benchmark pictures are
    resampled, since each may be in several pairs.
    """
    newest: dict[tuple[str, str], dict[str, Adjudication]] = {pair.key: {} for pair in flagged}
    for adjudication in adjudications:
        key = adjudication.benchmark_sha256, adjudication.corpus_sha256
        if key in newest:
            previous = newest[key].setdefault(adjudication.rater, adjudication)
            newest[key][adjudication.rater] = max(previous, adjudication, key=lambda a: a.run)
    pairs = tuple(_adjudicated(pair, newest[pair.key].values()) for pair in flagged)
    raters = tuple(sorted({rater for pair in pairs for rater in pair.labels}))
    ids = [" ".join(pair.flagged.key) for pair in pairs]
    clusters = {i: pair.flagged.key[0] for i, pair in zip(ids, pairs, strict=True)}
    ratings = {
        rater: {
            i: pair.labels[rater]
            for i, pair in zip(ids, pairs, strict=True)
            if rater in pair.labels
        }
        for rater in raters
    }
    labels = tuple(LABELS)
    alpha, _ = krippendorff_alpha(ratings, labels=labels, clusters=clusters, seed=seed)
    agreements = tuple(
        agreement(a, b, ratings, labels=labels, clusters=clusters, seed=seed)
        for a, b in combinations(raters, 2)
    )
    return AdjudicationOutcome(pairs, raters, agreements, alpha)


def adjudication_of(run: Run, *, seed: int = 0) -> AdjudicationOutcome:
    """Return the adjudication of the flagged pairs of a run.

    Raises
    ------
    DataError
        If there is no file of flagged pairs, or it is damaged.
    """
    return adjudication_outcome(read_flagged(run.path), run.read(Adjudication), seed=seed)


def adjudication_tables(outcome: AdjudicationOutcome) -> list[Table]:
    """Return labels by rater, agreement of every two raters, and the pairs without a majority."""
    raters = outcome.raters
    counts = {rater: Counter(pair.labels.get(rater) for pair in outcome.pairs) for rater in raters}
    alpha = estimate_cell(outcome.alpha.value, outcome.alpha.interval, digits=2).plain()

    def count_by(rater: str) -> tuple[Column, Callable[[str], Content]]:
        return Column(rater), lambda label: counts[rater][label]

    def label_by(rater: str) -> tuple[Column, Callable[[AdjudicatedPair], Content]]:
        return text_column(rater), lambda pair: pair.labels.get(rater)

    tables = [
        build_table(
            "adjudication_labels",
            f"What {_people(raters)} in the flagged pairs. Consensus: the label of more than half"
            f" of a pair's raters, of the {outcome.n_labelled} pairs (of {outcome.n_pairs}) that"
            f" anyone labelled, with Wilson intervals. {len(outcome.disputed)} pairs have no"
            " majority and count as ambiguous. The pairs are all that were flagged, not a"
            " sample of the benchmark.",
            "label",
            [
                *map(count_by, raters),
                ("consensus", lambda label: Rate.wilson(outcome.counts[label], outcome.n_labelled)),
            ],
            {"": [(name, label) for label, name in LABELS.items()]},
        ),
        build_table(
            "adjudication_agreement",
            "Every two raters on the pairs that both labelled. Cohen's kappa over the five"
            " labels, undefined if both give only one and the same; 95 % intervals: Wilson, and"
            f" a bootstrap over benchmark pictures. Krippendorff's alpha of all: {alpha}.",
            "raters",
            [
                ("n", lambda a: a.n),
                ("agreement", lambda a: formats.rate(a.raw)),
                ("kappa", lambda a: estimate_cell(a.kappa.value, a.kappa.interval, digits=2)),
            ],
            {"": [(f"{a.first} and {a.second}", a) for a in outcome.agreements]},
        ),
        build_table(
            "adjudication_disputed",
            "Pairs without a majority.",
            "benchmark picture",
            [
                (text_column("corpus picture"), lambda pair: pair.flagged.corpus_key),
                ("distance", lambda pair: formats.decimals(pair.flagged.distance, 4)),
                *map(label_by, raters),
            ],
            {
                "": [
                    ((*pair.flagged.items, pair.flagged.key[0][:12])[0], pair)
                    for pair in outcome.disputed
                ]
            },
        ),
    ]
    return [table for table in tables if table.rows]


def write_adjudication(outcome: AdjudicationOutcome, run_path: Path) -> Path:
    """Write ``adjudication.csv``, a row per flagged pair, and the tables; return their page.

    Raises
    ------
    DataError
        If the folder cannot be written.
    """
    folder = (run_path / FLAGGED).parent
    rows = [
        {
            "benchmark_sha256": pair.flagged.key[0],
            "corpus_sha256": pair.flagged.key[1],
            "corpus_key": pair.flagged.corpus_key,
            "distance": pair.flagged.distance,
            "items": "; ".join(pair.flagged.items),
            "category": pair.flagged.category,
            "consensus": pair.consensus,
            "disputed": "yes" if pair.is_disputed else "no",
            "n_raters": len(pair.labels),
            "notes": "; ".join(f"{rater}: {note}" for rater, note in pair.notes.items()),
        }
        | {f"label of {rater}": pair.labels.get(rater, "") for rater in outcome.raters}
        for pair in outcome.pairs
    ]
    write_atomically(folder / "adjudication.csv", records_csv(rows))
    title = "Adjudication of the flagged pairs"
    return write_tables(adjudication_tables(outcome), folder, "adjudication.md", title)


def _adjudicated(flagged: FlaggedPair, newest: Collection[Adjudication]) -> AdjudicatedPair:
    labels = {a.rater: a.label for a in sorted(newest, key=lambda a: a.rater) if a.label}
    notes = {a.rater: a.note for a in newest if a.label and a.note}
    votes = Counter(labels.values()).most_common(1)
    if not votes:
        return AdjudicatedPair(flagged, {}, {}, "", is_disputed=False)
    label, n = votes[0]
    is_disputed = 2 * n <= len(labels)
    consensus = UNSETTLED if is_disputed else label
    return AdjudicatedPair(flagged, dict(labels), notes, consensus, is_disputed)


def _people(raters: Sequence[str]) -> str:
    if len(raters) < 2:
        return f"{raters[0]} sees" if raters else "people see"
    return f"{', '.join(raters[:-1])} and {raters[-1]} see"

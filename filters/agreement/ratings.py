"""Verdicts as ratings: who decided what on which edited image, ready to be compared."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from flipbench.config.policy import Policy
from flipbench.core.errors import DataError, nearest
from flipbench.core.paired import Candidate
from flipbench.models.protocols import Decision
from flipbench.reporting import formats
from flipbench.reporting.tables import Cell, Column, Row, Table, estimate_cell

from ..decide import Book, Ruling, counted, tally, verdicts_on
from .agreement import Agreement, Estimate, agreement, krippendorff_alpha

PEOPLE = "people"


@dataclass(frozen=True)
class Ratings:
    """Decisions by rater and edit id, with what is known of each edit.

    Attributes
    ----------
    decisions : dict of str to dict
        By rater. Several runs of a judge are one rater, by the policy's vote over runs; ``people``
        is what several people make together, where there are several.
    kinds : dict of str to str
        ``person``, ``judge``, ``rule`` or ``oracle``, by rater.
    categories, originals : dict of str to str
        Category and sha256 of the original picture, by edit id.
    """

    decisions: dict[str, dict[str, Decision]]
    kinds: dict[str, str]
    categories: dict[str, str]
    originals: dict[str, str]

    def add(self, rater: str, decisions: Mapping[str, Decision]) -> Ratings:
        """Return the same with one more rater that is no one's verdict: a policy, the truth."""
        return replace(self, decisions=self.decisions | {rater: dict(decisions)})


def persons(ratings: Ratings) -> list[str]:
    """Return the people who have rated, by name."""
    return [r for r, kind in ratings.kinds.items() if kind == "person" and r != PEOPLE]


def rulings_as_ratings(rulings: Sequence[Ruling]) -> dict[str, Decision]:
    """Return what a policy decided by edit id, to be held against people or the truth."""
    return {r.candidate.edit.id: r.decision for r in rulings if r.candidate.edit is not None}


def ratings_of(candidates: Sequence[Candidate], book: Book, policy: Policy) -> Ratings:
    """Return all ratings of the candidates' edited images, of whomever a run has verdicts."""
    decisions: dict[str, dict[str, Decision]] = defaultdict(dict)
    found = Ratings({}, {}, {}, {})
    several = set()
    for candidate in candidates:
        if candidate.edit is None:
            continue
        edit_id = candidate.edit.id
        found.categories[edit_id] = candidate.item.category
        found.originals[edit_id] = candidate.item.images[0].sha256
        votes: dict[str, list[Decision]] = defaultdict(list)
        for verdict in verdicts_on(candidate, book):
            found.kinds[verdict.rater] = verdict.rater_kind
            votes[verdict.rater].append(counted(verdict, candidate, policy))
        for rater, given in votes.items():
            decisions[rater][edit_id] = tally(given, policy.runs)
        people = [rater for rater in votes if found.kinds[rater] == "person"]
        several.update(people)
        if people:
            together = [decisions[person][edit_id] for person in people]
            decisions[PEOPLE][edit_id] = tally(together, policy.among_people)
    if len(several) == 1:
        decisions.pop(PEOPLE)
    elif several:
        found.kinds[PEOPLE] = "person"
    return replace(found, decisions=dict(decisions))


@dataclass(frozen=True)
class AgreementReport:
    """Every rater against one reference, overall and by category, and alpha over all people.

    Attributes
    ----------
    by_category : dict of str to list of Agreement
        In the order of ``overall``.
    alpha : Estimate
        Krippendorff's alpha of the people (of people and judges, where there is one person).
    """

    reference: str
    overall: list[Agreement]
    by_category: dict[str, list[Agreement]]
    alpha: Estimate
    alpha_of: tuple[str, ...]
    alpha_n: int


def compare_raters(
    ratings: Ratings, reference: str, *, three: bool = False, seed: int = 0
) -> AgreementReport:
    """Hold every other rater against ``reference``.

    The reference is a person, ``people`` (one or several), or on ``shapes`` the oracle; add a
    policy's own rulings or the known truth as one more rater of ``ratings.decisions``.

    Raises
    ------
    DataError
        If the reference has rated nothing.
    """
    if reference == PEOPLE and len(people := persons(ratings)) == 1:
        (reference,) = people
    if reference not in ratings.decisions:
        known = list(ratings.decisions)
        raise DataError(
            f"{reference!r} has rated none of these images{nearest(reference, known)};"
            f" there are verdicts of {', '.join(known) or 'nobody'}"
        )
    others = sorted(rater for rater in ratings.decisions if rater != reference)

    def against(ids: set[str]) -> list[Agreement]:
        decisions = {
            rater: {i: d for i, d in given.items() if i in ids}
            for rater, given in ratings.decisions.items()
        }
        return [
            agreement(
                rater, reference, decisions, three=three, clusters=ratings.originals, seed=seed
            )
            for rater in others
        ]

    categories: dict[str, set[str]] = defaultdict(set)
    for edit_id, category in ratings.categories.items():
        categories[category].add(edit_id)
    raters = _independent(ratings)
    alpha, n = krippendorff_alpha(
        {rater: ratings.decisions[rater] for rater in raters},
        three=three,
        clusters=ratings.originals,
        seed=seed,
    )
    return AgreementReport(
        reference=reference,
        overall=against(set(ratings.categories)),
        by_category={c: against(ids) for c, ids in sorted(categories.items())},
        alpha=alpha,
        alpha_of=raters,
        alpha_n=n,
    )


def agreement_tables(report: AgreementReport) -> list[Table]:
    """Return overall agreement, agreement by category, and the confusion counts."""
    alpha = estimate_cell(report.alpha.value, report.alpha.interval).plain()
    by_category = tuple(
        Row(category or "(none)", (Cell(a.first), *_cells(a)))
        for category, found in report.by_category.items()
        for a in found
        if a.n
    )
    confusion = tuple(
        Row(a.first, (Cell(name), *(Cell(str(n)) for n in row)))
        for a in report.overall
        for name, row in zip(a.categories, a.counts, strict=True)
    )
    return [
        Table(
            "agreement",
            f"Raters against {report.reference}. Precision and recall are of keeping; undecided"
            " counts as not kept. Rates with counts and Wilson intervals, kappa and AC1 with"
            f" bootstrap intervals, all 95 %. Krippendorff's alpha of {', '.join(report.alpha_of)}"
            f" on {report.alpha_n} images: {alpha}.",
            "rater",
            tuple(map(Column, _HEADERS)),
            (("", tuple(Row(a.first, _cells(a)) for a in report.overall)),),
        ),
        Table(
            "agreement_by_category",
            f"The same by category, against {report.reference}.",
            "category",
            (Column("rater", numeric=False), *map(Column, _HEADERS)),
            (("", by_category),),
        ),
        Table(
            "confusion",
            f"What each rater says where {report.reference} says the other.",
            "rater",
            (
                Column("says", numeric=False),
                *(Column(f"{report.reference}: {c}") for c in _categories(report)),
            ),
            (("", confusion),),
        ),
    ]


_HEADERS = (
    "n",
    "agreement",
    "kappa",
    "AC1",
    "precision",
    "recall",
    "rejections right",
    "bad ones rejected",
    "rated by one only",
)


def _cells(a: Agreement) -> tuple[Cell, ...]:
    rates = (a.precision, a.recall, a.rejection_precision, a.rejection_recall)
    estimates = (estimate_cell(e.value, e.interval) for e in (a.kappa, a.ac1))
    shares = (Cell(formats.rate(rate)) for rate in rates)
    raw = Cell(formats.rate(a.raw))
    return (Cell(str(a.n)), raw, *estimates, *shares, Cell(str(a.n_one_only)))


def _categories(report: AgreementReport) -> tuple[str, ...]:
    return report.overall[0].categories if report.overall else ()


def _independent(ratings: Ratings) -> tuple[str, ...]:
    """Return the people; with only one, people, judges and oracles; never what is derived."""
    kinds: Mapping[str, str] = ratings.kinds
    raters = sorted(r for r in ratings.decisions if r in kinds and r != PEOPLE)
    people = tuple(r for r in raters if kinds[r] == "person")
    return people if len(people) > 1 else tuple(r for r in raters if kinds[r] != "rule")

"""Verdicts as ratings that can be compared: each rater's decision on each edited image."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from flipbench.config.policy import Policy
from flipbench.core.errors import DataError, nearest
from flipbench.core.paired import Candidate
from flipbench.models.protocols import Decision
from flipbench.reporting import formats
from flipbench.reporting.tables import Cell, Column, Row, Table, estimate_cell

from ..decide import VerdictIndex, effective_decision, tally, verdicts_on
from .agreement import KEPT, Agreement, Estimate, agreement, krippendorff_alpha

PEOPLE = "people"


@dataclass(frozen=True)
class Ratings:
    """Decisions by rater and edit id, with what is known of each edit.

    Attributes
    ----------
    decisions : dict of str to dict
        By rater. Several runs of a judge are combined by the policy's vote over runs; with several
        people, ``people`` is their combined decision.
    kinds : dict of str to str
        ``person``, ``judge``, ``rule`` or ``oracle``, by rater.
    categories, originals : dict of str to str
        Category and sha256 of the original image, by edit id.
    without : dict of (str, str) to dict
        Decisions of a combined rater without one of its members, by (combined, member): nobody is
        held against a reference that includes them.
    """

    decisions: dict[str, dict[str, Decision]]
    kinds: dict[str, str]
    categories: dict[str, str]
    originals: dict[str, str]
    without: dict[tuple[str, str], dict[str, Decision]] = field(default_factory=dict)

    def add(
        self,
        rater: str,
        decisions: Mapping[str, Decision],
        without: Mapping[str, Mapping[str, Decision]] | None = None,
    ) -> Ratings:
        """Return a copy with one more rater, such as a policy or the known truth.

        ``without`` gives its decisions without each of its members.
        """
        members = {(rater, member): dict(d) for member, d in (without or {}).items()}
        return replace(
            self,
            decisions=self.decisions | {rater: dict(decisions)},
            without=self.without | members,
        )

    def between(self, first: str, second: str) -> dict[str, dict[str, Decision]]:
        """Return the decisions of two raters, each without the other."""
        pairs = ((first, second), (second, first))
        return {a: self.without.get((a, b), self.decisions[a]) for a, b in pairs}


def ratings_of(candidates: Sequence[Candidate], verdicts: VerdictIndex, policy: Policy) -> Ratings:
    """Return all raters' decisions on the candidates' edited images."""
    decisions: dict[str, dict[str, Decision]] = defaultdict(dict)
    ratings = Ratings({}, {}, {}, {})
    people: set[str] = set()
    for candidate in candidates:
        if candidate.edit is None:
            continue
        edit_id = candidate.edit.id
        ratings.categories[edit_id] = candidate.item.category
        ratings.originals[edit_id] = candidate.source.sha256
        votes: dict[str, list[Decision]] = defaultdict(list)
        for verdict in verdicts_on(candidate, verdicts):
            ratings.kinds[verdict.rater] = verdict.rater_kind
            votes[verdict.rater].append(effective_decision(verdict, candidate, policy))
        for rater, runs in votes.items():
            decisions[rater][edit_id] = tally(runs, policy.runs)
        people.update(rater for rater in votes if ratings.kinds[rater] == "person")
    if len(people) > 1:
        ratings.kinds[PEOPLE] = "person"
        by_person = {person: decisions[person] for person in sorted(people)}
        decisions[PEOPLE] = _combined(by_person, policy)
        for person in by_person:
            others = {p: given for p, given in by_person.items() if p != person}
            ratings.without[PEOPLE, person] = _combined(others, policy)
    return replace(ratings, decisions=dict(decisions))


def _combined(
    by_person: Mapping[str, Mapping[str, Decision]], policy: Policy
) -> dict[str, Decision]:
    edit_ids = {edit_id for given in by_person.values() for edit_id in given}
    return {
        i: tally([given[i] for given in by_person.values() if i in given], policy.among_people)
        for i in sorted(edit_ids)
    }


@dataclass(frozen=True)
class AgreementReport:
    """Every rater against one reference, overall and by category, and alpha over all people.

    Attributes
    ----------
    by_category : dict of str to list of Agreement
        In the order of ``overall``.
    alpha : Estimate
        Krippendorff's alpha of the people or, with fewer than two, of people, judges and oracles.
    """

    reference: str
    overall: list[Agreement]
    by_category: dict[str, list[Agreement]]
    alpha: Estimate
    alpha_of: tuple[str, ...]
    alpha_n: int


def compare_raters(ratings: Ratings, reference: str, *, seed: int = 0) -> AgreementReport:
    """Compare every other rater with ``reference``, which does not include the rater compared.

    The reference is a person, ``people`` (one or several), or on ``shapes`` the oracle; use
    `Ratings.add` for a policy's rulings or the known truth.

    Raises
    ------
    DataError
        If the reference has rated none of the images.
    """
    people = [r for r, kind in ratings.kinds.items() if kind == "person" and r != PEOPLE]
    if reference == PEOPLE and len(people) == 1:
        (reference,) = people
    if reference not in ratings.decisions:
        known = list(ratings.decisions)
        raise DataError(
            f"{reference!r} has rated none of these images{nearest(reference, known)};"
            f" raters with verdicts: {', '.join(known) or 'none'}"
        )
    others = sorted(rater for rater in ratings.decisions if rater != reference)

    def against(ids: set[str]) -> list[Agreement]:
        return [
            agreement(
                rater,
                reference,
                {
                    name: {i: decision for i, decision in by_edit.items() if i in ids}
                    for name, by_edit in ratings.between(rater, reference).items()
                },
                clusters=ratings.originals,
                seed=seed,
            )
            for rater in others
        ]

    categories: dict[str, set[str]] = defaultdict(set)
    for edit_id, category in ratings.categories.items():
        categories[category].add(edit_id)
    raters = _independent(ratings)
    alpha, n = krippendorff_alpha(
        {rater: ratings.decisions[rater] for rater in raters},
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
        for category, agreements in report.by_category.items()
        for a in agreements
        if a.n
    )
    confusion = tuple(
        Row(a.first, (Cell(name), *(Cell(str(n)) for n in row)))
        for a in report.overall
        for name, row in zip(KEPT, a.counts, strict=True)
    )
    return [
        Table(
            "agreement",
            f"Raters against {report.reference}, which leaves out the verdicts of the rater"
            " compared. Precision and recall refer to keeping; undecided counts as not kept. Rates"
            " with counts and Wilson intervals, kappa and AC1 with bootstrap intervals, all 95 %."
            f" Krippendorff's alpha of {', '.join(report.alpha_of)} on {report.alpha_n} images:"
            f" {alpha}.",
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
            f"Each rater's decisions against those of {report.reference}.",
            "rater",
            (
                Column("says", numeric=False),
                *(Column(f"{report.reference}: {c}") for c in KEPT),
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


def _independent(ratings: Ratings) -> tuple[str, ...]:
    """Return the people or, with fewer than two, people, judges and oracles; never `PEOPLE`."""
    kinds: Mapping[str, str] = ratings.kinds
    raters = sorted(r for r in ratings.decisions if r in kinds and r != PEOPLE)
    people = tuple(r for r in raters if kinds[r] == "person")
    return people if len(people) > 1 else tuple(r for r in raters if kinds[r] != "rule")

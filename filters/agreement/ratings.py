"""Verdicts as ratings that can be compared, and each rater against a reference."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from flipbench.config.policy import Policy
from flipbench.core.errors import DataError, nearest
from flipbench.core.paired import Candidate
from flipbench.models.protocols import Decision
from flipbench.reporting import formats
from flipbench.reporting.tables import (
    Column,
    Content,
    Table,
    build_table,
    estimate_cell,
    text_column,
)

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

    def against(
        self,
        reference: str,
        raters: Sequence[str],
        edit_ids: Collection[str] | None = None,
        *,
        seed: int = 0,
    ) -> list[Agreement]:
        """Compare raters with a reference that leaves them out, optionally on some edits only."""
        agreements = []
        for rater in raters:
            pairs = ((rater, reference), (reference, rater))
            decisions = {a: self.without.get((a, b), self.decisions[a]) for a, b in pairs}
            if edit_ids is not None:
                decisions = {
                    name: {i: decision for i, decision in by_edit.items() if i in edit_ids}
                    for name, by_edit in decisions.items()
                }
            agreements.append(
                agreement(rater, reference, decisions, clusters=self.originals, seed=seed)
            )
        return agreements

    def alpha(self, raters: Sequence[str], seed: int) -> tuple[Estimate, int]:
        """Return Krippendorff's alpha of raters, and the number of images it is based on."""
        decisions = {rater: self.decisions[rater] for rater in raters}
        return krippendorff_alpha(decisions, clusters=self.originals, seed=seed)

    def of_kind(self, *kinds: str) -> tuple[str, ...]:
        """Return the raters of some kinds, sorted, without `PEOPLE`."""
        raters = sorted(self.decisions)
        return tuple(r for r in raters if self.kinds.get(r) in kinds and r != PEOPLE)


def ratings_of(candidates: Sequence[Candidate], verdicts: VerdictIndex, policy: Policy) -> Ratings:
    """Return all raters' decisions on the candidates' edited images."""
    decisions: dict[str, dict[str, Decision]] = defaultdict(dict)
    ratings = Ratings({}, {}, {}, {})
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
    people = sorted(rater for rater in decisions if ratings.kinds[rater] == "person")
    if len(people) > 1:
        ratings.kinds[PEOPLE] = "person"
        decisions[PEOPLE] = _combine([decisions[person] for person in people], policy)
        for person in people:
            colleagues = [decisions[colleague] for colleague in people if colleague != person]
            ratings.without[PEOPLE, person] = _combine(colleagues, policy)
    return replace(ratings, decisions=dict(decisions))


def _combine(people: Sequence[Mapping[str, Decision]], policy: Policy) -> dict[str, Decision]:
    """Return the decision of several people on each image that any of them rated."""
    return {
        edit_id: tally([d[edit_id] for d in people if edit_id in d], policy.among_people)
        for edit_id in sorted({edit_id for decisions in people for edit_id in decisions})
    }


# --- the agreement command ------------------------------------------------------------------------


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
    people = ratings.of_kind("person")
    if reference == PEOPLE and len(people) == 1:
        (reference,) = people
    if reference not in ratings.decisions:
        names = list(ratings.decisions)
        raise DataError(
            f"{reference!r} has rated none of these images{nearest(reference, names)};"
            f" raters with verdicts: {', '.join(names) or 'none'}"
        )
    raters = sorted(rater for rater in ratings.decisions if rater != reference)
    edit_ids: dict[str, set[str]] = defaultdict(set)
    for edit_id, category in ratings.categories.items():
        edit_ids[category].add(edit_id)
    alpha_of = people if len(people) > 1 else ratings.of_kind("person", "judge", "oracle")
    alpha, n = ratings.alpha(alpha_of, seed)
    return AgreementReport(
        reference=reference,
        overall=ratings.against(reference, raters, set(ratings.categories), seed=seed),
        by_category={
            category: ratings.against(reference, raters, ids, seed=seed)
            for category, ids in sorted(edit_ids.items())
        },
        alpha=alpha,
        alpha_of=alpha_of,
        alpha_n=n,
    )


_Columns = list[tuple[Column | str, Callable[[Any], Content]]]
_AGREEMENT: _Columns = [
    ("n", lambda a: a.n),
    ("agreement", lambda a: formats.rate(a.raw)),
    ("kappa", lambda a: estimate_cell(a.kappa.value, a.kappa.interval)),
    ("AC1", lambda a: estimate_cell(a.ac1.value, a.ac1.interval)),
    ("precision", lambda a: formats.rate(a.precision)),
    ("recall", lambda a: formats.rate(a.recall)),
    ("rejections right", lambda a: formats.rate(a.rejection_precision)),
    ("bad ones rejected", lambda a: formats.rate(a.rejection_recall)),
    ("rated by one only", lambda a: a.n_one_only),
]


def agreement_tables(report: AgreementReport) -> list[Table]:
    """Return overall agreement, agreement by category, and the confusion counts."""
    alpha = estimate_cell(report.alpha.value, report.alpha.interval).plain()
    reference = report.reference
    return [
        build_table(
            "agreement",
            f"Raters against {reference}, which leaves out the verdicts of the rater"
            " compared. Precision and recall refer to keeping; undecided counts as not kept. Rates"
            " with counts and Wilson intervals, kappa and AC1 with bootstrap intervals, all 95 %."
            f" Krippendorff's alpha of {', '.join(report.alpha_of)} on {report.alpha_n} images:"
            f" {alpha}.",
            "rater",
            _AGREEMENT,
            {"": [(a.first, a) for a in report.overall]},
        ),
        build_table(
            "agreement_by_category",
            f"The same by category, against {reference}.",
            "category",
            [(text_column("rater"), lambda a: a.first), *_AGREEMENT],
            {
                "": [
                    (category or "(none)", a)
                    for category, agreements in report.by_category.items()
                    for a in agreements
                    if a.n
                ]
            },
        ),
        build_table(
            "confusion",
            f"Each rater's decisions against those of {reference}.",
            "rater",
            [
                (text_column("says"), lambda row: KEPT[row[1]]),
                (f"{reference}: {KEPT[0]}", lambda row: row[0].counts[row[1]][0]),
                (f"{reference}: {KEPT[1]}", lambda row: row[0].counts[row[1]][1]),
            ],
            {"": [(a.first, (a, row)) for a in report.overall for row in range(len(KEPT))]},
        ),
    ]


# --- the report's table ---------------------------------------------------------------------------

_KINDS = {"judge": "Judges", "oracle": "Oracle", "person": "People", "rule": "Rules"}
_RATERS: _Columns = [
    ("Both keep", lambda a: f"{a.counts[0][0]}/{a.n}"),
    ("Rater alone keeps", lambda a: f"{a.counts[0][1]}/{a.n}"),
    ("Reference alone keeps", lambda a: f"{a.counts[1][0]}/{a.n}"),
    ("Neither keeps", lambda a: f"{a.counts[1][1]}/{a.n}"),
    ("Precision, %", lambda a: a.precision),
    ("Recall, %", lambda a: a.recall),
    ("Bad ones rejected, %", lambda a: a.rejection_recall),
    ("Kappa", lambda a: estimate_cell(a.kappa.value, a.kappa.interval, digits=2)),
]


def reference_of(ratings: Ratings) -> str | None:
    """Return the rater to compare the others with: people, else the oracle, else None."""
    if PEOPLE in ratings.decisions:
        return PEOPLE
    by_kind = [
        rater
        for kind in ("person", "oracle")
        for rater in ratings.decisions
        if ratings.kinds.get(rater) == kind
    ]
    return by_kind[0] if by_kind else None


def rater_table(ratings: Ratings, *, seed: int = 0) -> Table | None:
    """Return every other rater against the reference; None without a reference or other raters.

    If the reference is ``people``, individual people are left out. So is a rule that did not rate
    every image, since it stems from an earlier configuration.
    """
    reference = reference_of(ratings)
    if reference is None:
        return None
    n_edits = len(ratings.originals)
    by_kind = {
        name: ratings.against(
            reference,
            [
                rater
                for rater in ratings.of_kind(kind)
                if rater != reference
                and not (kind == "person" and reference == PEOPLE)
                and not (kind == "rule" and len(ratings.decisions[rater]) < n_edits)
            ],
            seed=seed,
        )
        for kind, name in _KINDS.items()
    }
    caption = [
        f"Each rater against the reference, {reference}, on the edited images rated by both."
        " Undecided counts as not kept; a rule’s “keep” means that it has no objection. Precision:"
        " share of the rater’s keeps that the reference keeps. Recall: share of the reference’s"
        " keeps that the rater keeps. Bad ones rejected: share of what the reference does not keep"
        " that the rater does not keep either. 95 % intervals: Wilson; for kappa, a bootstrap over"
        " original images. Kappa is undefined if both raters give only one and the same rating."
    ]
    n_rated = len(ratings.decisions[reference])
    if n_rated < n_edits:
        caption.append(
            f"The reference rated {n_rated} of {n_edits} edited images; these numbers do not cover"
            " the others, which may be easier or harder."
        )
    if reference == PEOPLE:
        people = ratings.of_kind("person")
        alpha, n = ratings.alpha(people, seed)
        value = estimate_cell(alpha.value, alpha.interval).plain()
        caption.append(f"Krippendorff’s alpha among {', '.join(people)}, on {n} images: {value}.")
    table = build_table(
        "raters",
        " ".join(caption),
        "Rater",
        _RATERS,
        {name: [(a.first, a) for a in agreements if a.n] for name, agreements in by_kind.items()},
    )
    return table if table.rows else None

"""Who decided which pairs are valid, and how well: every rater against the best one there is."""

from __future__ import annotations

from flipbench.reporting.tables import Cell, Column, Row, Table, estimate_cell, rate_cell

from .agreement import Agreement, agreement, krippendorff_alpha
from .ratings import PEOPLE, Ratings

_HEADERS = (
    "Both keep",
    "Rater alone keeps",
    "Reference alone keeps",
    "Neither keeps",
    "Precision, %",
    "Recall, %",
    "Bad ones rejected, %",
    "Kappa",
)
_KINDS = {"judge": "Judges", "oracle": "Oracle", "person": "People", "rule": "Rules"}


def reference_of(ratings: Ratings) -> str | None:
    """Return whom the others are held against: the people, else the oracle, else nobody."""
    if PEOPLE in ratings.decisions:
        return PEOPLE
    for best in ("person", "oracle"):
        known = [rater for rater in ratings.decisions if ratings.kinds.get(rater) == best]
        if known:
            return known[0]
    return None


def rater_table(ratings: Ratings, *, seed: int = 0) -> Table | None:
    """Return every other rater against the reference; None without one, or without others.

    The people of whom a reference consists are not held against it, and a rule that has not seen
    every picture is an older run's.
    """
    reference = reference_of(ratings)
    if reference is None:
        return None
    raters = [rater for rater in ratings.decisions if rater != reference]
    raters = [r for r in raters if not (_is(r, "person", ratings) and reference == PEOPLE)]
    n_edits = len(ratings.originals)
    raters = [
        r for r in raters if not _is(r, "rule", ratings) or len(ratings.decisions[r]) == n_edits
    ]
    found = [
        agreement(rater, reference, ratings.decisions, clusters=ratings.originals, seed=seed)
        for rater in sorted(raters, key=lambda r: (list(_KINDS).index(ratings.kinds[r]), r))
    ]
    groups: dict[str, list[Row]] = {}
    for a in found:
        if a.n:
            groups.setdefault(_KINDS[ratings.kinds[a.first]], []).append(_row(a))
    if not groups:
        return None
    said = [
        f"Each rater against the reference, {reference}, on the edited pictures that both have"
        " rated; what is undecided counts as not kept, and a rule’s “keep” means that it has no"
        " objection. Precision: of what the rater keeps, the share that the reference keeps."
        " Recall: of what the reference keeps, the share that the rater keeps. Bad ones rejected:"
        " of what the reference does not keep, the share that the rater does not keep. 95 %"
        " intervals: Wilson; for kappa a bootstrap over original pictures. Kappa is undefined"
        " where both only ever say one and the same."
    ]
    n_rated = len(ratings.decisions[reference])
    if n_rated < n_edits:
        said.append(
            f"The reference rated {n_rated} of {n_edits} edited pictures: of the others, which may"
            " be easier or harder, these numbers say nothing."
        )
    if reference == PEOPLE:
        said.append(_alpha(ratings, seed))
    return Table(
        "raters",
        " ".join(said),
        "Rater",
        tuple(map(Column, _HEADERS)),
        tuple((name, tuple(rows)) for name, rows in groups.items()),
    )


def _row(a: Agreement) -> Row:
    (both, rater), (reference, neither) = a.counts
    counts = (Cell(f"{k}/{a.n}") for k in (both, rater, reference, neither))
    rates = (a.precision, a.recall, a.rejection_recall)
    kappa = estimate_cell(a.kappa.value, a.kappa.interval, digits=2)
    return Row(a.first, (*counts, *map(rate_cell, rates), kappa))


def _alpha(ratings: Ratings, seed: int) -> str:
    """Return Krippendorff's alpha of the people, as a sentence."""
    people = sorted(r for r in ratings.decisions if _is(r, "person", ratings) and r != PEOPLE)
    decisions = {person: ratings.decisions[person] for person in people}
    alpha, n = krippendorff_alpha(decisions, clusters=ratings.originals, seed=seed)
    among = f"{', '.join(people)}, on {n} pictures"
    return (
        f"Krippendorff’s alpha among {among}: {estimate_cell(alpha.value, alpha.interval).plain()}."
    )


def _is(rater: str, kind: str, ratings: Ratings) -> bool:
    return ratings.kinds.get(rater) == kind

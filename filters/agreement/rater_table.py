"""One table that compares every rater with the most reliable one."""

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
    """Return the rater to compare the others with: people, else the oracle, else None."""
    if PEOPLE in ratings.decisions:
        return PEOPLE
    for kind in ("person", "oracle"):
        for rater in ratings.decisions:
            if _is(rater, kind, ratings):
                return rater
    return None


def rater_table(ratings: Ratings, *, seed: int = 0) -> Table | None:
    """Return every other rater against the reference; None without a reference or other raters.

    If the reference is ``people``, individual people are left out. So is a rule that did not rate
    every image, since it stems from an earlier configuration.
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
    agreements = [
        agreement(
            rater,
            reference,
            ratings.between(rater, reference),
            clusters=ratings.originals,
            seed=seed,
        )
        for rater in sorted(raters, key=lambda r: (list(_KINDS).index(ratings.kinds[r]), r))
    ]
    groups: dict[str, list[Row]] = {}
    for a in agreements:
        if a.n:
            groups.setdefault(_KINDS[ratings.kinds[a.first]], []).append(_row(a))
    if not groups:
        return None
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
        caption.append(_alpha(ratings, seed))
    return Table(
        "raters",
        " ".join(caption),
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
    value = estimate_cell(alpha.value, alpha.interval).plain()
    return f"Krippendorff’s alpha among {', '.join(people)}, on {n} images: {value}."


def _is(rater: str, kind: str, ratings: Ratings) -> bool:
    return ratings.kinds.get(rater) == kind

"""Percentages of whole counts, and gaps of their own row, against brute force."""

from decimal import ROUND_HALF_DOWN, ROUND_HALF_UP, Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flipbench.evaluate.published.consistency import (
    delta_verdict,
    fitting_sizes,
    least_p,
    possible_counts,
    possible_deltas,
    unit,
    unpaired_se,
)
from flipbench.evaluate.statistics.paired import mcnemar_p

DIGITS = st.sampled_from(["1", "0.1", "0.01"])


def rounded(k: int, n: int, digits: str) -> set[Decimal]:
    """Return the percentage of k/n rounded with halves up and with halves down."""
    exact = Decimal(100 * k) / Decimal(n)
    return {exact.quantize(Decimal(digits), how) for how in (ROUND_HALF_UP, ROUND_HALF_DOWN)}


@given(st.integers(1, 300), st.integers(0, 10_000), DIGITS)
def test_possible_counts_round_to_the_printed_percentage(
    n: int, hundredths: int, digits: str
) -> None:
    value = (Decimal(hundredths) / 100).quantize(Decimal(digits))
    expected = [k for k in range(n + 1) if value in rounded(k, n, digits)]
    assert possible_counts(value, n) == expected


@given(st.integers(1, 2000), st.data())
def test_a_true_percentage_is_always_possible(n: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(0, n))
    for value in rounded(k, n, "0.01"):
        assert k in possible_counts(value, n)


def test_zero_items_are_refused() -> None:
    with pytest.raises(ValueError, match="above 0"):
        possible_counts(Decimal("50"), 0)


@given(st.integers(1, 400), st.data())
def test_a_true_gap_is_never_wrong(n: int, data: st.DataObject) -> None:
    a, b = data.draw(st.integers(0, n)), data.draw(st.integers(0, n))
    one, two, gap = (
        (Decimal(100 * k) / n).quantize(Decimal("0.01"), ROUND_HALF_UP) for k in (a, b, b - a)
    )
    assert delta_verdict(one, two, gap, (n, n)) in ("exact", "rounding")
    assert delta_verdict(one, two, gap + Decimal("0.03"), (n, n)) == "wrong"


@pytest.mark.parametrize(
    ("original", "perturbed", "delta", "n", "verdict"),
    [
        ("52.05", "56.36", "4.31", 440, "exact"),
        ("88.11", "57.89", "-30.21", 1900, "rounding"),
        ("47.27", "46.06", "-1.13", 495, "wrong"),
        ("37.78", "68.29", "31.51", 495, "wrong"),
        # the counts give 4.318, which rounds to 4.32; 4.31 is the difference of the figures
        ("52.0", "56.4", "4.3", 440, "rounding"),
    ],
)
def test_printed_gaps_are_checked_against_their_percentages(
    original: str, perturbed: str, delta: str, n: int, verdict: str
) -> None:
    figures = (Decimal(original), Decimal(perturbed), Decimal(delta))
    assert delta_verdict(*figures, (n, n)) == verdict


def test_counts_decide_where_rounding_could_explain_a_gap() -> None:
    """-10.01 lies within rounding of 20.00 and 10.00, but 10/50 and 5/50 differ by 10 exactly."""
    figures = (Decimal("20.00"), Decimal("10.00"), Decimal("-10.01"))
    assert delta_verdict(*figures) == "rounding"
    assert delta_verdict(*figures, (50, 50)) == "wrong"
    assert possible_deltas(figures[0], figures[1], (50, 50)) == [-10]


def test_the_number_of_items_is_inferred_from_percentages() -> None:
    values = [Decimal("72.20"), Decimal("87.72"), Decimal("89.87")]
    assert 464 in fitting_sizes(values, range(400, 520))
    assert fitting_sizes([Decimal("85.84")], (464, 467)) == []


@given(st.integers(0, 30), st.integers(0, 30))
def test_no_paired_table_of_the_same_totals_does_better(b: int, c: int) -> None:
    assert mcnemar_p(b, c) >= least_p(b - c) - 1e-12


def test_standard_error_of_independent_samples() -> None:
    assert unpaired_se([0.5, 0.5], [100, 100]) == pytest.approx((2 * 0.0025) ** 0.5)


def test_unit_follows_the_printed_digits() -> None:
    assert [unit(Decimal(text)) for text in ("43", "43.4", "43.40")] == [
        1,
        unit(Decimal("0.1")),
        unit(Decimal("0.01")),
    ]
    assert unit(Decimal("0.01")) * 100 == 1

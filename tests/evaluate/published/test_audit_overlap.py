"""Table 1 and the threshold sweep of the medical-VLM audit (arXiv 2606.10066), from their counts.

The counts are possible, but their denominators differ: SLAKE is counted by unique pictures, VQA-RAD
and PathVQA by items.
"""

from __future__ import annotations

import csv
from decimal import Decimal
from pathlib import Path

import pytest
from scipy import stats

from flipbench.evaluate.published.consistency import possible_counts
from flipbench.evaluate.published.doctor import examine
from flipbench.evaluate.published.tables import read_published
from flipbench.filters.audit.corpus_overlap.calibration import ALPHAS, binomial_p, sampled_p

PUBLISHED = Path(__file__).parents[2] / "published"
SLAKE = "SLAKE-En (unique images)"
ENCODERS = ("B16", "SO400M")
N_SLAKE_PICTURES, N_SLAKE_ITEMS, N_PATHVQA_ITEMS = 96, 1_061, 6_719
N_BOTH_TEXT_DETECTORS = 64


def read(name: str) -> list[dict[str, str]]:
    with (PUBLISHED / name).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


RATES = read("audit_image_nn_rates.csv")
SWEEP = read("audit_threshold_sweep.csv")
COUNTS = {(row["slice"], row["detector"]): (int(row["k"]), int(row["n"])) for row in RATES}


def flagged(slice_name: str, encoder: str) -> tuple[int, int]:
    return COUNTS[slice_name, f"imageNN_{encoder}"]


def of_alpha(encoder: str, alpha: float) -> dict[str, str]:
    return next(r for r in SWEEP if r["backbone"] == encoder and float(r["alpha"]) == alpha)


# ---------------------------------------------------------------- what is right comes out


def test_every_printed_rate_is_its_count() -> None:
    for row in RATES:
        assert int(row["k"]) in possible_counts(Decimal(row["rate_pct"]), int(row["n"])), row
    assert examine(read_published(PUBLISHED / "audit_image_nn_rates.csv")) == []


def test_the_sweep_agrees_with_the_rates_and_grows_with_alpha() -> None:
    assert len(SWEEP) == len(ENCODERS) * len(ALPHAS)
    for encoder in ENCODERS:
        rows = [of_alpha(encoder, alpha) for alpha in ALPHAS]
        for column in ("tau", "slake_img", "slake_qa", "three_way_count", "pathvqa"):
            values = [float(row[column]) for row in rows]
            assert values == sorted(values), (encoder, column)
        chosen = of_alpha(encoder, 0.01)
        assert flagged(SLAKE, encoder) == (int(chosen["slake_img"]), N_SLAKE_PICTURES)
        for row in rows:
            n_pictures, n_items = int(row["slake_img"]), int(row["slake_qa"])
            assert n_pictures <= n_items <= N_SLAKE_ITEMS - (N_SLAKE_PICTURES - n_pictures)
            assert int(row["three_way_count"]) <= min(n_items, N_BOTH_TEXT_DETECTORS)
            assert int(row["pathvqa"]) <= N_PATHVQA_ITEMS


def test_no_control_is_flagged() -> None:
    assert {flagged("wikiart", encoder) for encoder in ENCODERS} == {(0, 2_000)}


# ---------------------------------------------------------------- what does not follow


@pytest.mark.parametrize(("encoder", "ratio"), [("B16", 4.06), ("SO400M", 4.70)])
def test_slake_is_four_to_five_times_vqa_rad_not_orders_of_magnitude(
    encoder: str, ratio: float
) -> None:
    """The text has "one to two orders of magnitude"."""
    (k, n), (k_other, n_other) = flagged(SLAKE, encoder), flagged("VQA-RAD", encoder)
    assert (k / n) / (k_other / n_other) == pytest.approx(ratio, abs=0.005)


@pytest.mark.parametrize(("encoder", "p_value"), [("B16", 7.8e-6), ("SO400M", 0.035)])
def test_the_comparison_of_pictures_with_items(encoder: str, p_value: float) -> None:
    """Fisher's test takes 451 items for independent pictures, so it is too sure."""
    (k, n), (k_other, n_other) = flagged(SLAKE, encoder), flagged("VQA-RAD", encoder)
    table = [[k, n - k], [k_other, n_other - k_other]]
    assert stats.fisher_exact(table).pvalue == pytest.approx(p_value, rel=0.02)


def test_items_and_pictures_of_slake_have_different_rates() -> None:
    """At one threshold 19.8 % of its pictures and 23.3 % of its items are flagged."""
    row = of_alpha("B16", 0.01)
    assert int(row["slake_img"]) / N_SLAKE_PICTURES == pytest.approx(0.198, abs=5e-4)
    assert int(row["slake_qa"]) / N_SLAKE_ITEMS == pytest.approx(0.233, abs=5e-4)


def test_the_benchmark_taken_as_clean_is_flagged_itself() -> None:
    assert binomial_p(*flagged("VQA-RAD", "B16"), 0.01) == pytest.approx(2e-9, rel=0.1)
    assert binomial_p(*flagged("VQA-RAD", "SO400M"), 0.01) == pytest.approx(0.661, abs=5e-4)


def test_the_second_encoder_hardly_supports_the_first() -> None:
    k, n = flagged(SLAKE, "SO400M")
    assert binomial_p(k, n, 0.01) == pytest.approx(0.0161, abs=5e-5)
    assert sampled_p(k, n, 50, 5_000) == pytest.approx(0.018, abs=5e-4)
    assert len(SWEEP) * binomial_p(k, n, 0.01) > 0.1, "corrected for the cells of the sweep"
    assert binomial_p(int(of_alpha("SO400M", 0.005)["slake_img"]), n, 0.005) > 0.3


@pytest.mark.parametrize("encoder", ENCODERS)
def test_alpha_is_no_false_positive_rate_for_other_pictures(encoder: str) -> None:
    """At alpha = 0.01, 67 of PathVQA's 6,719 items would be expected; none is flagged."""
    k = int(of_alpha(encoder, 0.01)["pathvqa"])
    assert k == 0
    assert stats.binom.cdf(k, N_PATHVQA_ITEMS, 0.01) < 1e-29

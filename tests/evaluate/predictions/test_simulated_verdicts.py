"""The benchmark of verdicts: what it simulates, and that it goes on after an interruption."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import flipbench as fb
from benchmarks.statistics import verdicts
from benchmarks.statistics.simulated_answers import (
    MISSING,
    UNREADABLE,
    answer,
    draw_items,
    lose,
    write_replies,
)
from benchmarks.statistics.verdict_scenarios import scenarios

CELLS = {(scenario.contaminated, scenario.name): scenario for scenario in scenarios()}


def test_files_say_what_was_simulated(tmp_path: Path) -> None:
    """Accuracies, unreadable and missing replies come back as they were drawn."""
    rng = np.random.default_rng(0)
    items = draw_items(rng, 200, n_options=(2, 5), failed=0.1)
    model = lose(rng, answer(rng, items, 1.0, memorised=0.3), perturbed=0.03)
    model = lose(rng, model, original=0.05, becomes=MISSING)
    result = fb.gap(*write_replies(tmp_path, ("model", "model"), items, model), judged_by="me")
    compared = model.original != MISSING
    right = {
        "original": (model.original == items.old)[compared].sum(),
        "perturbed": (model.perturbed == items.new)[compared].sum(),
    }
    assert result.gap.n == compared.sum() < 200
    assert {side: count.k for side, count in result.gap.accuracies.items()} == right
    assert result.gap.unparsed["perturbed"] == (model.perturbed == UNREADABLE)[compared].sum() > 0


def test_matched_letters_have_the_margins_of_the_old_ones() -> None:
    items = draw_items(np.random.default_rng(1), 400, letter_shares=[0.45, 0.2, 0.2, 0.15])
    assert np.ptp(np.bincount(items.old) - np.bincount(items.new)) > 40
    for share in (0.45, 0.7):  # no permutation avoids all fixed points with 70 % of one letter
        shares = [share, *[(1 - share) / 3] * 3]
        items = draw_items(np.random.default_rng(1), 400, letter_shares=shares, matched=True)
        assert (items.old != items.new).all()
        differ = np.abs(np.bincount(items.old) - np.bincount(items.new)).max()
        assert (differ == 0) == (share < 0.5)


def test_memorised_items_stick_to_the_old_answer() -> None:
    rng = np.random.default_rng(2)
    items = draw_items(rng, 5_000)
    model = answer(rng, items, -20.0, memorised=np.arange(5_000) < 2_500)
    sticks = (model.perturbed == items.old)[:2_500].mean()
    assert (model.original == items.old)[:2_500].all()
    assert 0.7 + 0.3 / 4 == pytest.approx(sticks, abs=0.03)
    assert (model.perturbed == items.old)[2_500:].mean() == pytest.approx(1 / 4, abs=0.03)


def test_runs_are_resumed_and_the_same_under_every_label(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdicts, "RUNS", tmp_path)
    cells = [verdicts.Cell(CELLS[True, "30 % memorised, exchangeable pairs"], 120)]
    first = verdicts.run_all(cells, "before", 3, 0)
    assert first[cells[0].key]["contaminated"] >= 2
    monkeypatch.setattr(verdicts.Cell, "outcome", lambda *_: "not_detected")
    more = verdicts.run_all(cells, "before", 5, 0)[cells[0].key]
    assert more == first[cells[0].key] + Counter(not_detected=2)
    verdicts.write_counts({cells[0].key: more}, tmp_path / "before.csv")
    monkeypatch.setattr(verdicts, "COUNTS", tmp_path)
    tables = verdicts.page_tables(verdicts.read_counts())
    k = more["contaminated"]
    assert f"| 120 | {20 * k:.1f} ({k}/5) [" in tables["verdicts-contaminated"]


def test_published_cells_take_turns() -> None:
    (scenario,) = (one for name, one in CELLS.items() if "published cells, 25 %" in name[1])
    cell = verdicts.Cell(scenario, 0)
    assert (cell.n_runs(400), cell.n_runs(264)) == (528, 264)
    assert cell.outcome(0, 0) in verdicts.OUTCOMES

"""`flipbench.gap`, `detectors`, `power`: what needs no experiment."""

from __future__ import annotations

from pathlib import Path

import pytest

import flipbench as fb
from flipbench.core.errors import ConfigError, DataError
from flipbench.evaluate.detectors.registry import DETECTORS


def test_the_gap_of_files_and_of_answers_is_the_same(tmp_path: Path) -> None:
    right = {f"q{i}": (i % 5 > 0, i % 3 > 0) for i in range(30)}
    for side in (0, 1):
        rows = [f"{name},{int(pair[side])}" for name, pair in right.items()]
        (tmp_path / f"{side}.csv").write_text("\n".join(["id,correct", *rows]) + "\n")
    files = fb.gap(tmp_path / "0.csv", str(tmp_path / "1.csv"), model="mine")
    first, second = ({name: pair[side] for name, pair in right.items()} for side in (0, 1))
    mappings = fb.gap(first, dict(reversed(second.items())), model="mine")
    lists = fb.gap([*first.values()], [*second.values()], model="mine")
    assert files.gap.statistic == pytest.approx(-4 / 30)
    for result in (mappings, lists):
        assert result.gap.statistic == files.gap.statistic
        assert result.gap.p_value == files.gap.p_value and result.gap.paired == files.gap.paired
        assert result.verdict == files.verdict
    frame = files.to_frame()
    assert list(frame["rule"]) == ["mcnemar"] and "20/30" in frame["k/n"][0]
    assert str(files) == files.content.sentence() and "20/30" in files._repr_html_()


def test_missing_answers_are_left_out_and_a_reference_adds_a_rule() -> None:
    original: list[bool | None] = [True] * 20 + [None]
    perturbed: list[bool | None] = [False] * 20 + [True]
    clean = ([True] * 21, [True] * 21)
    result = fb.gap(original, perturbed, reference=clean)
    assert result.gap.n == 20 and result.gap.n_dropped == 1
    assert [score.rule for score in result.scores] == ["sign", "mcnemar", "relative"]


def test_answers_to_different_items_are_refused() -> None:
    with pytest.raises(DataError, match="do not hold the same items.*'b'"):
        fb.gap({"a": True, "b": True}, {"a": True})
    with pytest.raises(DataError, match="do not hold the same items"):
        fb.gap([True, True], [True])


def test_every_detector_is_listed() -> None:
    table = fb.detectors()
    assert table.names == tuple(DETECTORS) == tuple(table.to_frame()["name"])
    needs = table.to_frame().set_index("name")["needs"]
    assert needs["perturbation_gap"] == "choose or generate" and needs["min_k"] == "token_logprobs"
    assert "CoDeC" in table._repr_html_() and "evaluate.parameters.codec: n_context 3" in str(table)
    assert fb.detectors("codec").names == ("codec",)
    with pytest.raises(ConfigError, match="no detector 'codek'.*codec"):
        fb.detectors(["codek"])


def test_power_and_pairs_needed_agree() -> None:
    needed = fb.power(changed=0.3, gap=-0.05).pairs_needed[0.8]
    seen = fb.power(changed=0.3, gap=-0.05, n_pairs=needed).power
    assert needed is not None and seen is not None and seen >= 0.8
    with pytest.raises(ConfigError, match="a gap of -40 points needs 40 to 100 %"):
        fb.power(changed=0.3, gap=-0.4, n_pairs=100)

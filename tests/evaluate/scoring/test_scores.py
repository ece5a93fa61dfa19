"""What a score carries is typed, agrees with itself, and is read by its fields alone."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from flipbench.core.records import Score
from flipbench.evaluate.detectors.completion.guided_prompting import GuidedPrompting
from flipbench.evaluate.detectors.perturbation.circular_eval import CircularEval
from flipbench.evaluate.detectors.perturbation.option_order import OptionOrder
from flipbench.evaluate.detectors.perturbation.perturbation_gap import PerturbationGap

ROOT = Path(__file__).parents[3]


@pytest.fixture
def scores(world: Any) -> list[Score]:
    """Return what four rules say of a memoriser beside a model that sees."""
    detectors = [PerturbationGap(), CircularEval(), OptionOrder()]
    return [
        score
        for detector in detectors
        for score in world.scores(
            detector,
            world.ask(detector, world.memoriser()),
            world.ask(detector, world.seer(0.7), "clean"),
        ).values()
    ]


def test_counts_and_accuracies_agree(scores: list[Score]) -> None:
    counted = [score for score in scores if score.paired is not None]
    assert {score.detector for score in counted} == {
        "perturbation_gap", "circular_eval", "option_order",
    }  # fmt: skip
    for score in counted:
        assert score.paired is not None
        before, after = score.accuracies.values()
        n11, b, c, n00 = score.paired.model_dump().values()
        assert (before.k, after.k) == (n11 + b, n11 + c)
        assert before.n == after.n == n11 + b + c + n00 == score.n
        assert list(score.unparsed) == list(score.accuracies) and not score.means


def test_shares_of_several_trials_have_no_paired_counts(scores: list[Score]) -> None:
    (several,) = [score for score in scores if score.rule == "shuffles"]
    assert several.paired is None and several.details["n_fell"] == 0
    assert several.accuracies["all shuffles"].n == 3 * several.n


def test_a_reference_is_described_where_one_was_used(scores: list[Score]) -> None:
    for score in scores:
        assert (score.reference is not None) is bool(score.reference_fingerprint)
    compared = [(score, score.reference) for score in scores if score.reference is not None]
    assert {score.rule for score, _ in compared} == {"relative", "paper"}
    for score, reference in compared:
        before, after = reference.accuracies.values()
        assert reference.model == "clean" and before.n == reference.n == score.n
        assert reference.statistic == pytest.approx((after.k - before.k) / score.n)


def test_graded_replies_have_means(world: Any, replies: Any) -> None:
    detector = GuidedPrompting()
    answers = replies(detector, world.benchmark, lambda probe: f"some reply to {probe.variant}")
    scores = world.scores(detector, answers)
    for score in scores.values():
        assert list(score.means) == ["general", "guided"] and not score.accuracies
        general, guided = score.means.values()
        assert guided.mean - general.mean == pytest.approx(score.statistic)
    assert [rule for rule, score in scores.items() if score.tuned_threshold] == ["judge"]


def test_real_scores_survive_json(scores: list[Score]) -> None:
    assert [Score.model_validate_json(score.model_dump_json()) for score in scores] == scores


# ------------------------------------------------------------------ details are for people only


def reads_of_details(source: str) -> list[int]:
    """Return the lines that use ``x.details`` for anything but to add to it or to copy it."""
    nodes = list(ast.walk(ast.parse(source)))
    added_to = {id(node.left) for node in nodes if isinstance(node, ast.BinOp)}
    copied = {
        id(value)
        for node in nodes
        if isinstance(node, ast.Dict)
        for key, value in zip(node.keys, node.values, strict=True)
        if key is None
    }
    return [
        node.lineno
        for node in nodes
        if isinstance(node, ast.Attribute)
        and node.attr == "details"
        and id(node) not in added_to | copied
    ]


@pytest.mark.parametrize(
    "source",
    [
        "s.details['b']",
        "s.details.get('b')",
        "'b' in s.details",
        "for x in s.details: x",
        "f(s.details)",
    ],
)
def test_every_way_to_read_details_is_seen(source: str) -> None:
    assert reads_of_details(source) == [1]


@pytest.mark.parametrize(
    "source", ["s.details | {'b': 1}", "{**s.details, 'b': 1}", "f(details={})"]
)
def test_details_may_be_added_to(source: str) -> None:
    assert reads_of_details(source) == []


def test_nothing_reads_the_details_of_a_score() -> None:
    files = [*(ROOT / "evaluate").rglob("*.py"), *(ROOT / "flipbench" / "api").rglob("*.py")]
    assert len(files) > 60
    found = {str(path): reads_of_details(path.read_text()) for path in files}
    assert {path: lines for path, lines in found.items() if lines} == {}

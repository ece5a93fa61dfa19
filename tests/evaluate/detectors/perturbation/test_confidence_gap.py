"""Paired confidence gap: exact vectors, clipping, and against brute force."""

import math
from itertools import product
from typing import Any

import numpy as np
import pytest

from flipbench.core.records import Response
from flipbench.evaluate.detectors.perturbation.confidence_gap import ConfidenceGap, log_confidence
from flipbench.evaluate.statistics.resampling import label_swap_p
from flipbench.models.engine import Answers
from flipbench.prompting.prompts import PromptSettings

DETECTOR = ConfidenceGap()


def reply(*log_probs: float) -> Response:
    return Response(
        probe_id="p", model_fingerprint="f", model="m", choice=0, option_log_probs=log_probs
    )


@pytest.mark.parametrize(
    ("differences", "p"), [((-2.0, -1.0, -1.0), 1 / 8), ((0.0, 0.0), 1.0), ((-1.0, 2.0), 3 / 4)]
)
def test_sign_flips_by_hand(differences: tuple[float, ...], p: float) -> None:
    assert label_swap_p(differences, np.random.default_rng(0)) == pytest.approx(p)


def test_sign_flips_of_real_values_against_enumeration() -> None:
    values = np.random.default_rng(3).normal(-0.4, 1, size=9)
    sums = [float(np.dot(signs, values)) for signs in product([1, -1], repeat=9)]
    expected = sum(total <= values.sum() + 1e-12 for total in sums) / len(sums)
    found = label_swap_p(values, np.random.default_rng(0), n_permutations=9_999)
    assert found == pytest.approx(expected)


def test_probabilities_are_among_the_letters_and_clipped() -> None:
    assert log_confidence(1)(reply(-5.0, -5.0, -5.0)) == pytest.approx(math.log(1 / 3))
    assert log_confidence(0)(reply(-30.0, 0.0)) == pytest.approx(math.log(1 / 1000))
    assert log_confidence(0)(reply(-math.inf, 0.0)) == pytest.approx(math.log(1 / 1000))
    assert log_confidence(0)(reply()) is None


def with_confidence(world: Any, original: float, perturbed: float) -> Answers:
    """Return answers that give the right letter these probabilities, the rest to one other."""
    replies = {}
    golds = {i.id: i.answer for i in (*world.benchmark.originals, *world.benchmark.perturbed)}
    for probe in DETECTOR.probes(world.benchmark, PromptSettings()):
        p = original if probe.variant == "original" else perturbed
        log_probs = [-20.0] * probe.n_options
        gold = golds[probe.item_id]
        log_probs[gold], log_probs[gold - 1] = math.log(p), math.log(1 - p)
        replies[probe.id] = Response(
            probe_id=probe.id, model_fingerprint="m", model="m",
            choice=int(np.argmax(log_probs)), option_log_probs=tuple(log_probs),
        )  # fmt: skip
    return Answers("m", "m", replies)


def test_lost_confidence_is_evidence_before_any_answer_changes(make_world: Any) -> None:
    world = make_world.make(n=8)
    scores = world.scores(DETECTOR, with_confidence(world, 0.95, 0.6))
    found = scores["label_swap"]
    assert found.statistic == pytest.approx(math.log(0.6 / 0.95), abs=1e-3)
    assert (found.verdict, found.p_value, found.unit) == ("contaminated", 1 / 256, "nats")
    assert found.direction == "falls" and scores["relative"].verdict == "not_applicable"


def test_a_clean_model_that_loses_as_much_explains_it(make_world: Any) -> None:
    world = make_world.make(n=12)
    own = with_confidence(world, 0.95, 0.6)
    clean = with_confidence(world, 0.9, 0.9 * 0.6 / 0.95)
    clean = Answers("clean", "clean", clean.responses)
    assert world.scores(DETECTOR, own, clean)["relative"].verdict == "not_detected"


def test_replies_without_likelihoods_give_no_verdict(world: Any) -> None:
    found = world.scores(DETECTOR, world.ask(DETECTOR, world.seer()))["label_swap"]
    assert found.verdict == "inconclusive"

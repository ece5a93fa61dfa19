"""Zero-CoT, CDD and Self-Critique: worked examples, and replies they cannot use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Probe, Response, Score
from flipbench.evaluate.detectors.perturbation.cdd import CDD, peak
from flipbench.evaluate.detectors.perturbation.self_critique import SelfCritique, similarity
from flipbench.evaluate.detectors.perturbation.zero_cot import ZeroCoT, contamination_confidence
from flipbench.evaluate.protocol.detector import Detector
from flipbench.evaluate.scoring.reasoning import is_reasoned, split_reply
from flipbench.models.engine import Answers
from flipbench.prompting.prompts import PromptSettings
from tests.fixtures.planted import planted_benchmark

STEPS = "First I look at the picture, then I compare all of the options."


@pytest.fixture(scope="module")
def benchmark(tmp_path_factory: pytest.TempPathFactory) -> PairedBenchmark:
    return planted_benchmark(tmp_path_factory.mktemp("replies"), n_choices=12, n_open=0)


def scores(
    detector: Detector,
    benchmark: PairedBenchmark,
    reply: Callable[[Probe, str], dict[str, Any]],
    ask: Any = "choose",
) -> dict[str, Score]:
    """Return the scores of a model that replies as told, given probe and right letter."""
    prompt_settings = PromptSettings(ask=ask)
    gold = {i.id: i.answer for p in benchmark.pairs for i in (p.original, p.perturbed)}
    responses = {
        probe.id: Response(
            probe_id=probe.id,
            model_fingerprint="told",
            model="told",
            **reply(probe, "ABCD"[gold[probe.item_id] or 0]),
        )
        for probe in detector.probes(benchmark, prompt_settings)
    }
    answers = Answers("told", "told", responses)
    return {s.rule: s for s in detector.score(benchmark, prompt_settings, answers)}


def letter(choice: str) -> dict[str, Any]:
    return {"choice": "ABCD".index(choice), "text": choice}


# reading replies


@pytest.mark.parametrize(
    ("text", "reasoned"),
    [
        ("B", False),
        ("Answer: B", False),
        ("The answer is B.", False),
        (f"{STEPS} Answer: B", True),
        (STEPS, True),
        ("<think>Hm.</think>B", True),
        ("Hm.</think>B", True),
        ("<think>Hm", True),
    ],
)
def test_a_reply_that_reasons(text: str, reasoned: bool) -> None:
    reply = Response(probe_id="p", model_fingerprint="f", model="m", text=text)
    assert is_reasoned(reply) is reasoned
    assert "".join(split_reply(text)) == text
    hidden = reply.model_copy(update={"reasoned": True, "text": "B"})
    assert is_reasoned(hidden)


# zero-CoT


def test_reasoning_that_rescues_the_perturbed_items_is_seen_through(
    benchmark: PairedBenchmark,
) -> None:
    def reply(probe: Probe, right: str) -> dict[str, Any]:
        if "reasoning" in probe.variant:
            return {"text": f"{STEPS} Answer: {right}"}
        return letter(right if probe.variant == "original" else "ABCDA"["ABCD".index(right) + 1])

    found = scores(ZeroCoT(), benchmark, reply)
    assert found["mcnemar"].statistic == found["unmasked"].statistic == -1
    assert found["mcnemar"].p_value == 2**-12
    assert found["unmasked"].p_value == pytest.approx(2**-12)
    assert found["unmasked"].verdict == "contaminated"
    assert found["unmasked"].means["gap with reasoning"].mean == 0
    assert found["mcnemar"].details["contamination_confidence"] > 0.99
    assert found["mcnemar"].details["n_questions"] == 48


def test_a_gap_that_reasoning_leaves_is_no_mask(benchmark: PairedBenchmark) -> None:
    def reply(probe: Probe, right: str) -> dict[str, Any]:
        wrong = "ABCDA"["ABCD".index(right) + 1]
        chosen = right if probe.variant.startswith("original") else wrong
        return {"text": f"{STEPS} Answer: {chosen}"} if probe.ask == "generate" else letter(chosen)

    found = scores(ZeroCoT(), benchmark, reply)
    assert found["mcnemar"].verdict == "contaminated"
    assert (found["unmasked"].verdict, found["unmasked"].statistic) == ("not_detected", 0)


@pytest.mark.parametrize("how", ["never", "always", "hidden"])
def test_a_model_whose_reasoning_cannot_be_switched(benchmark: PairedBenchmark, how: str) -> None:
    def reply(probe: Probe, right: str) -> dict[str, Any]:
        text = f"{STEPS} Answer: {right}" if how == "always" else right
        return letter(right) | {"text": text, "reasoned": how == "hidden"}

    for score in scores(ZeroCoT(), benchmark, reply, "generate").values():
        assert (score.verdict, score.p_value) == ("not_applicable", None)
        why = "24 of 24 replies to a request for the letter reason all the same"
        if how == "never":
            why = "0 of 24 replies to a request for reasoning contain any"
        assert any(why in warning for warning in score.warnings)


def test_the_letter_is_the_perturbation_gap_s_question(benchmark: PairedBenchmark) -> None:
    probes = ZeroCoT().probes(benchmark, PromptSettings())
    asked = PromptSettings().probe(benchmark.originals[0], "original")
    assert asked.id in {probe.id for probe in probes}


def test_contamination_confidence_is_the_posterior_of_the_largest_bayes_factor() -> None:
    assert contamination_confidence(0.0) == 1
    assert contamination_confidence(0.4) == 0.5
    assert contamination_confidence(0.01) == pytest.approx(1 / (1 + 0.125182), abs=1e-6)


# CDD


def test_the_peak_counts_samples_within_the_tolerance() -> None:
    greedy = " ".join("abcdefghijklmnopqrst")  # 20 tokens: one edit is near
    one, two = greedy.replace("a ", "x "), greedy.replace("a b ", "x y ")
    assert peak(greedy, [greedy, one, two, "a"]) == 2
    assert peak(greedy, [greedy, one, two, "a"], tolerance=0.1) == 3
    assert peak("B", ["B", "B.", "C"]) == 1
    long = " ".join(["word"] * 150)
    assert peak(long, [f"{long} and more", long]) == 2, "only the first 100 tokens count"


def test_peaked_originals_are_flagged_and_the_paper_s_items_counted(
    benchmark: PairedBenchmark,
) -> None:
    def reply(probe: Probe, right: str) -> dict[str, Any]:
        varies = probe.variant.startswith("perturbed") and probe.seed % 2
        return {"text": f"it is {probe.seed if varies else right}"}

    found = scores(CDD(n_samples=4), benchmark, reply)["peak"]
    assert (found.verdict, found.statistic) == ("contaminated", -0.5)
    assert found.p_value == pytest.approx(2**-12)
    assert {k: (v.k, v.n) for k, v in found.accuracies.items()} == {
        "original": (48, 48),
        "perturbed": (24, 48),
    }
    leaked = {"original": {"k": 12, "n": 12}, "perturbed": {"k": 12, "n": 12}}
    assert found.details["leaked"] == leaked
    assert found.details["n_questions"] == 2 * 12 * 5
    assert any("confidence in a short answer" in warning for warning in found.warnings)


def test_samples_differ_by_seed_and_share_one_greedy_question(benchmark: PairedBenchmark) -> None:
    probes = CDD(n_samples=3).probes(benchmark, PromptSettings(instruction="Explain."))
    assert len({probe.id for probe in probes}) == len(probes) == 24 * 4
    assert all(probe.prompt.endswith("Explain.") for probe in probes)
    assert sorted({(probe.temperature, probe.seed) for probe in probes}) == [
        (0.0, 0),
        (0.8, 1),
        (0.8, 2),
        (0.8, 3),
    ]


# Self-Critique


def test_similarity_of_entropies() -> None:
    assert similarity([0.2, 0.4], [0.1, 0.2]) == pytest.approx(1)
    assert similarity([3.0, 4.0], [3.0]) == pytest.approx(0.6 / 2)
    assert similarity([], [1.0]) == similarity([0.0], [1.0]) == 0


def test_the_second_question_quotes_the_first_reply(benchmark: PairedBenchmark) -> None:
    first, second = SelfCritique().probes(benchmark, PromptSettings())[:2]
    assert (first.follows, second.follows) == ("", first.id)
    assert "{first reply}" in second.prompt and second.prompt.startswith(first.prompt)
    with pytest.raises(ValueError, match="at most 256"):
        SelfCritique(max_new_tokens=300)


def test_short_and_repeated_replies_are_pointed_out(benchmark: PairedBenchmark) -> None:
    def reply(probe: Probe, right: str) -> dict[str, Any]:
        return {"text": right, "token_means": (-0.5, -0.1)}

    found = scores(SelfCritique(), benchmark, reply)["similarity"]
    assert (found.verdict, found.statistic) == ("not_detected", 0)
    assert any("2.0 tokens on average" in warning for warning in found.warnings)
    assert any("24 of 24 second replies repeat" in warning for warning in found.warnings)

"""A verdict in a sentence, and what would change it, on models made of rules."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from flipbench.evaluate.protocol.detector import Answers
from flipbench.evaluate.statistics.paired import adjust_p_values
from flipbench.evaluate.verdict.other_detectors import least_significant, other_results
from tests.fixtures.policies import by_hand
from tests.fixtures.verdicts import DETECTORS, PROMPT_SETTINGS, answers_of, judge, text_of

# ------------------------------------------------------- what the pairs are worth as evidence


def noise(world: Any) -> Any:
    """Return a policy with 10 of 12 originals and 3 of 12 perturbed versions right."""
    return by_hand(world, [i < 10 for i in range(12)], [i in (0, 1, 11) for i in range(12)])


@pytest.mark.slow
def test_pairs_that_nobody_judged_have_no_verdict_without_a_clean_model(make_world: Any) -> None:
    world = make_world.make(n=12)
    finding = judge(world, noise(world), made_by={})
    assert finding.gap.verdict == "contaminated" and finding.gap.p_value < 0.05
    assert finding.verdict == "inconclusive"
    assert finding.decision.reason == "needs reference, no effect"
    assert "edited images may be harder than their originals" in finding.sentence
    assert "--reference" in finding.sentence
    assert "3/12 perturbed versions right, where guessing gets 3.0 (p = .609)" in finding.sentence
    assert "Nobody is known to have judged" in text_of(finding)
    judged = judge(world, noise(world), exchangeable=True)
    assert judged.verdict == "inconclusive", "nothing shows that the images show anything"
    (doubt,) = judged.decision.doubts
    assert doubt.reason.startswith("no model does better than guessing")
    old = judge(world, world.memoriser(), made_by={})
    assert old.decision.reason == "unjudged" and "--judged-by" in old.sentence
    assert judge(world, world.memoriser()).verdict == "contaminated"


@pytest.mark.slow
def test_a_clean_model_takes_the_place_of_raters(make_world: Any) -> None:
    world = make_world.make(n=100)
    model = by_hand(world, [True] * 100, [i % 2 > 0 for i in range(100)])
    alone = judge(world, model)
    assert alone.decision.reason == "needs reference", "edits may be harder for any model"
    assert alone.sentence.startswith("suspect fell more than chance on simulated; a clean model is")
    assert judge(world, model, exchangeable=True).verdict == "contaminated"
    assert judge(world, model, world.seer(0.8), made_by={}).verdict == "contaminated"


@pytest.mark.slow
def test_old_answers_count_on_judged_pairs_only(make_world: Any) -> None:
    world = make_world.make(n=100)
    pairs = [replace(p, verdict="unjudged") for p in world.benchmark.pairs]
    finding = judge(world, world.memoriser(), pairs=(*pairs[:97], *world.benchmark.pairs[97:]))
    assert finding.verdict == "inconclusive"
    assert "on the 3 of 100 pairs that were judged valid" in finding.sentence
    most = (*world.benchmark.pairs[:60], *pairs[60:])
    assert judge(world, world.memoriser(), pairs=most).verdict == "contaminated"


@pytest.mark.slow
@pytest.mark.parametrize(("n_old", "verdict"), [(8, "inconclusive"), (30, "contaminated")])
def test_old_answers_that_bad_edits_would_give_prove_nothing(
    make_world: Any, n_old: int, verdict: str
) -> None:
    """A twentieth of the edits may still show the old answer: five of 100 pairs."""
    world = make_world.make(n=100)
    old = {p.perturbed.id: p.original.answer for p in world.benchmark.pairs[:n_old]}
    gold = {i.id: i.answer for p in world.benchmark.pairs for i in (p.original, p.perturbed)}
    missed = {p.perturbed.id for p in world.benchmark.pairs[20:40]}

    def drawn(probe: Any) -> int:
        answer: int = gold[probe.item_id] + (probe.item_id in missed)
        return old.get(probe.item_id, answer % probe.n_options)

    assert judge(world, drawn).verdict == verdict
    assert judge(world, drawn).of_gap.attraction.verdict == "contaminated"


@pytest.mark.slow
def test_a_reference_that_only_guesses_does_not_show_what_the_images_show(make_world: Any) -> None:
    world = make_world.make(n=100)
    model = by_hand(world, [True] * 100, [i % 4 == 0 for i in range(100)])
    guesses = by_hand(world, [i % 4 == 1 for i in range(100)], [i % 4 == 2 for i in range(100)])
    assert judge(world, model, guesses).verdict == "inconclusive"
    assert judge(world, model, guesses, world.seer(0.9)).verdict == "contaminated"


@pytest.mark.slow
def test_old_answers_and_the_gap_may_disagree(make_world: Any) -> None:
    world = make_world.make(n=100)
    harder = by_hand(world, [True] * 100, [i % 2 > 0 for i in range(100)])
    assert "A gap without attraction is also what harder" in text_of(
        judge(world, harder, exchangeable=True)
    )
    old = {p.perturbed.id: p.original.answer for p in world.benchmark.pairs[:30]}
    gold = {i.id: i.answer for p in world.benchmark.pairs for i in (p.original, p.perturbed)}
    wrong = {p.original.id for p in world.benchmark.pairs[70:]}

    def drawn(probe: Any) -> int:
        answer: int = gold[probe.item_id] + (probe.item_id in wrong)
        return old.get(probe.item_id, answer % probe.n_options) or 0

    finding = judge(world, drawn, exchangeable=True)
    assert finding.verdict == "not_detected"
    assert "30 of 30 wrong answers to perturbed versions name the original's" in text_of(finding)
    assert "Attraction without a gap means" in text_of(finding)


# ------------------------------------------------------------------------------- the sentence


@pytest.mark.slow
def test_a_memoriser_is_found_contaminated(world: Any) -> None:
    finding = judge(world, world.memoriser(), exchangeable=True)
    assert (finding.verdict, finding.decision.decides) == ("contaminated", "mcnemar")
    assert finding.leading is finding.gap and finding.gap.n == 40
    assert finding.sentence == (
        "suspect behaves like a model that was trained on simulated: it gets 40 of 40 originals"
        " (100.0 %) and 0 of 40 answer-flipped versions (0.0 %) right, a gap of −100.0 points (95 %"
        " interval −100.0 to −82.5; exact one-sided McNemar p < .001)."
    )
    edits = judge(world, world.memoriser())
    assert (edits.verdict, edits.decision.decides) == ("contaminated", "old_answer_attraction")
    assert "40 of 40 wrong answers to perturbed versions name the original's" in edits.sentence
    assert "if 10 % of the edits still show the old answer" in edits.sentence


def test_the_share_from_memory_stands_beside_the_bad_edits(world: Any) -> None:
    unchecked = text_of(judge(world, world.memoriser()))
    assert "answered from memory, at least" in unchecked and "rejected" not in unchecked
    checked = text_of(judge(world, world.memoriser(), bad_edits=(3, 40)))
    assert "people rejected 7.5 % (3/40) [2.6, 19.9] of those that the judges kept" in checked


@pytest.mark.slow
def test_a_seer_is_not_called_clean(world: Any) -> None:
    finding = judge(world, world.seer(0.8))
    assert finding.verdict == "not_detected"
    assert finding.sentence.startswith("No contamination of suspect with simulated was detected,")
    assert "which does not show that it is clean" in finding.sentence
    least = finding.sensitivity.detectable
    assert least is not None
    assert f"detects a true gap of −{100 * least:.1f} points four times in five" in finding.sentence


def test_found_pairs_have_no_verdict_without_a_clean_model(world: Any) -> None:
    alone = judge(world, world.memoriser(), exchangeable=False)
    assert alone.verdict == "not_applicable"
    assert alone.sentence.startswith("There is no verdict on suspect: the pairs of simulated were")
    assert "found, not made" in alone.sentence and "40 of 40 originals" in alone.sentence
    assert " p " not in alone.sentence and alone.sensitivity.pairs == ()
    assert "--reference" in alone.what_would_change[0]
    beside = judge(world, world.memoriser(), world.seer(0.8), exchangeable=False)
    assert (beside.verdict, beside.leading.rule) == ("contaminated", "relative")
    assert "below the gap of the clean reference clean-0 (95 % interval" in beside.sentence


@pytest.mark.slow
def test_a_reference_that_also_falls_makes_the_comparison_decide(make_world: Any) -> None:
    world = make_world.make(n=100)
    hard = by_hand(world, [True] * 100, [i % 3 > 0 for i in range(100)])
    also = by_hand(world, [True] * 100, [i % 3 > 0 or i == 0 for i in range(100)])
    assert judge(world, hard, exchangeable=True).verdict == "contaminated"
    finding = judge(world, hard, also)
    assert finding.gap.verdict == "contaminated"
    assert (finding.verdict, finding.leading.rule) == ("not_detected", "relative")
    assert "difference from the gaps of clean models on the same items" in finding.qualifiers[0]
    assert "does not lie significantly below that of" in text_of(finding)
    more = judge(world, world.memoriser(), also)
    assert (more.verdict, more.leading.rule) == ("contaminated", "relative")
    assert "interval of the difference would reach 0 if about" in more.what_would_change[0]


@pytest.mark.slow
def test_several_references_are_averaged(make_world: Any) -> None:
    world = make_world.make(n=100)
    model = by_hand(world, [True] * 100, [i % 4 > 0 for i in range(100)])
    steady = by_hand(world, [True] * 100, [True] * 100)
    falls = by_hand(world, [True] * 100, [i % 5 > 0 for i in range(100)])
    findings = [judge(world, model, *order) for order in ((steady, falls), (falls, steady))]
    (p_value,) = {finding.decision.p_value for finding in findings}
    finding = findings[0]
    assert 0.05 < p_value and finding.verdict == "not_detected"
    assert finding.leading.statistic == pytest.approx(-0.15)
    assert finding.leading.reference.statistic == pytest.approx(-0.1)
    assert finding.decision.difference.spread > 0.1
    assert "below the gap of the mean of 2 clean models" in finding.sentence
    assert "The 2 gaps (0.0, −20.0 points) differ by" in text_of(finding)
    alike = [by_hand(world, [True] * 100, [i != j for i in range(100)]) for j in range(3)]
    assert judge(world, model, *alike).verdict == "contaminated"
    assert "One does not show how much clean models differ" in text_of(judge(world, model, falls))


@pytest.mark.slow
def test_a_reference_that_names_old_answers_is_left_out(make_world: Any) -> None:
    world = make_world.make(n=100)
    finding = judge(world, world.memoriser(), world.seer(0.9), world.memoriser())
    assert finding.verdict == "contaminated"
    assert [reference.name for reference in finding.decision.references] == ["clean-0"]
    assert "The reference clean-1 is left out: it seems to have seen" in text_of(finding)


@pytest.mark.slow
def test_a_reference_that_answers_as_the_model_does_is_the_model(make_world: Any) -> None:
    world = make_world.make(n=100)
    model = by_hand(world, [i < 60 for i in range(100)], [i % 3 > 0 for i in range(100)])
    finding = judge(world, model, model)
    assert not finding.decision.references and "the model's own, wrong ones" in text_of(finding)


@pytest.mark.slow
@pytest.mark.parametrize(("after", "reason"), [(60, "unlike strength"), (25, "")])
def test_a_reference_of_another_strength_is_no_guide_where_edits_are_harder(
    make_world: Any, after: int, reason: str
) -> None:
    """A model that is stronger on both versions loses more; one that memorised is so on one."""
    world = make_world.make(n=100)
    weak = by_hand(world, [i % 10 < 7 for i in range(100)], [i % 2 > 0 for i in range(100)])
    strong = by_hand(world, [True] * 100, [i < after for i in range(100)])
    assert judge(world, strong, weak).decision.reason == reason


def test_a_reference_that_rises_reveals_a_gap_that_is_not_significant_alone(
    make_world: Any,
) -> None:
    world = make_world.make(n=100)
    flat = by_hand(world, [True] * 70 + [False] * 30, [True] * 70 + [False] * 30)
    rises = by_hand(world, [True] * 70 + [False] * 30, [True] * 95 + [False] * 5)
    finding = judge(world, flat, rises)
    assert finding.gap.verdict == "not_detected" and finding.gap.statistic == 0
    assert (finding.verdict, finding.leading.rule) == ("contaminated", "relative")
    assert "this is 25.0 points below the gap of the clean reference clean-0" in finding.sentence
    assert "easier than their originals, which hides the gap" in text_of(finding)
    alone = judge(world, flat)
    assert (alone.verdict, alone.leading.rule) == ("not_detected", "mcnemar")
    assert "Edited versions have been easier than their originals" in text_of(alone)
    assert "by 0.3 to 31.5 points" in text_of(alone)
    assert "0 of 30 wrong answers to perturbed versions name the original's" in text_of(alone)


@pytest.mark.slow
def test_unparsable_replies_give_no_verdict(world: Any) -> None:
    answers = answers_of(world, world.memoriser(), "suspect")
    perturbed = {i.images[0].sha256 for i in world.benchmark.perturbed}
    asked = {p.id: p for p in DETECTORS[0].probes(world.benchmark, PROMPT_SETTINGS)}
    muddled = {
        name: r.model_copy(update={"choice": -1})
        if name in asked and asked[name].images[0].sha256 in perturbed
        else r
        for name, r in answers.responses.items()
    }
    finding = judge(world, Answers("suspect", "f", muddled))
    assert finding.verdict == "inconclusive"
    assert "on whether suspect was trained on simulated: replies that name no" in finding.sentence
    assert "perturbed 40/40" in finding.what_would_change[0]


@pytest.mark.slow
@pytest.mark.parametrize(("n", "verdict"), [(4, "inconclusive"), (5, "contaminated")])
def test_too_few_items_are_inconclusive(make_world: Any, n: int, verdict: str) -> None:
    world = make_world.make(n=n)
    finding = judge(world, world.memoriser(), world.seer(1.0))
    assert finding.verdict == verdict
    assert ("fewer than 5 can never reach" in text_of(finding)) is (n == 4)


def test_no_answers_at_all(world: Any) -> None:
    finding = judge(world, Answers("suspect", "f", {}))
    assert finding.verdict == "inconclusive" and finding.gap.n == 0
    assert "no pair has an answer in both versions" in finding.sentence
    assert "run the same command again" in finding.what_would_change[0]


@pytest.mark.slow
def test_no_verdict_ever_claims_a_model_is_clean(make_world: Any) -> None:
    world = make_world.make(n=30)
    for policy in (world.memoriser(), world.seer(0.9), lambda probe: 0):
        for references in ((), (world.seer(0.7, "a"), world.seer(0.9))):
            for exchangeable in (True, None, False):
                finding = judge(world, policy, *references, exchangeable=exchangeable)
                text = text_of(finding)
                assert not re.search(r"suspect (is|was|seems|looks) (clean|not)", text)
                claims = "does not show that it is clean" in finding.sentence
                assert claims is (finding.verdict == "not_detected")
                assert "nan" not in text and "None" not in text and "inf" not in text


# ---------------------------------------------------------------------------- other detectors


def test_other_detectors_are_corrected_together_and_do_not_vote(make_world: Any) -> None:
    world = make_world.make(n=60)
    finding = judge(world, world.string_memoriser(), world.seer(0.9))
    scores = [one.score for one in finding.other_detectors]
    assert {score.detector for score in scores} == {"choice_confusion", "old_answer_attraction"}
    p_values = adjust_p_values([score.p_value or 0.0 for score in scores])
    assert [one.p_adjusted for one in finding.other_detectors] == p_values
    assert finding.leading.detector == "perturbation_gap"


def test_a_detector_that_fires_on_the_reference_is_doubtful(make_world: Any) -> None:
    world = make_world.make(n=60)
    finding = judge(world, world.string_memoriser(), world.string_memoriser())
    one = next(one for one in finding.other_detectors if one.detector == "choice_confusion")
    assert (
        one.verdict == "contaminated" and one.flagged_references == ("clean-0",) and one.is_doubtful
    )
    assert "False alarm suspected: also significant on the clean model clean-0." in one.remarks
    assert "; 0 do so after correction for their number and without a suspected" in text_of(finding)


def test_p_values_are_adjusted_over_all_other_detectors_and_the_largest_is_shown(
    world: Any,
) -> None:
    answers = answers_of(world, world.memoriser(), "suspect")
    score = DETECTORS[1].score(world.benchmark, PROMPT_SETTINGS, answers, None)[1]
    values = {"one": 0.01, "two": 0.02, "three": 0.04}
    score = score.model_copy(update={"verdict": "contaminated"})
    scores = [score.model_copy(update={"detector": d, "p_value": p}) for d, p in values.items()]
    found = {one.detector: one for one in other_results(scores, {}, {"four": "no reason"})}
    assert [found[d].p_adjusted for d in values] == pytest.approx([0.03, 0.04, 0.04])
    assert found["four"].p_adjusted is None and found["four"].remarks == ["No reason."]
    assert not any(found[d].is_doubtful for d in values)
    assert least_significant(scores).p_value == least_significant(scores[::-1]).p_value == 0.04
    dull = scores[0].model_copy(update={"verdict": "not_detected", "p_value": 0.001})
    assert least_significant([*scores, dull]) == dull

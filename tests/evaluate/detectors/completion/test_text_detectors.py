"""Slot guessing, guided prompting, missing option: vectors and models made of rules."""

from typing import Any

import numpy as np
import pytest

from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Count, Mean, Probe
from flipbench.evaluate.detectors.completion.guided_prompting import (
    GuidedPrompting,
    judge_verdict,
    match_by_words,
    overlap_p,
    split_text,
)
from flipbench.evaluate.detectors.completion.missing_option import MissingOption
from flipbench.evaluate.detectors.completion.slot_guessing import MASK, SlotGuessing, make_slot
from flipbench.evaluate.scoring.text_match import continuation, mentions, rouge_l
from flipbench.prompting.prompts import PromptSettings
from flipbench.shapes.benchmark import reword

SLOTS, GUIDED, MISSING = SlotGuessing(reword=reword), GuidedPrompting(), MissingOption()
CHATTING = [SLOTS, GUIDED, MISSING]


def scores_of(detector: Any, benchmark: PairedBenchmark, *answers: Any) -> dict[str, Any]:
    return {s.rule: s for s in detector.score(benchmark, PromptSettings(), *answers)}


# ------------------------------------------------------------------------- all of them


# ------------------------------------------------------------------------- slot guessing


def test_the_same_word_is_masked_in_both_wordings(make_item: Any) -> None:
    item = make_item("x", None, None).model_copy(
        update={"answer_text": "A party of three artists paints art on the wall"}
    )
    hidden = set()
    for seed in range(40):
        slot = make_slot(item, "On a wall, art is painted by a party of three", seed)
        assert slot is not None and (slot.original + slot.reworded).count(MASK) == 2
        hidden.add(slot.stem)
    assert hidden == {"wall", "art", "paint", "parti", "three"}
    slot = next(s for i in range(40) if (s := make_slot(item, "art on a wall", i)).stem == "art")
    assert slot.original == f"A party of three artists paints {MASK} on the wall"
    assert make_slot(item, "Nothing alike", 0) is None


def guesser(knows: set[str], benchmark: PairedBenchmark) -> Any:
    """Return a model that knows the hidden words of the variants named."""
    stems = {}
    for item in benchmark.originals:
        slot = make_slot(item, reword(item, f"{item.question} {item.answer_text}")[0], 0)
        assert slot is not None
        stems[item.id] = slot.stem
    return lambda p: f"It is {stems[p.item_id]}." if p.variant in knows else "pardon"


def test_a_model_that_knows_only_the_release_is_flagged(
    shapes_benchmark: PairedBenchmark, replies: Any
) -> None:
    memory = replies(SLOTS, shapes_benchmark, guesser({"slot"}, shapes_benchmark))
    clean = replies(SLOTS, shapes_benchmark, guesser({"slot", "slot-reworded"}, shapes_benchmark))
    scores = scores_of(SLOTS, shapes_benchmark, memory, clean)
    assert [s.verdict for s in scores.values()] == ["contaminated"] * 3
    assert scores["bands"].details["degree"] == "severe"
    assert scores["bands"].accuracies["slot"] == Count(k=30, n=30)
    found = scores_of(SLOTS, shapes_benchmark, clean, memory)
    assert {s.verdict for s in found.values()} == {"not_detected"}
    assert found["bands"].details["leakage"] == {"k": 0, "n": 30, "rate": 0.0, "normalised": 0.0}


def test_a_reply_that_repeats_the_text_is_no_guess(
    shapes_benchmark: PairedBenchmark, replies: Any
) -> None:
    echo = replies(SLOTS, shapes_benchmark, lambda p: p.prompt.splitlines()[0])
    score = scores_of(SLOTS, shapes_benchmark, echo)["mcnemar"]
    assert score.accuracies["slot"].k == 0


@pytest.mark.parametrize("detector", [SlotGuessing(), SLOTS])
def test_without_rewordings_the_detector_does_not_apply(detector: Any, world: Any) -> None:
    scores = world.scores(detector, world.ask(detector, lambda p: 0))
    for score in scores.values():
        assert (score.verdict, score.n, score.n_dropped) == ("not_applicable", 0, 40)
        assert any("evaluate.rewording" in w for w in score.warnings)
        reason = "" if detector.reword else "set evaluate.rewording"
        assert score.reason == reason


# ------------------------------------------------------------------------- guided prompting


def test_rouge_and_judge_worked_examples() -> None:
    assert rouge_l("the cat sat on the mat", "the cat lay on a mat") == pytest.approx(2 / 3)
    assert rouge_l("a", "") == 0.0
    assert [judge_verdict(*x) for x in ((0, 2), (0, 1), (1, 0))] == [
        "contaminated", "not_detected", "contaminated",
    ]  # fmt: skip
    assert match_by_words("C. green\nD. blue", "C. green D. gold") == "near-exact"


def test_the_overlap_test_against_brute_force() -> None:
    guided, general = np.array([0.0, 1.0]), np.array([0.0, 0.5])
    means = [(a + b) / 2 for a in guided for b in guided]
    others = [(a + b) / 2 for a in general for b in general]
    share = np.mean([x > y for x in means for y in others])
    assert overlap_p(guided, general, np.random.default_rng(0)) == pytest.approx(
        1 - share, abs=0.02
    )


def test_the_overlap_test_is_never_certain(make_world: Any, replies: Any) -> None:
    assert overlap_p(np.ones(30), np.zeros(30), np.random.default_rng(0), 99) == 0.01
    for n, verdict in ((4, "inconclusive"), (5, "contaminated")):
        benchmark = make_world.make(n).benchmark
        finish = finisher(lambda p: p.variant == "guided", benchmark)
        score = scores_of(GUIDED, benchmark, replies(GUIDED, benchmark, finish))["overlap"]
        assert (score.n, score.verdict, score.p_value) == (n, verdict, 1 / 10_001)


def test_the_split_falls_between_parts_and_loses_nothing(
    shapes_benchmark: PairedBenchmark, make_item: Any
) -> None:
    for item in shapes_benchmark.originals:
        first, second = split_text(item, 0) or ("", "")
        whole = f"{first}\n{second}"
        assert first.startswith(item.question) and second.split("\n")[-1][3:] == item.options[-1]
        assert [line[3:] for line in whole.split("\n")[1:]] == list(item.options)
        assert 0.3 < round(len(first.split("\n")) / len(whole.split("\n")), 2) <= 0.75
    words = make_item("x", None, None).model_copy(update={"question": "one two three four five"})
    first, second = split_text(words, 0) or ("", "")
    assert f"{first} {second}" == words.question and 2 <= len(first.split()) <= 4
    assert split_text(words.model_copy(update={"question": "one"}), 0) is None


def finisher(knows: Any, benchmark: PairedBenchmark) -> Any:
    ends = {item.id: (split_text(item, 0) or ("", ""))[1] for item in benchmark.originals}
    return lambda p: ends[p.item_id] if knows(p) else "I do not know how it ends"


def test_a_model_that_completes_when_given_the_dataset_name_is_flagged(
    shapes_benchmark: PairedBenchmark, replies: Any
) -> None:
    guided = replies(
        GUIDED, shapes_benchmark, finisher(lambda p: p.variant == "guided", shapes_benchmark)
    )
    scores = scores_of(GUIDED, shapes_benchmark, guided)
    assert [s.verdict for s in scores.values()] == ["contaminated"] * 3
    assert scores["judge"].details["judged"] == {
        "exact": 10, "near_exact": 0, "n": 10, "by": "words",
    }  # fmt: skip
    assert scores["paired"].means["guided"] == Mean(mean=1.0, n=30)
    assert scores["paired"].unit == "ROUGE-L" and scores["overlap"].p_value == 1 / 10_001
    both = replies(GUIDED, shapes_benchmark, finisher(lambda p: True, shapes_benchmark))
    scores = scores_of(GUIDED, shapes_benchmark, both)
    assert [scores[r].verdict for r in ("overlap", "paired")] == ["not_detected"] * 2


def test_a_judge_labels_ten_completions(shapes_benchmark: PairedBenchmark, replies: Any) -> None:
    answers = replies(GUIDED, shapes_benchmark, lambda p: f"perhaps {p.item_id}")
    tasks = list(GUIDED.to_judge(shapes_benchmark, answers))
    assert len(tasks) == 10 and all(
        text.startswith("perhaps ") for _, text in (t.texts for t in tasks)
    )

    def verdict(*labels: str | None) -> tuple[str, dict[str, Any]]:
        by_task = dict(zip(tasks, labels, strict=True))
        score = scores_of(GuidedPrompting(label=by_task.get), shapes_benchmark, answers)["judge"]
        return score.verdict, score.details["judged"]

    counts = {"exact": 0, "near_exact": 2, "n": 10, "by": "judge"}
    assert verdict(*["near-exact"] * 2, *["none"] * 8) == ("contaminated", counts)
    assert verdict("near-exact", *["none"] * 9)[0] == "not_detected"
    assert verdict("exact", *["none"] * 9)[0] == "contaminated"
    missing = {"exact": 0, "near_exact": 1, "n": 9, "by": "judge"}
    assert verdict("near-exact", None, *["none"] * 8) == ("inconclusive", missing)
    assert verdict("exact", None, *["none"] * 8)[0] == "contaminated"


def test_exact_and_empty_completions_need_no_judge(
    shapes_benchmark: PairedBenchmark, replies: Any
) -> None:
    exact = replies(GUIDED, shapes_benchmark, finisher(lambda p: True, shapes_benchmark))
    assert not list(GUIDED.to_judge(shapes_benchmark, exact))
    found = scores_of(GuidedPrompting(label=lambda task: "none"), shapes_benchmark, exact)["judge"]
    assert found.details["judged"] == {"exact": 10, "near_exact": 0, "n": 10, "by": "judge"}
    silent = replies(GUIDED, shapes_benchmark, lambda p: " ")
    assert not list(GUIDED.to_judge(shapes_benchmark, silent))


def test_only_the_guided_prompt_names_the_dataset(shapes_benchmark: PairedBenchmark) -> None:
    probes = GUIDED.probes(shapes_benchmark, PromptSettings())
    assert {p.variant: "shapes-vqa" in p.prompt for p in probes} == {
        "general": False, "guided": True,
    }  # fmt: skip
    assert all(p.images for p in probes)


def test_a_repeated_beginning_is_stripped_from_the_reply() -> None:
    assert continuation("what  COLOR\nis the star?", "What color is") == " the star?"
    assert continuation("the star?", "What color is") == "the star?"


# ------------------------------------------------------------------------- missing option


def test_eight_hits_of_110_are_flagged(make_world: Any, replies: Any) -> None:
    benchmark = make_world.make(n=110).benchmark
    last = {i.id: i.options[-1] for i in benchmark.originals}
    knows = {i.id for i in benchmark.originals[:8]}
    model = replies(MISSING, benchmark, lambda p: last[p.item_id] if p.item_id in knows else "no")
    clean = replies(MISSING, benchmark, lambda p: "no", "clean")
    scores = scores_of(MISSING, benchmark, model, clean)
    assert round(100 * scores["paper"].statistic, 2) == 7.27
    assert [s.verdict for s in scores.values()] == ["contaminated"] * 2
    found = scores_of(MISSING, benchmark, clean, model)
    assert {s.verdict for s in found.values()} == {"not_detected"}


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("blue", True), ("D. Blue", True), ("The missing option is blue.", True),
        ("D", False), ("light blues", False), ("red, green or blue", False), ("", False),
    ],
)  # fmt: skip
def test_replies_that_name_the_missing_option(reply: str, expected: bool) -> None:
    assert mentions(reply, "blue", ["red", "green", "black"]) is expected


def test_a_judge_reads_replies_that_are_no_option(make_world: Any, replies: Any) -> None:
    benchmark = make_world.make(n=40).benchmark
    options = {i.id: i.options for i in benchmark.originals}
    known = ("last", "first", "", *["other words"] * 37)
    said = dict(zip(options, known, strict=True))

    def reply(probe: Probe) -> str:
        first, *_, last = options[probe.item_id]
        return {"last": f"D. {last}", "first": first}.get(said[probe.item_id], said[probe.item_id])

    model = replies(MISSING, benchmark, reply)
    clean = replies(MISSING, benchmark, lambda p: options[p.item_id][0], "clean")
    tasks = list(MISSING.to_judge(benchmark, model))
    assert {task.texts[1] for task in tasks} == {"other words"} and len(tasks) == 37
    assert not list(MISSING.to_judge(benchmark, clean))
    labels = dict.fromkeys(tasks, "same") | {tasks[-1]: "different", tasks[-2]: None}
    n = {label: sum(labels[task] == label for task in tasks) for label in ("same", None)}
    judged = scores_of(MissingOption(label=labels.get), benchmark, model, clean)
    for score in judged.values():
        assert score.details["compared_by"] == "judge" and score.verdict == "contaminated"
        assert score.accuracies["missing option"] == Count(k=1 + n["same"], n=40 - n[None])
        assert (score.n_dropped, score.unparsed["missing option"]) == (n[None], 1)
    by_words = scores_of(MISSING, benchmark, model, clean)["mcnemar"]
    assert by_words.details["compared_by"] == "words"
    assert by_words.accuracies["missing option"] == Count(k=1, n=40)


def test_the_prompt_hides_the_last_option_and_the_image(
    shapes_benchmark: PairedBenchmark,
) -> None:
    probes = {p.item_id: p for p in MISSING.probes(shapes_benchmark, PromptSettings())}
    items = {item.id: item for item in shapes_benchmark.originals}
    assert probes.keys() == {i for i, item in items.items() if len(item.options or ()) > 2}
    for item_id, probe in probes.items():
        shown = (items[item_id].options or ())[:-1]
        lines = [f"{letter}. {option}" for letter, option in zip("ABC", shown, strict=False)]
        assert probe.prompt.split("\n")[1:-1] == lines
        assert probe.images == ()

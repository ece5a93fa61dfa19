"""Old-answer attraction: exact vectors, models made of rules, harder and failed edits."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest
from PIL import ImageFilter

from flipbench.core.paired import Pair, PairedBenchmark
from flipbench.core.records import Item, Probe, Score
from flipbench.core.run import Run
from flipbench.evaluate import pipeline
from flipbench.evaluate.detectors.perturbation.confidence_gap import ConfidenceGap
from flipbench.evaluate.detectors.perturbation.old_answer_attraction import OldAnswerAttraction
from flipbench.evaluate.detectors.perturbation.perturbation_gap import PerturbationGap
from flipbench.evaluate.pipeline import ModelUnderTest
from flipbench.evaluate.scoring.conditions import Settings
from flipbench.evaluate.scoring.old_answers import (
    PerturbedReplies,
    WrongAnswer,
    against_chance,
    stratified_p,
)
from flipbench.evaluate.statistics.counts import poisson_binomial_p
from flipbench.models.vlm.huggingface import HuggingFaceVLM
from flipbench.prompting.prompts import PromptSettings
from flipbench.shapes.benchmark import shapes_vqa
from tests.fixtures.flipped import rendered_pair
from tests.fixtures.options import QUIET

DETECTOR = OldAnswerAttraction()


@pytest.mark.parametrize("count", range(4))
def test_the_exact_tail_against_enumeration(count: int) -> None:
    chances = [1 / 3, 1 / 3, 1 / 2]
    expected = sum(
        prod(p if hit else 1 - p for hit, p in zip(hits, chances, strict=True))
        for hits in product([True, False], repeat=3)
        if sum(hits) >= count
    )
    assert poisson_binomial_p(count, chances) == pytest.approx(expected)


def test_three_wrong_answers_all_on_the_old_answer() -> None:
    assert poisson_binomial_p(3, [1 / 3, 1 / 3, 1 / 2]) == pytest.approx(1 / 18)
    assert poisson_binomial_p(0, [1 / 3, 1 / 3, 1 / 2]) == 1


def wrong(world: Any, slot: Callable[[Pair], int]) -> Callable[[Probe], int]:
    """Return a model that answers each perturbed item by the option that ``slot`` names."""
    chosen = {pair.perturbed.id: slot(pair) for pair in world.benchmark.pairs}
    return lambda probe: chosen[probe.item_id]


def answers(choices: str, old: str, new: str, n_options: int = 4) -> list[WrongAnswer]:
    """Return wrong answers, one for each letter."""
    letters = zip(choices, old, new, strict=True)
    return [
        WrongAnswer(str(i), *map("ABCD".index, slots), n_options, str(i))
        for i, slots in enumerate(letters)
    ]


@pytest.mark.parametrize(
    ("choices", "old", "new", "expected"),
    [
        ("AB", "AB", "DD", 1 / 2),  # of the two ways to deal two old answers, one matches both
        ("ABC", "ABC", "DDD", 1 / 6),
        ("AAB", "AAB", "DDD", 1 / 3),
        ("AAAA", "AAAA", "DDDD", 1),  # whoever always says A says nothing
        ("ABAB", "ABAB", "CCDD", 1 / 4),  # two strata, each as the first case
        ("AB", "BA", "DD", 1),
    ],
)
def test_the_permutation_test_against_enumeration(
    choices: str, old: str, new: str, expected: float
) -> None:
    p_value = stratified_p(answers(choices, old, new), Settings(n_permutations=20_000))
    assert p_value == pytest.approx(expected)


def test_a_preference_for_a_letter_is_no_memory() -> None:
    """45 % of the old answers are A, and a clean model that is unsure says A nine times in ten."""
    rng = np.random.default_rng(0)
    p_values, by_chance = [], []
    for _ in range(60):
        old = rng.choice(4, 150, p=[0.45, 0.25, 0.15, 0.15])
        new = (old + rng.integers(1, 4, 150)) % 4
        choice = rng.choice(4, 150, p=[0.91, 0.03, 0.03, 0.03])
        wrong = [
            WrongAnswer(str(i), *map(int, slots), 4, str(i))
            for i, slots in enumerate(zip(choice, old, new, strict=True))
            if slots[0] != slots[2]
        ]
        p_values.append(stratified_p(wrong, Settings(n_permutations=999)))
        n_old = sum(answer.is_old for answer in wrong)
        by_chance.append(poisson_binomial_p(n_old, [1 / 3] * len(wrong)))
    assert np.mean(np.array(p_values) <= 0.05) < 0.12
    assert np.mean(np.array(by_chance) <= 0.05) > 0.9, "one in k - 1 takes it for memory"


def test_the_share_from_memory_is_zero_by_chance_and_a_lower_bound() -> None:
    rng = np.random.default_rng(0)
    shares = []
    for memorised in (0.0, 0.3):
        old = rng.integers(4, size=2_000)
        new = (old + rng.integers(1, 4, 2_000)) % 4
        choice = np.where(rng.random(2_000) < 0.5, new, rng.integers(4, size=2_000))
        choice = np.where(rng.random(2_000) < memorised, old, choice)
        wrong = [
            WrongAnswer(str(i), *map(int, slots), 4, str(i))
            for i, slots in enumerate(zip(choice, old, new, strict=True))
            if slots[0] != slots[2]
        ]
        replies = PerturbedReplies([str(i) for i in range(2_000)], wrong)
        shares.append(against_chance(replies, Settings(n_permutations=99))["memory"])
    clean, memory = shares
    assert clean.interval.low < 0 < clean.interval.high < 0.05
    assert 0.25 < memory.share < 0.35 and memory.interval.low > 0.2


def neither(pair: Pair) -> int:
    """Return a wrong option that is not the original's answer."""
    own = {pair.original.answer, pair.perturbed.answer}
    return next(slot for slot in range(4) if slot not in own)


def test_a_memoriser_is_caught_and_a_model_that_is_merely_wrong_is_not(world: Any) -> None:
    found = world.scores(DETECTOR, world.ask(DETECTOR, world.memoriser()))["chance"]
    assert found.verdict == "contaminated"
    assert found.statistic == pytest.approx(2 / 3, abs=0.1)
    assert (found.accuracies["old answer"].k, found.accuracies["old answer"].n) == (40, 40)
    assert found.means["expected by chance"].mean == pytest.approx(1 / 3, abs=0.1)
    assert found.p_value < 1e-9
    assert found.memory.share == pytest.approx(1) and found.memory.n == 40
    found = world.scores(DETECTOR, world.ask(DETECTOR, wrong(world, neither)))["chance"]
    assert found.verdict == "not_detected" and found.p_value == 1


def test_right_answers_do_not_count(world: Any) -> None:
    right = world.ask(DETECTOR, wrong(world, lambda pair: pair.perturbed.answer))
    found = world.scores(DETECTOR, right)["chance"]
    assert (found.verdict, found.n, found.statistic) == ("inconclusive", 40, None)
    assert any("too few for a verdict" in warning for warning in found.warnings)


def test_a_clean_model_that_errs_in_the_same_way_explains_it(world: Any) -> None:
    memory = world.ask(DETECTOR, world.memoriser())
    tempted = world.ask(DETECTOR, world.memoriser(), "clean, but tempted")
    scores = world.scores(DETECTOR, memory, tempted)
    assert scores["chance"].verdict == "contaminated"
    assert scores["relative"].verdict == "not_detected" and scores["relative"].statistic == 0
    other = world.ask(DETECTOR, wrong(world, neither), "clean")
    relative = world.scores(DETECTOR, memory, other)["relative"]
    assert relative.verdict == "contaminated" and relative.p_value == pytest.approx(0.5**40)
    assert relative.reference.accuracies["old answer"].k == 0


def test_replies_that_name_no_option_are_not_wrong_answers(world: Any) -> None:
    found = world.scores(DETECTOR, world.ask(DETECTOR, wrong(world, lambda _: -1)))["chance"]
    assert found.verdict == "inconclusive" and found.accuracies["old answer"].n == 0
    assert any("name no option: perturbed 40/40" in warning for warning in found.warnings)


def test_two_options_leave_nothing_to_be_attracted_to(make_world: Any) -> None:
    world = make_world.make(n=8, k=2)
    assert DETECTOR.probes(world.benchmark, PromptSettings()) == []
    assert {
        s.verdict for s in world.scores(DETECTOR, world.ask(DETECTOR, lambda _: 0)).values()
    } == {"not_applicable"}


def test_one_picture_with_many_questions_is_no_evidence(make_world: Any, make_item: Any) -> None:
    pairs = []
    for number in range(40):
        options = [f"{number} {slot}" for slot in "abcd"]
        one = make_item(str(number), options, number % 2 * 2, picture=f"picture {number // 20}")
        two = make_item(str(number), options, 1, picture=f"edited {number // 20}")
        pairs.append(Pair(one, two))
    world = make_world.of(pairs)
    found = world.scores(DETECTOR, world.ask(DETECTOR, world.memoriser()))["chance"]
    assert found.verdict == "inconclusive" and found.p_value == pytest.approx(1 / 4)


Edit = Callable[[Any, int], Any]


def edited(benchmark: PairedBenchmark, numbers: Sequence[int], edit: Edit) -> PairedBenchmark:
    """Return the benchmark with some perturbed pictures edited once more."""
    pairs = list(benchmark.pairs)
    for number in numbers:
        pair = pairs[number]
        picture = edit(benchmark.images.open(pair.perturbed.images[0]), number)
        ref = benchmark.images.put_image(picture, str(number))
        changed = pair.perturbed.model_dump() | {"id": "", "images": (ref,)}
        pairs[number] = replace(pair, perturbed=Item.model_validate(changed))
    return replace(benchmark, pairs=tuple(pairs))


def test_pairs_with_almost_equal_images_are_left_out_and_counted(
    shapes_benchmark: PairedBenchmark,
) -> None:
    def original(picture: Any, number: int) -> Any:
        same = shapes_benchmark.images.open(shapes_benchmark.originals[number].images[0])
        same.putpixel((100, 100), (1, 2, 3))
        return same

    spoilt = edited(shapes_benchmark, range(4), original)
    askable = [p for p in spoilt.pairs if len(p.original.options or ()) > 2]
    n_spoilt = sum(p in spoilt.pairs[:4] for p in askable)
    assert n_spoilt > 0
    nothing = pipeline.Answers("none", "none", {})
    notes = DETECTOR.score(spoilt, PromptSettings(), nothing)[0].warnings
    assert any(
        note.startswith(f"{n_spoilt} item") and "images are almost equal" in note for note in notes
    )


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> tuple[PairedBenchmark, Run]:
    """Return 160 pairs of the embedded world."""
    run = Run(tmp_path_factory.mktemp("harder"))
    pairs = []
    for number, item in enumerate(shapes_vqa(run.images, 160)):
        n = len(item.options or ())
        new = ((item.answer or 0) + 1 + number % (n - 1)) % n
        pairs.append(rendered_pair(item, run.images, new))
    return PairedBenchmark("shapes-vqa", tuple(pairs), run.images), run


@pytest.fixture(scope="module")
def blurred(pairs: tuple[PairedBenchmark, Run]) -> PairedBenchmark:
    """Return the pairs, their perturbed pictures blurred by 7 pixels."""
    benchmark, _ = pairs

    def blur(picture: Any, number: int) -> Any:
        return picture.filter(ImageFilter.GaussianBlur(7))

    return edited(benchmark, range(len(benchmark.pairs)), blur)


def scores_of(benchmark: PairedBenchmark, run: Run) -> dict[str, Score]:
    vlm = HuggingFaceVLM("shapes:llava")
    subject = ModelUnderTest.from_vlm(vlm, dose=0)
    detectors = [PerturbationGap(), OldAnswerAttraction(), ConfidenceGap()]
    pipeline.ask_all(benchmark, [subject], detectors, PromptSettings(), run, options=QUIET)
    scores = pipeline.score(benchmark, [subject.model], detectors, PromptSettings(), run)
    return {f"{score.detector} {score.rule}": score for score in scores}


@pytest.mark.slow
def test_harder_pictures_mislead_mcnemar_but_not_attraction(
    pairs: tuple[PairedBenchmark, Run], blurred: PairedBenchmark
) -> None:
    """The model is clean, and blurred pictures are harder to see."""
    plain, harder = (scores_of(benchmark, pairs[1]) for benchmark in (pairs[0], blurred))
    assert plain["perturbation_gap mcnemar"].verdict == "not_detected"
    assert harder["perturbation_gap mcnemar"].verdict == "contaminated"
    assert harder["perturbation_gap mcnemar"].p_value < 0.01
    assert harder["confidence_gap label_swap"].verdict == "contaminated"
    attraction = harder["old_answer_attraction chance"]
    assert attraction.verdict == "not_detected" and attraction.accuracies["old answer"].n > 40


@pytest.mark.slow
def test_failed_edits_mislead_attraction(pairs: Any) -> None:
    """A clean model sees the old answer where an edit left it and changed something else."""
    benchmark, run = pairs

    def failed(picture: Any, number: int) -> Any:
        old = run.images.open(benchmark.originals[number].images[0])
        old.paste((255, 255, 255), (0, 0, old.width, 12))
        return old

    spoilt = edited(benchmark, range(0, 160, 3), failed)
    found = scores_of(spoilt, run)["old_answer_attraction chance"]
    assert found.verdict == "contaminated"

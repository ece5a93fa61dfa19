"""Four quadrants: models made of rules land where they belong; what cannot be asked is counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from flipbench.core.paired import Pair, PairedBenchmark
from flipbench.core.records import Count, Item, Probe, Response, Score
from flipbench.evaluate.detectors.grounding.four_quadrants import FourQuadrants
from flipbench.evaluate.detectors.grounding.image_swap import ImageSwap
from flipbench.evaluate.detectors.grounding.picture_divergence import PictureDivergence
from flipbench.evaluate.scoring.unchanged import closed_items
from flipbench.evaluate.statistics.quadrants import QuadrantResult
from flipbench.models.chat.labels import LabelTask
from flipbench.models.engine import Answers
from flipbench.prompting.prompts import PromptSettings
from tests.fixtures.planted import planted_benchmark, reword

LEVELS = {"first": "lexical", "second": "syntactic"}


def others(item: Item, text: str) -> list[str]:
    """Return two wordings, one identical to the question and one that reverses it."""
    stem = item.question.rstrip("?")
    return [
        f"{stem} put first?",
        item.question.upper(),
        f"{stem} put second?",
        f"{stem} not put so?",
    ]


def level_of(item: Item, text: str) -> str:
    return LEVELS.get(text.rstrip("?").split()[-1], "")


DETECTOR = FourQuadrants(reword=others, level_of=level_of)


def quadrants(score: Score) -> QuadrantResult:
    return QuadrantResult.model_validate(score.quadrants)


def yes_no_pair(item: Item, answer: str) -> Pair:
    closed, changed = (
        Item.model_validate(
            item.model_dump() | {"id": "", "options": None, "answer": None, "answer_text": text}
        )
        for text in (answer, "no" if answer == "yes" else "yes")
    )
    return Pair(closed, changed.model_copy(update={"images": (), "id": "x"}))


def in_quadrants(world: Any) -> Callable[[Probe], int]:
    """Return a policy with item 4 k + j in quadrant j: always right on the question as it is."""
    gold = {i.id: (int(i.name), i.answer) for i in world.benchmark.originals}

    def policy(probe: Probe) -> int:
        number, right = gold[probe.item_id]
        wrong = (right + 1) % probe.n_options
        inconsistent, not_reliant = number % 4 in (1, 3), number % 4 in (2, 3)
        if not probe.images:
            return right if not_reliant else wrong
        return wrong if inconsistent and probe.variant == "paraphrase 2" else right

    return policy


def test_items_are_where_their_answers_put_them(make_world: Any) -> None:
    world = make_world.make(n=40)
    found = world.scores(DETECTOR, world.ask(DETECTOR, in_quadrants(world)))
    result = quadrants(found["paper"])
    assert result is not None
    assert {name: (c.k, c.n) for name, c in result.counts.items()} == dict.fromkeys(
        ("ideal", "fragile", "dangerous", "worst"), (10, 10)
    )
    names = {item.id: int(item.name) for item in world.benchmark.originals}
    order = ("ideal", "fragile", "dangerous", "worst")
    assert result.items == {item_id: order[name % 4] for item_id, name in names.items()}
    assert found["paper"].statistic == 0.25 and found["paper"].verdict == "not_detected"
    assert result.prior == Count(k=20, n=40)
    for interval, share in (
        (result.flip_rate, 0.5),
        (result.dangerous, 0.25),
        (result.given_consistent, 0.5),
    ):
        assert interval is not None and interval.low < share < interval.high
    assert result.wordings == {"kept": 80, "identical": 40, "negation": 40}
    assert result.levels == {"lexical": Count(k=0, n=40), "syntactic": Count(k=20, n=40)}
    assert result.auroc is None and found["mcnemar"].lacks_reference


def test_the_question_as_it_is_counts_as_a_wording_or_not(make_world: Any) -> None:
    world = make_world.make(n=8)
    gold = {i.id: i.answer for i in world.benchmark.originals}

    def policy(probe: Probe) -> int:
        return (gold[probe.item_id] + probe.variant.startswith("paraphrase")) % probe.n_options

    for with_original, quadrant in ((True, "worst"), (False, "dangerous")):
        detector = replace(DETECTOR, with_original=with_original)
        result = quadrants(world.scores(detector, world.ask(detector, policy))["paper"])
        assert result.counts[quadrant].n == 8


def test_above_half_the_paper_s_flag_is_no_verdict_of_contamination(make_world: Any) -> None:
    world = make_world.make(n=24)
    blind = world.ask(DETECTOR, lambda probe: 1, "blind")
    seeing = world.ask(DETECTOR, in_quadrants(world), "clean")
    found = world.scores(DETECTOR, blind, seeing)
    assert found["paper"].verdict == "inconclusive" and found["paper"].statistic == 1
    assert found["paper"].interval.high == 1 and 0.8 < found["paper"].interval.low < 0.9
    assert any("above 50 %, the paper's flag" in w for w in found["paper"].warnings)
    assert found["mcnemar"].verdict == "contaminated"
    assert found["mcnemar"].statistic == pytest.approx(0.75)


def test_an_unreadable_reply_agrees_with_none(make_world: Any) -> None:
    world = make_world.make(n=20)
    silent = world.ask(DETECTOR, lambda p: -1 if not p.images else 0)
    found = world.scores(DETECTOR, silent)["paper"]
    assert quadrants(found).counts["ideal"].n == 20 and found.unparsed == {"dangerous": 20}
    assert found.verdict == "inconclusive"
    mute = world.ask(DETECTOR, lambda p: -1)
    assert quadrants(world.scores(DETECTOR, mute)["paper"]).counts["fragile"].n == 20


def test_yes_no_questions_and_what_cannot_be_asked(
    make_world: Any, make_item: Any, make_pair: Any
) -> None:
    world = make_world.make(n=8)
    pairs = [yes_no_pair(p.original, "yes" if i % 2 else "no") for i, p in
             enumerate(world.benchmark.pairs)]  # fmt: skip
    bare = make_item("blind", ["a", "b"], 0).model_copy(update={"images": ()})
    world = make_world.of([*pairs, make_pair(bare, 1)])
    probes = DETECTOR.probes(world.benchmark, PromptSettings())
    assert {(p.options, p.labels, p.ask) for p in probes} == {(("yes", "no"), "yes no", "choose")}
    assert {p.prompt.splitlines()[-1] for p in probes} == {"Answer with a single word or phrase."}
    found = world.scores(DETECTOR, world.ask(DETECTOR, lambda probe: 0))["paper"]
    assert (found.n, found.n_dropped) == (8, 1)
    assert quadrants(found).counts["dangerous"] == Count(k=4, n=8)
    assert quadrants(found).prior == Count(k=4, n=8)
    assert any("1 item is left out: they have no picture, or fewer" in w for w in found.warnings)


def test_items_with_one_option_are_not_asked(make_item: Any) -> None:
    items = [make_item("one", ["only"], 0), make_item("two", ["a", "b"], 0)]
    found = closed_items(cast(PairedBenchmark, SimpleNamespace(originals=items)))
    assert [item.name for item in found] == ["two"]


def test_a_judge_leaves_wordings_out_and_readmits_negations(make_world: Any) -> None:
    world = make_world.make(n=8)

    def label(task: LabelTask) -> str:
        return "different" if task.texts[1].endswith("second?") else "same"

    detector = replace(DETECTOR, label=label)
    tasks = list(detector.to_judge(world.benchmark, Answers("", "", {})))
    assert len(tasks) == 24  # the identical one is left out by rule
    found = world.scores(detector, world.ask(detector, in_quadrants(world)))["paper"]
    assert quadrants(found).wordings == {"kept": 16, "identical": 8, "judged different": 8}

    never = replace(DETECTOR, label=lambda task: "different")
    found = world.scores(never, world.ask(never, in_quadrants(world)))["paper"]
    assert (found.verdict, found.n, found.n_dropped) == ("not_applicable", 0, 8)


def test_without_wordings_or_text_only_replies_it_is_not_applicable(make_world: Any) -> None:
    world = make_world.make(n=8)
    bare = FourQuadrants()
    found = world.scores(bare, world.ask(bare, lambda probe: 0))
    assert {s.verdict for s in found.values()} == {"not_applicable"}
    assert {s.reason for s in found.values()} == {"set evaluate.rewording"}
    same = FourQuadrants(reword=lambda item, text: [text.lower()])
    assert same.probes(world.benchmark, PromptSettings()) == []


def by_likelihood(world: Any, detector: Any, p: Callable[[Probe], Sequence[float]]) -> Answers:
    found = {}
    for probe in detector.probes(world.benchmark, PromptSettings()):
        log_p = np.log(p(probe)).tolist()
        found[probe.id] = Response(
            probe_id=probe.id,
            model_fingerprint="f",
            model="m",
            choice=int(np.argmax(log_p)),
            option_log_probs=log_p,
        )
    return Answers("m", "f", found)


def test_divergence_entropy_and_auroc(make_world: Any) -> None:
    world = make_world.make(n=4, k=2)
    numbers = {i.id: int(i.name) for i in world.benchmark.originals}

    def p(probe: Probe) -> Sequence[float]:
        if probe.images:
            return (0.82, 0.18)
        return (0.41, 0.59) if numbers[probe.item_id] < 2 else (0.8, 0.2)

    result = quadrants(world.scores(DETECTOR, by_likelihood(world, DETECTOR, p))["paper"])
    assert (result.counts["ideal"].n, result.counts["dangerous"].n) == (2, 2)
    assert result.divergences["ideal"].mean == pytest.approx(0.35469, abs=1e-5)
    assert result.entropies["dangerous"].mean == pytest.approx(0.47139, abs=1e-5)
    assert result.divergences["fragile"].mean is None
    assert result.auroc == 1 and result.auroc_interval.high == 1

    divergence = PictureDivergence()
    clean = by_likelihood(world, divergence, p)
    flat = by_likelihood(world, divergence, lambda probe: (0.5, 0.5))
    found = world.scores(divergence, flat, replace(clean, fingerprint="c"))["label_swap"]
    expected = (2 * 0.354687 + 2 * (0.82 * np.log(0.82 / 0.8) + 0.18 * np.log(0.18 / 0.2))) / 4
    assert found.statistic == pytest.approx(-expected, abs=1e-5) and found.unit == "nats"


def test_swapped_pictures_are_those_of_other_items(make_world: Any) -> None:
    world = make_world.make(n=12)
    detector = ImageSwap(n_swaps=3)
    own = {i.id: i.images for i in world.benchmark.originals}
    probes = detector.probes(world.benchmark, PromptSettings())
    swapped = [probe for probe in probes if probe.variant.startswith("swapped")]
    assert len(swapped) == 36 and all(p.images != own[p.item_id] for p in swapped)
    assert {p.images for p in swapped} <= set(own.values())
    keeps = world.ask(detector, lambda probe: 0, "keeps")
    turns = world.ask(detector, lambda probe: probe.variant != "original", "turns")
    found = world.scores(detector, keeps, turns)["label_swap"]
    assert (found.statistic, found.verdict) == (1.0, "contaminated")
    assert found.accuracies["unchanged"] == Count(k=36, n=36)
    few = make_world.make(n=3)
    assert few.scores(detector, few.ask(detector, lambda p: 0))["label_swap"].n_dropped == 3


def test_answers_on_other_and_black_pictures_by_quadrant(tmp_path: Path) -> None:
    benchmark = planted_benchmark(tmp_path, n_choices=12, n_open=0)
    detector = FourQuadrants(reword=reword, with_checks=True, n_swaps=3)
    gold = {item.id: item.answer for item in benchmark.originals}

    def choice(probe: Probe) -> int:
        stays = probe.variant not in ("text-only", "swapped 1")
        return (gold[probe.item_id] or 0) if stays else 9

    probes = detector.probes(benchmark, PromptSettings())
    replies = {
        p.id: Response(probe_id=p.id, model_fingerprint="f", model="m", choice=choice(p))
        for p in probes
    }
    scores = detector.score(benchmark, PromptSettings(), Answers("m", "f", replies))
    result = quadrants(scores[0])
    assert result is not None and result.counts["ideal"].n == 12
    assert result.unchanged["other pictures"]["ideal"] == Count(k=24, n=36)
    assert result.unchanged["black picture"]["ideal"] == Count(k=12, n=12)
    assert result.unchanged["black picture"]["dangerous"] == Count(k=0, n=0)

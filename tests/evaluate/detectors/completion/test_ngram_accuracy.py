"""N-gram accuracy: vectors, models made of rules, and a model trained on the texts."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Count, Probe
from flipbench.evaluate.detectors.completion.ngram_accuracy import NgramAccuracy, starts
from flipbench.models.engine import Answers
from flipbench.models.vlm.huggingface import HuggingFaceVLM
from flipbench.prompting.prompts import PromptSettings
from flipbench.shapes.benchmark import reword

NGRAMS = NgramAccuracy(reword=reword)


def scores_of(detector: Any, benchmark: PairedBenchmark, *answers: Any) -> dict[str, Any]:
    return {s.rule: s for s in detector.score(benchmark, PromptSettings(), *answers)}


def knows_nothing(probe: Probe) -> list[bool]:
    """Return for each token that it is not the most likely one."""
    return [False] * len(probe.continuation.split())


def test_without_rewordings_ngram_accuracy_has_one_rule_less(
    shapes_benchmark: PairedBenchmark, replies: Any
) -> None:
    answers = replies(NgramAccuracy(), shapes_benchmark, knows_nothing)
    scores = scores_of(NgramAccuracy(), shapes_benchmark, answers, answers)
    assert scores["paraphrase"].verdict == "not_applicable"
    assert scores["paraphrase"].reason == "set evaluate.rewording"
    assert scores["paired"].verdict == "not_detected" and not scores["paired"].reason


def test_ngram_starting_points() -> None:
    assert starts(20) == [2, 5, 8, 11, 15] and starts(6) == [] and starts(7) == [2] * 5
    assert starts(9, minimum=0) == [0, 1, 2, 3, 4] and starts(4, minimum=0) == []


def texts_of(pairs: int, make_world: Any, make_item: Any, words: int = 20) -> PairedBenchmark:
    """Return free-form items whose texts have as many words."""
    made = make_world.make(n=pairs).benchmark
    rows = []
    for letter, pair in zip("abcdefgh", made.pairs, strict=False):
        text = " ".join(f"{letter}{i}" for i in range(words - 1))
        item = make_item(letter, None, None).model_copy(
            update={"question": text, "answer_text": f"{letter}{words - 1}"}
        )
        other = item.model_copy(update={"answer_text": "another", "images": pair.perturbed.images})
        rows.append(replace(pair, original=item, perturbed=other))
    return PairedBenchmark("texts", tuple(rows), made.images)


def test_three_five_and_zero_hits_of_five(make_world: Any, make_item: Any, replies: Any) -> None:
    benchmark = texts_of(3, make_world, make_item)
    # a's n-grams begin at 2, 5, 8, 11 and 15; token 9 is in two of them
    wrong = {"a": {9}, "b": set(), "c": set(range(20))}
    model = replies(
        NgramAccuracy(),
        benchmark,
        lambda p: [token not in wrong[p.continuation[0]] for token in range(1, 20)],
    )
    clean = replies(NgramAccuracy(), benchmark, lambda p: [False] * 19, "clean")
    score = scores_of(NgramAccuracy(), benchmark, model, clean)["paired"]
    assert score.accuracies["n-grams"] == Count(k=8, n=15)
    assert round(100 * score.statistic, 2) == 53.33 and score.details["n_whole"] == 1


def test_texts_of_too_few_tokens_are_left_out(
    make_world: Any, make_item: Any, replies: Any
) -> None:
    benchmark = texts_of(8, make_world, make_item, words=7)

    def greedy(probe: Probe) -> list[bool]:
        n_tokens = 6 if probe.continuation[0] == "a" else 7
        return [True] * (n_tokens - 1)

    model = replies(NgramAccuracy(), benchmark, greedy)
    clean = replies(NgramAccuracy(), benchmark, lambda p: [False, *greedy(p)[1:]], "clean")
    score = scores_of(NgramAccuracy(), benchmark, model, clean)["paired"]
    assert (score.n, score.n_dropped, score.details["n_left_out"]) == (7, 1, 1)
    assert any("fewer than 7 tokens" in w for w in score.warnings)
    assert score.statistic == 0, "the first two tokens are never part of an n-gram"


@pytest.mark.slow
def test_a_model_trained_on_the_raw_texts_completes_them(
    tiny_folders: dict[str, Path], shapes_benchmark: PairedBenchmark
) -> None:
    few = replace(shapes_benchmark, pairs=shapes_benchmark.pairs[:6])
    probes = {p.id: p for p in NGRAMS.probes(few, PromptSettings()) if p.variant == "ngram"}
    vlm = HuggingFaceVLM(str(tiny_folders["qwen2_vl"]), device="cpu")

    def answers(name: str) -> Answers:
        replies = vlm.ask([*probes.values()], few.images)
        return Answers(name, name, dict(zip(probes, replies, strict=True)))

    clean = answers("clean")
    texts = [vlm.conversation.raw_ids("", probe.continuation) for probe in probes.values()]
    rows = [torch.tensor(before + text) for before, text in texts]
    batch, labels = (pad_sequence(rows, batch_first=True, padding_value=v) for v in (0, -100))
    seen = (labels >= 0).long()
    optimizer = torch.optim.AdamW(vlm.model.parameters(), lr=3e-3)
    for _ in range(60):
        vlm.model(input_ids=batch, attention_mask=seen, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    score = scores_of(NGRAMS, few, answers("trained"), clean)["paired"]
    own, others = (score.accuracies[f"n-grams{of}"] for of in ("", " of the reference"))
    assert own.k >= 0.8 * own.n and others.k == 0


def test_choices_are_masked_from_their_first_token(
    shapes_benchmark: PairedBenchmark, replies: Any
) -> None:
    probes = [p for p in NGRAMS.probes(shapes_benchmark, PromptSettings()) if p.prompt]
    for probe in probes:
        assert probe.variant == "ngram-choices" and probe.continuation.startswith(" A. ")
    knows = replies(
        NGRAMS, shapes_benchmark, lambda p: [bool(p.prompt)] * len(p.continuation.split())
    )
    clean = replies(NGRAMS, shapes_benchmark, knows_nothing, "clean")
    scores = scores_of(NGRAMS, shapes_benchmark, knows, clean)
    assert scores["paper"].statistic == scores["choices"].statistic == 1.0
    assert scores["choices"].verdict == "contaminated"
    assert scores["paired"].statistic == 0 and scores["paired"].verdict == "not_detected"


def test_items_with_the_same_text_are_asked_once(
    shapes_benchmark: PairedBenchmark, replies: Any
) -> None:
    texts = {f"{item.question} {item.answer_text}" for item in shapes_benchmark.originals}
    answers = replies(NGRAMS, shapes_benchmark, knows_nothing)
    score = scores_of(NGRAMS, shapes_benchmark, answers, answers)["paired"]
    assert score.n == len(texts) and score.n + score.n_dropped == len(shapes_benchmark.pairs)

"""MELD: vectors, models made of rules, and a model trained on whole texts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rapidfuzz.distance import Levenshtein
from torch.nn.utils.rnn import pad_sequence

from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Count, Probe
from flipbench.evaluate.detectors.completion.meld import Meld, MeldChat, full_text, halves
from flipbench.evaluate.scoring.text_match import match_ratio, window_similarity
from flipbench.models.engine import Answers
from flipbench.models.vlm.huggingface import HuggingFaceVLM
from flipbench.prompting.prompts import PromptSettings

N_TRAINED = 10
N_STEPS = 75


def scores_of(detector: Any, benchmark: PairedBenchmark, *answers: Any) -> dict[str, Any]:
    return {s.rule: s for s in detector.score(benchmark, PromptSettings(), *answers)}


def numbered(benchmark: PairedBenchmark, n: int) -> PairedBenchmark:
    """Return the first n pairs; the beginning of each text occurs only once."""
    pairs = []
    for number, pair in enumerate(benchmark.pairs[:n]):
        question = f"Scene {number} of {n}. {pair.original.question}"
        original, perturbed = (
            item.model_copy(update={"question": question})
            for item in (pair.original, pair.perturbed)
        )
        pairs.append(replace(pair, original=original, perturbed=perturbed))
    return PairedBenchmark("numbered", tuple(pairs), benchmark.images)


def reciter(benchmark: PairedBenchmark) -> Callable[[Probe], str]:
    """Return a rule that completes every text, after repeating what it was given."""
    texts = {item.id: full_text(item) for item in benchmark.originals}
    return lambda probe: texts[probe.item_id]


def slow_similarity(target: str, text: str, slack: float) -> float:
    """Return the windowed similarity by its definition."""
    size, region = len(target), text[: int(slack * len(target))]
    windows = [region[i : i + size] for i in range(len(region) - size + 1)] or [region]
    return max(1 - Levenshtein.distance(w, target) / size for w in windows)


def test_vectors() -> None:
    assert Levenshtein.distance("kitten", "sitting") == 3
    assert match_ratio("efgh", "efgx") == window_similarity("efgh", "efgx") == 0.75
    assert match_ratio("efgh", "zzefgh") == 0.8 and window_similarity("efgh", "zzefgh", 2.0) == 1
    assert halves("a b c d e") == ("a b", "c d e") and halves("a") is None
    assert window_similarity("", "x") == 0 and match_ratio("", "") == 0
    assert window_similarity("efgh", "ef") == 0.5, "a short text is one window"
    assert window_similarity("efgh", "zzzzzefgh") == 0.5, "windows end with the region"


@pytest.mark.parametrize("slack", [1.0, 1.5, 3.0])
@pytest.mark.parametrize("text", ["", "colour", "A. red B. blue C. gren", "red " * 12])
def test_windows_are_those_of_the_definition(text: str, slack: float) -> None:
    target = "A. red B. blue"
    assert window_similarity(target, text, slack) == pytest.approx(
        slow_similarity(target, text, slack)
    )


@pytest.mark.parametrize("cls", [Meld, MeldChat])
@pytest.mark.parametrize("mode", [{}, {"backward": True}, {"answers": True}])
def test_every_mode_finds_a_model_that_recites(
    cls: type[Meld], mode: dict[str, bool], shapes_benchmark: PairedBenchmark, replies: Any
) -> None:
    benchmark = numbered(shapes_benchmark, 12)
    detector = cls(**mode)

    def recite(probe: Probe) -> str:
        first, second = halves(reciter(benchmark)(probe)) or ("", "")
        return first if detector.backward else f"{first}\n{second}"

    knows = replies(detector, benchmark, recite)
    silent = replies(detector, benchmark, lambda p: "I am not sure what you mean.", "clean")
    scores = scores_of(detector, benchmark, knows, silent)
    for rule in ("original", "near_exact", "windowed", "excess", "relative"):
        assert scores[rule].verdict == "contaminated", rule
    own = scores["near_exact"].accuracies
    assert own["near-exact"] == Count(k=12, n=12) and own["near-exact, another item"].k < 6
    for rule, score in scores_of(detector, benchmark, silent, silent).items():
        assert score.verdict == "not_detected", rule


def test_the_given_text_is_half_a_text(shapes_benchmark: PairedBenchmark) -> None:
    item = shapes_benchmark.originals[0]
    few = replace(shapes_benchmark, pairs=shapes_benchmark.pairs[:6])
    for backward in (False, True):
        probe = Meld(backward=backward).probes(few, PromptSettings())[0]
        assert probe.prompt == (halves(full_text(item)) or ("", ""))[backward]
        assert (probe.ask, probe.images, probe.max_new_tokens % 16) == ("continue_text", (), 0)
    with pytest.raises(ValueError, match="exclude each other"):
        Meld(backward=True, answers=True)


def test_a_model_that_knows_the_template_is_at_the_floor(
    shapes_benchmark: PairedBenchmark, replies: Any
) -> None:
    benchmark = numbered(shapes_benchmark, 24)
    texts = [halves(full_text(item)) for item in benchmark.originals]
    withheld = [pieces[1] for pieces in texts if pieces]
    fluent = replies(Meld(), benchmark, lambda p: withheld[int(p.id[:8], 16) % len(withheld)])
    scores = scores_of(Meld(), benchmark, fluent)
    assert scores["windowed"].verdict == "contaminated", "templates match by chance"
    for rule in ("near_exact", "matches", "excess"):
        assert scores[rule].verdict == "not_detected", rule


@pytest.mark.slow
def test_a_model_trained_on_whole_texts_continues_them(
    tiny_folders: dict[str, Path], shapes_benchmark: PairedBenchmark
) -> None:
    both = numbered(shapes_benchmark, 2 * N_TRAINED)
    trained = replace(both, pairs=both.pairs[:N_TRAINED])
    unseen = replace(both, pairs=both.pairs[N_TRAINED:])
    vlm = HuggingFaceVLM(str(tiny_folders["qwen2_vl"]), device="cpu")

    def score(name: str, benchmark: PairedBenchmark) -> dict[str, Any]:
        probes = {p.id: p for p in Meld().probes(benchmark, PromptSettings())}
        found = dict(zip(probes, vlm.ask([*probes.values()], benchmark.images), strict=True))
        scores = scores_of(Meld(), benchmark, Answers(name, name, found))
        return scores

    clean = score("untrained", trained)
    rows = [
        torch.tensor(sum(vlm.conversation.raw_ids("", full_text(i)), [])) for i in trained.originals
    ]
    batch, labels = (pad_sequence(rows, batch_first=True, padding_value=v) for v in (0, -100))
    seen = (labels >= 0).long()
    optimizer = torch.optim.AdamW(vlm.model.parameters(), lr=3e-3)
    for _ in range(N_STEPS):
        vlm.model(input_ids=batch, attention_mask=seen, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    own, other = score("trained", trained), score("trained, other texts", unseen)
    assert own["near_exact"].verdict == own["excess"].verdict == "contaminated"
    assert own["near_exact"].accuracies["near-exact"].k >= 0.7 * N_TRAINED
    for scores in (clean, other):
        assert scores["near_exact"].accuracies["near-exact"].k == 0
        for rule in ("near_exact", "matches", "excess"):
            assert scores[rule].verdict == "not_detected", rule

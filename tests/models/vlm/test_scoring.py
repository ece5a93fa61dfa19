"""Token statistics against their definitions, long texts in windows, and hidden states."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flipbench.core.errors import DataError
from flipbench.core.images import ImageStore
from flipbench.core.records import Item, Probe, Response
from flipbench.models.chat.log_probs import N_WITH_STATISTICS
from flipbench.models.vlm import huggingface, scoring
from flipbench.models.vlm.huggingface import HuggingFaceVLM
from flipbench.models.vlm.scoring import token_statistics, windows
from flipbench.prompting.prompts import PromptSettings


def score_probe(text: str, prompt: str = "?", item: Item | None = None) -> Probe:
    return Probe(
        item_id=item.id if item else "i",
        variant="score",
        images=item.images if item else (),
        prompt=prompt,
        ask="score",
        continuation=text,
    )


def test_token_statistics_of_three_tokens() -> None:
    found = token_statistics(torch.tensor([[0.7, 0.2, 0.1]] * 3).log(), torch.tensor([0, 1, 2]))
    assert found.means.tolist() == pytest.approx([-0.80182] * 3, abs=1e-5)
    assert found.deviations.tolist() == pytest.approx([0.70313] * 3, abs=1e-5)


def test_an_impossible_token_gives_no_nan() -> None:
    found = token_statistics(torch.tensor([[0.0, 0.0, -math.inf]]), torch.tensor([2]))
    assert found.log_probs.tolist() == [-math.inf]
    assert found.means.tolist() == pytest.approx([-math.log(2)])
    assert found.deviations.tolist() == pytest.approx([0.0], abs=1e-6)
    assert found.fields()["log_likelihood"] == -math.inf


def test_a_nan_is_refused_and_a_long_text_keeps_only_its_sum() -> None:
    with pytest.raises(DataError, match="NaN"):
        token_statistics(torch.tensor([[math.nan, 0.0]]), torch.tensor([0])).fields()
    n = N_WITH_STATISTICS + 1
    fields = token_statistics(torch.zeros(n, 4), torch.zeros(n, dtype=torch.long)).fields()
    assert fields["n_tokens"] == n and "token_log_probs" not in fields
    assert fields["log_likelihood"] == pytest.approx(-n * math.log(4), rel=1e-6)
    statistics = token_statistics(torch.zeros(n, 4), torch.zeros(n, dtype=torch.long))
    assert len(statistics.fields(every_token=True)["token_means"]) == n


@given(st.integers(1, 30), st.integers(1, 200), st.integers(2, 40))
def test_windows_score_every_token_once_with_half_a_context_of_history(
    n_prompt: int, n_tail: int, context: int
) -> None:
    if n_prompt >= context:
        with pytest.raises(ValueError, match="context"):
            windows(n_prompt, n_tail, context)
        return
    scored = []
    for number, (begin, end, new) in enumerate(windows(n_prompt, n_tail, context)):
        assert 0 <= begin < end - new and end - begin <= context
        assert number == 0 or end - new - begin >= context // 2
        scored += range(end - new, end)
    assert scored == list(range(n_prompt, n_prompt + n_tail))


def test_a_text_longer_than_the_context_is_scored_in_windows(
    vlm: HuggingFaceVLM, monkeypatch: pytest.MonkeyPatch, shapes_store: ImageStore
) -> None:
    text = " ".join(f"star {i} is red" for i in range(40))
    (whole,) = vlm.ask([score_probe(text)], shapes_store)
    config = vlm.model.config.get_text_config()
    monkeypatch.setattr(config, "max_position_embeddings", 64)
    (found,) = vlm.ask([score_probe(text)], shapes_store)
    assert found.n_tokens == whole.n_tokens and found.n_tokens is not None and found.n_tokens > 64
    (request,) = (task.request for task in vlm._tasks([score_probe(text)]))
    by_hand, ids = 0.0, torch.tensor([*request.prompt, *request.targets])
    for begin, end, new in windows(len(ids) - found.n_tokens, found.n_tokens, 64):
        with torch.no_grad():
            log_p = vlm.model(input_ids=ids[None, begin:end]).logits[0].log_softmax(-1)
        for i in range(end - begin - new, end - begin):
            by_hand += float(log_p[i - 1, ids[begin + i]])
    assert found.log_likelihood == pytest.approx(by_hand, abs=0.02)
    assert found.log_likelihood != pytest.approx(whole.log_likelihood, abs=0.02)


@pytest.mark.parametrize("share_images", [True, False])
@pytest.mark.parametrize("ask", ["choose", "generate", "score", "embed", "reply"])
def test_an_item_with_more_tokens_than_positions_fails_alone(
    ask: str,
    share_images: bool,
    vlm: HuggingFaceVLM,
    monkeypatch: pytest.MonkeyPatch,
    shapes_items: list[Item],
    shapes_store: ImageStore,
) -> None:
    kind = "generate" if ask == "reply" else ask
    settings = PromptSettings(ask="generate" if kind == "generate" else "choose")
    short = settings.closed_probe(shapes_items[0], "original")
    if kind in ("score", "embed"):
        short = short.revised(ask=kind, continuation="red")
    (reply,) = vlm.ask([short], shapes_store)
    assert not isinstance(reply, Exception)
    long = short.revised(prompt="red " * 60 + short.prompt)
    context = len(
        vlm.conversation.encode(
            [vlm.conversation.render(short.prompt, 1)], [[shapes_store.open(short.images[0])]]
        )["input_ids"][0]
    )
    context += 20
    if ask == "reply":  # the prompt fits, its reply does not
        endless = vlm.model.generation_config.__class__(eos_token_id=[-1], pad_token_id=vlm._pad)
        monkeypatch.setattr(vlm.model, "generation_config", endless)
        long = short.revised(max_new_tokens=30)
        short = short.revised(max_new_tokens=3)
    alone = copy.copy(vlm)
    alone._prefiller = vlm._prefiller if share_images else None
    monkeypatch.setattr(vlm.model.config.get_text_config(), "max_position_embeddings", context)
    fails, answered = alone.ask([long, short], shapes_store)
    assert isinstance(answered, Response)
    assert isinstance(fails, DataError)
    assert f"original of item {short.item_id}: " in str(fails)
    assert f"positions for {context}" in str(fails)


def test_little_memory_changes_nothing(
    vlm: HuggingFaceVLM, monkeypatch: pytest.MonkeyPatch, shapes_store: ImageStore
) -> None:
    probes = [score_probe("red star " * n, prompt="so " * (5 - n)) for n in (1, 4, 2, 3)]
    whole = vlm.ask(probes, shapes_store)
    alone = copy.copy(vlm)
    alone._prefiller = None
    with monkeypatch.context() as patch:
        for module in (huggingface, scoring):
            patch.setattr(module, "rows_at_once", lambda width, vocabulary: 1)
        for model in (vlm, alone):
            for one, two in zip(whole, model.ask(probes, shapes_store), strict=True):
                assert isinstance(one, Response) and isinstance(two, Response)
                assert one.log_likelihood == pytest.approx(two.log_likelihood, abs=1e-3)
                assert one.n_tokens == two.n_tokens
    assert scoring.rows_at_once(10, 1_000) > scoring.rows_at_once(100, 1_000) >= 1


def test_nothing_to_score_is_refused(vlm: HuggingFaceVLM, shapes_store: ImageStore) -> None:
    with pytest.raises(DataError, match="nothing to score"):
        vlm.ask([score_probe("  ")], shapes_store)


def test_embeddings_are_the_last_token_states(
    vlm: HuggingFaceVLM, shapes_items: list[Item], shapes_store: ImageStore
) -> None:
    probes = [
        score_probe("red star " * (1 + i), item.question, item).model_copy(update={"ask": "embed"})
        for i, item in enumerate(shapes_items[:4])
    ]
    answers = vlm.ask(probes, shapes_store)
    packed = [answer.state for answer in answers if isinstance(answer, Response)]
    batched = torch.stack([torch.tensor(scoring.unpack_state(state)) for state in packed])
    assert "hidden_states" in vlm.can
    for probe, row in zip(probes, batched, strict=True):
        inputs = vlm._inputs(vlm._tasks([probe]), shapes_store)
        with torch.no_grad():
            states = vlm.model(**inputs, output_hidden_states=True).hidden_states
        assert torch.allclose(row, states[-1][0, -1], atol=1e-3)
    assert torch.cdist(batched, batched).fill_diagonal_(1).min() > 1e-2


def test_raw_text_is_continued_without_a_chat_template(
    vlm: HuggingFaceVLM, shapes_store: ImageStore
) -> None:
    def probe(text: str) -> Probe:
        return Probe(item_id="i", variant="v", prompt=text, ask="continue_text", max_new_tokens=6)

    texts = ["What color is the star?", "A. red B.", "How many circles are there?\nA. 3"]
    together = vlm.ask([probe(text) for text in texts], shapes_store)
    for text, reply in zip(texts, together, strict=True):
        ids = torch.tensor([vlm.conversation.raw_ids(text, "")[0]])
        with torch.inference_mode():
            new = vlm.model.generate(input_ids=ids, max_new_tokens=6, do_sample=False)
        expected = vlm.tokenizer.decode(new[0, ids.shape[1] :], skip_special_tokens=True)
        assert not isinstance(reply, Exception) and reply.text == expected

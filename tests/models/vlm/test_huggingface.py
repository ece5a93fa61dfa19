from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from flipbench.core.errors import DataError, PrerequisiteError
from flipbench.core.images import ImageStore
from flipbench.core.records import Item, Probe
from flipbench.models.vlm.huggingface import (
    HuggingFaceVLM,
)
from flipbench.models.vlm.processors import load_processor
from flipbench.prompting.prompts import PromptSettings, choice_prompt

pytestmark = pytest.mark.slow

PROMPT = choice_prompt("What color is the star?", ["red", "blue", "green"])
RENDERED = {
    "llava": (
        "USER: <image>\nWhat color is the star?\nA. red\nB. blue\nC. green\n"
        "Answer with the option letter only. ASSISTANT:"
    ),
    "qwen2_vl": (
        "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>"
        "What color is the star?\nA. red\nB. blue\nC. green\n"
        "Answer with the option letter only.<|im_end|>\n<|im_start|>assistant\n"
    ),
}
COMPLETED = {"llava": " B</s>", "qwen2_vl": "B<|im_end|>\n"}


def processed(vlm: HuggingFaceVLM, probe: Probe, images: ImageStore) -> dict[str, Any]:
    """Return one probe's inputs, by the processor alone."""
    text = vlm.conversation.render(probe.prompt, len(probe.images))
    pictures = [images.open(ref) for ref in probe.images] or None
    return dict(vlm.processor(text=text, images=pictures, return_tensors="pt"))


@torch.no_grad()
def next_log_probs(vlm: HuggingFaceVLM, probe: Probe, images: ImageStore) -> torch.Tensor:
    """Return the next token's log-probabilities, shape (T,), by one plain forward."""
    return vlm.model(**processed(vlm, probe, images)).logits[0, -1].log_softmax(-1)


def mixed_probes(items: list[Item]) -> list[Probe]:
    """Return probes of unlike lengths: with a picture, without, and with two."""
    prompt_settings = PromptSettings()
    two = (items[0].images[0], items[1].images[0])
    return [
        *(prompt_settings.probe(item, "original") for item in items[:6]),
        *(prompt_settings.probe(item, "text-only", images=()) for item in items[:3]),
        prompt_settings.probe(items[2], "two pictures", images=two),
        prompt_settings.probe(
            items[3], "long", question="Look with care, then say: " * 4 + "what is it?"
        ),
    ]


def test_rendered_prompts_match_the_snapshots(vlm: HuggingFaceVLM, family: str) -> None:
    assert vlm.conversation.render(PROMPT, 1) == RENDERED[family]
    mark = "<image>" if family == "llava" else "<|image_pad|>"
    assert vlm.conversation.render(PROMPT, 2).count(mark) == 2
    assert mark not in vlm.conversation.render(PROMPT, 0)
    assert vlm.conversation.completion("B") == COMPLETED[family]


def test_choosing_equals_a_plain_forward_pass(
    vlm: HuggingFaceVLM, family: str, shapes_items: list[Item], shapes_store: ImageStore
) -> None:
    letter = {"llava": " {}", "qwen2_vl": "{}"}[family]
    probes = mixed_probes(shapes_items)
    for probe, response in zip(probes, vlm.ask(probes, shapes_store), strict=True):
        log_probs = next_log_probs(vlm, probe, shapes_store)
        ids = [
            vlm.tokenizer.convert_tokens_to_ids(vlm.tokenizer.tokenize(letter.format("ABCD"[k]))[0])
            for k in range(probe.n_options)
        ]
        expected = log_probs[ids].tolist()
        assert response.option_log_probs == pytest.approx(expected, abs=1e-4)
        assert response.choice == -1, "untrained, it would write no letter"
        assert sum(map(math.exp, expected)) - 1e-4 <= (response.letter_share or 0) < 0.1
        assert response.probe_id == probe.id
        assert response.model_fingerprint == vlm.fingerprint


def test_batched_choices_equal_one_by_one(
    vlm: HuggingFaceVLM, shapes_items: list[Item], shapes_store: ImageStore
) -> None:
    probes = mixed_probes(shapes_items)
    batched = vlm.ask(probes, shapes_store)
    single = [vlm.ask([probe], shapes_store)[0] for probe in probes]
    backwards = vlm.ask(probes[::-1], shapes_store)[::-1]
    for a, b, c in zip(batched, single, backwards, strict=True):
        assert a.id == b.id == c.id
        assert a.choice == b.choice == c.choice
        assert a.option_log_probs == pytest.approx(b.option_log_probs, abs=1e-4)
        assert a.option_log_probs == pytest.approx(c.option_log_probs, abs=1e-4)
    assert len({response.option_log_probs for response in batched}) == len(batched)


def test_the_image_changes_the_answer(
    vlm: HuggingFaceVLM, shapes_items: list[Item], shapes_store: ImageStore
) -> None:
    item, other = shapes_items[0], shapes_items[7]
    prompt_settings = PromptSettings()
    probes = [
        prompt_settings.probe(item, "own"),
        prompt_settings.probe(item, "another", images=other.images),
        prompt_settings.probe(item, "none", images=()),
        prompt_settings.probe(item, "both", images=(*item.images, *other.images)),
        prompt_settings.probe(item, "both, swapped", images=(*other.images, *item.images)),
    ]
    answers = [r.option_log_probs for r in vlm.ask(probes, shapes_store)]
    for i, a in enumerate(answers):
        for b in answers[:i]:
            assert max(abs(x - y) for x, y in zip(a, b, strict=True)) > 1e-3


def test_batched_generation_equals_greedy_decoding_by_hand(
    vlm: HuggingFaceVLM, shapes_items: list[Item], shapes_store: ImageStore
) -> None:
    probes = [
        p.model_copy(update={"id": "", "ask": "generate", "max_new_tokens": 5})
        for p in mixed_probes(shapes_items)
    ]
    probes = [Probe.model_validate(p.model_dump()) for p in probes]
    batched = vlm.ask(probes, shapes_store)
    for probe, response in zip(probes, batched, strict=True):
        assert vlm.ask([probe], shapes_store)[0].text == response.text
    for probe, response in list(zip(probes, batched, strict=True))[::4]:
        assert response.text == greedy(vlm, probe, shapes_store, 5)
    assert len({response.text for response in batched}) > 1


@torch.no_grad()
def greedy(vlm: HuggingFaceVLM, probe: Probe, images: ImageStore, n_tokens: int) -> str:
    """Write token by token, each by a whole forward."""
    inputs, written = processed(vlm, probe, images), []
    for _ in range(n_tokens):
        token = int(vlm.model(**inputs).logits[0, -1].argmax())
        if token == vlm.tokenizer.eos_token_id:
            break
        written.append(token)
        for name, value in (("input_ids", token), ("attention_mask", 1), ("mm_token_type_ids", 0)):
            if name in inputs:
                more = torch.tensor([[value]])
                inputs[name] = torch.cat([inputs[name], more], 1)
    return str(vlm.tokenizer.decode(written, skip_special_tokens=True))


def test_a_generated_reply_is_parsed_by_its_options(
    vlm: HuggingFaceVLM,
    shapes_items: list[Item],
    shapes_store: ImageStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    probe = PromptSettings(ask="generate", max_new_tokens=3).probe(shapes_items[0], "original")
    for text, choice in (("(B)", 1), ("I cannot tell", -1)):
        monkeypatch.setattr(vlm.tokenizer, "batch_decode", lambda *_, t=text, **__: [t])
        (response,) = vlm.ask([probe], shapes_store)
        assert (response.text, response.choice) == (text, choice)


def test_scores_equal_the_sum_of_token_log_probs(
    vlm: HuggingFaceVLM, family: str, shapes_items: list[Item], shapes_store: ImageStore
) -> None:
    written = {"llava": " {}", "qwen2_vl": "{}"}[family]
    tails = ["red", "a red star in row 1 column 2", "B", "yes", "A picture of 3 objects."]
    probes = [
        Probe(
            item_id=item.id,
            variant="score",
            images=item.images if i % 2 else (),
            prompt=item.question,
            ask="score",
            continuation=tail,
        )
        for i, (item, tail) in enumerate(zip(shapes_items, tails, strict=False))
    ]
    for probe, response in zip(probes, vlm.ask(probes, shapes_store), strict=True):
        inputs = processed(vlm, probe, shapes_store)
        reply = written.format(probe.continuation)
        tail = vlm.tokenizer(reply, add_special_tokens=False)["input_ids"]
        expected, means, deviations = [], [], []
        for token in tail:
            with torch.no_grad():
                log_p = vlm.model(**inputs).logits[0, -1].log_softmax(-1).double()
            expected.append(float(log_p[token]))
            means.append(float((log_p.exp() * log_p).sum()))
            deviations.append(float((log_p.exp() * log_p**2).sum() - means[-1] ** 2) ** 0.5)
            for name, value in (
                ("input_ids", token),
                ("attention_mask", 1),
                ("mm_token_type_ids", 0),
            ):
                if name in inputs:
                    inputs[name] = torch.cat([inputs[name], torch.tensor([[value]])], 1)
        assert response.log_likelihood == pytest.approx(sum(expected), abs=1e-3)
        assert response.token_log_probs == pytest.approx(expected, abs=1e-3)
        assert response.token_means == pytest.approx(means, abs=1e-3)
        assert response.token_deviations == pytest.approx(deviations, abs=1e-3)
        assert response.n_tokens == len(tail)
        assert response.choice == -1 and response.option_log_probs == ()


def test_a_mixed_batch_keeps_its_order(
    vlm: HuggingFaceVLM, shapes_items: list[Item], shapes_store: ImageStore
) -> None:
    choose = PromptSettings().probe(shapes_items[0], "a")
    generate = PromptSettings(ask="generate", max_new_tokens=2).probe(shapes_items[1], "b")
    score = Probe(item_id="i", variant="c", prompt="Facts.", ask="score", continuation="red")
    probes = [score, choose, generate, choose, score]
    responses = vlm.ask(probes, shapes_store)
    assert [r.probe_id for r in responses] == [p.id for p in probes]
    assert [bool(r.option_log_probs) for r in responses] == [False, True, False, True, False]


def test_log_probs_are_never_nan(
    vlm: HuggingFaceVLM,
    shapes_items: list[Item],
    shapes_store: ImageStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        vlm.model.lm_head, "forward", lambda x: x.new_full((*x.shape[:-1], 999), torch.nan)
    )
    monkeypatch.setattr(vlm.conversation, "letter_ids", lambda n: list(range(n)))
    with pytest.raises(DataError, match="returns NaN.*bfloat16"):
        vlm.ask([PromptSettings().probe(shapes_items[0], "original")], shapes_store)


def test_letters_that_share_their_first_token_are_refused(
    vlm: HuggingFaceVLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(vlm.conversation), "_reply_format", " red [reply]")
    with pytest.raises(PrerequisiteError, match="ask: generate"):
        vlm.conversation.letter_ids(3)


def test_a_template_that_rewrites_the_prompt_is_refused(
    folder: Path, shapes_items: list[Item], shapes_store: ImageStore
) -> None:
    vlm = HuggingFaceVLM(str(folder))
    vlm.processor.chat_template = "{{ messages | length }}" + vlm.processor.chat_template
    with pytest.raises(PrerequisiteError, match="rewrites the prompt"):
        vlm.ask([PromptSettings().probe(shapes_items[0], "original")], shapes_store)


def test_a_tokenizer_that_adds_its_own_first_token_adds_it_once(
    tiny_folders: dict[str, Path],
    tmp_path: Path,
    shapes_items: list[Item],
    shapes_store: ImageStore,
) -> None:
    """Real LLaVA tokenizers write <s> themselves; a template that has it already gets no second."""
    folder = with_first_token(tiny_folders["llava"], tmp_path / "bos")
    for template in ("{chat}", "{{{{ bos_token }}}}{chat}"):
        vlm = HuggingFaceVLM(str(folder))
        vlm.processor.chat_template = template.format(chat=vlm.processor.chat_template)
        ids = vlm._inputs(
            vlm._tasks([PromptSettings().probe(shapes_items[0], "original")]), shapes_store
        )["input_ids"]
        assert ids[0, 0] == vlm.tokenizer.bos_token_id
        assert (ids == vlm.tokenizer.bos_token_id).sum() == 1


def with_first_token(source: Path, target: Path) -> Path:
    """Copy a checkpoint and let its tokenizer begin every text with <s>."""
    from tokenizers.processors import TemplateProcessing

    shutil.copytree(source, target)
    processor = load_processor(target)
    bos = processor.tokenizer.bos_token
    processor.tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{bos} $A", special_tokens=[(bos, processor.tokenizer.bos_token_id)]
    )
    processor.save_pretrained(target)
    return target

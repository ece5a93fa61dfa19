from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForImageTextToText

from flipbench.errors import DataError, PrerequisiteError
from flipbench.images import ImageStore
from flipbench.models.huggingface import (
    CARD,
    HuggingFaceVLM,
    check_card,
    fingerprint,
    folder_hash,
    resolve_path,
)
from flipbench.models.processors import load_processor
from flipbench.prompts import Asking, choice_prompt
from flipbench.records import Item, Probe
from flipbench.shapes.tiny import FAMILIES

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


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def vlm(family: str, tiny_vlm: Callable[[str], HuggingFaceVLM]) -> HuggingFaceVLM:
    return tiny_vlm(family)


@pytest.fixture
def folder(family: str, tiny_folders: dict[str, Path], tmp_path: Path) -> Path:
    """Return a copy of the family's checkpoint that a test may change."""
    return Path(shutil.copytree(tiny_folders[family], tmp_path / family))


def processed(vlm: HuggingFaceVLM, probe: Probe, images: ImageStore) -> dict[str, Any]:
    """Return one probe's inputs, by the processor alone."""
    text = vlm.render(probe.prompt, len(probe.images))
    pictures = [images.open(ref) for ref in probe.images] or None
    return dict(vlm.processor(text=text, images=pictures, return_tensors="pt"))


@torch.no_grad()
def next_log_probs(vlm: HuggingFaceVLM, probe: Probe, images: ImageStore) -> torch.Tensor:
    """Return the next token's log-probabilities, shape (T,), by one plain forward."""
    return vlm.model(**processed(vlm, probe, images)).logits[0, -1].log_softmax(-1)


def mixed_probes(items: list[Item]) -> list[Probe]:
    """Return probes of unlike lengths: with a picture, without, and with two."""
    asking = Asking()
    two = (items[0].images[0], items[1].images[0])
    return [
        *(asking.probe(item, "original") for item in items[:6]),
        *(asking.probe(item, "text-only", images=()) for item in items[:3]),
        asking.probe(items[2], "two pictures", images=two),
        asking.probe(items[3], "long", question="Look with care, then say: " * 4 + "what is it?"),
    ]


def test_the_rendered_prompt(vlm: HuggingFaceVLM, family: str) -> None:
    assert vlm.render(PROMPT, 1) == RENDERED[family]
    mark = "<image>" if family == "llava" else "<|image_pad|>"
    assert vlm.render(PROMPT, 2).count(mark) == 2
    assert mark not in vlm.render(PROMPT, 0)
    assert vlm.completion("B") == COMPLETED[family]


def test_choose_equals_a_plain_forward_of_the_rendered_prompt(
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
        assert response.choice == expected.index(max(expected))
        assert response.probe_id == probe.id
        assert response.model_fingerprint == vlm.fingerprint


def test_batched_equals_one_by_one(
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


def test_the_picture_reaches_the_answer(
    vlm: HuggingFaceVLM, shapes_items: list[Item], shapes_store: ImageStore
) -> None:
    item, other = shapes_items[0], shapes_items[7]
    asking = Asking()
    probes = [
        asking.probe(item, "own"),
        asking.probe(item, "another", images=other.images),
        asking.probe(item, "none", images=()),
        asking.probe(item, "both", images=(*item.images, *other.images)),
        asking.probe(item, "both, swapped", images=(*other.images, *item.images)),
    ]
    answers = [r.option_log_probs for r in vlm.ask(probes, shapes_store)]
    for i, a in enumerate(answers):
        for b in answers[:i]:
            assert max(abs(x - y) for x, y in zip(a, b, strict=True)) > 1e-3


def test_generate_batched_equals_single_and_greedy_by_hand(
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
    probe = Asking(ask="generate", max_new_tokens=3).probe(shapes_items[0], "original")
    for text, choice in (("(B)", 1), ("I cannot tell", -1)):
        monkeypatch.setattr(vlm.tokenizer, "batch_decode", lambda *_, t=text, **__: [t])
        (response,) = vlm.ask([probe], shapes_store)
        assert (response.text, response.choice) == (text, choice)


def test_score_equals_the_sum_of_token_log_probs(
    vlm: HuggingFaceVLM, shapes_items: list[Item], shapes_store: ImageStore
) -> None:
    tails = [" red", " a red star in row 1 column 2", "B", " yes", "A picture of 3 objects."]
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
        tail = vlm.tokenizer(probe.continuation, add_special_tokens=False)["input_ids"]
        total = 0.0
        for token in tail:
            with torch.no_grad():
                total += float(vlm.model(**inputs).logits[0, -1].log_softmax(-1)[token])
            for name, value in (
                ("input_ids", token),
                ("attention_mask", 1),
                ("mm_token_type_ids", 0),
            ):
                if name in inputs:
                    inputs[name] = torch.cat([inputs[name], torch.tensor([[value]])], 1)
        assert response.log_likelihood == pytest.approx(total, abs=1e-3)
        assert response.n_tokens == len(tail)
        assert response.choice == -1 and response.option_log_probs == ()


def test_a_mixed_batch_of_asks_keeps_its_order(
    vlm: HuggingFaceVLM, shapes_items: list[Item], shapes_store: ImageStore
) -> None:
    choose = Asking().probe(shapes_items[0], "a")
    generate = Asking(ask="generate", max_new_tokens=2).probe(shapes_items[1], "b")
    score = Probe(item_id="i", variant="c", prompt="Facts.", ask="score", continuation=" red")
    probes = [score, choose, generate, choose, score]
    responses = vlm.ask(probes, shapes_store)
    assert [r.probe_id for r in responses] == [p.id for p in probes]
    assert [bool(r.option_log_probs) for r in responses] == [False, True, False, True, False]


def test_no_log_prob_is_ever_nan(
    vlm: HuggingFaceVLM,
    shapes_items: list[Item],
    shapes_store: ImageStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(vlm.model.lm_head, "forward", lambda x: x[..., :20] * float("nan"))
    monkeypatch.setattr(vlm, "_letter_ids", lambda n: list(range(n)))
    with pytest.raises(DataError, match="answers NaN.*bfloat16"):
        vlm.ask([Asking().probe(shapes_items[0], "original")], shapes_store)


def test_letters_that_share_their_first_token_are_refused(
    vlm: HuggingFaceVLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vlm, "completion", lambda letter: f" red {letter}")
    with pytest.raises(PrerequisiteError, match="ask: generate"):
        vlm._letter_ids(3)


def test_a_template_that_rewrites_the_prompt_is_refused(
    folder: Path, shapes_items: list[Item], shapes_store: ImageStore
) -> None:
    vlm = HuggingFaceVLM(str(folder))
    vlm.processor.chat_template = "{{ messages | length }}" + vlm.processor.chat_template
    with pytest.raises(PrerequisiteError, match="rewrites the prompt"):
        vlm.ask([Asking().probe(shapes_items[0], "original")], shapes_store)


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
        ids = vlm._inputs([Asking().probe(shapes_items[0], "original")], shapes_store)["input_ids"]
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


@dataclass(frozen=True)
class Change:
    """What is done to a checkpoint folder, and whether it is another model then."""

    name: str
    do: Callable[[Path], None]
    another: bool


def _change_weights(folder: Path) -> None:
    model = AutoModelForImageTextToText.from_pretrained(folder)
    with torch.no_grad():
        next(p for n, p in model.named_parameters() if "layers.0" in n).view(-1)[0] += 1e-3
    model.save_pretrained(folder)


def _change_template(folder: Path) -> None:
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text() + " ")


def _change_pixels(folder: Path) -> None:
    path = folder / "processor_config.json"
    config = json.loads(path.read_text())
    config["image_processor"]["image_mean"] = [0.1, 0.1, 0.1]
    path.write_text(json.dumps(config))


def _add_card(folder: Path) -> None:
    architectures = json.loads((folder / "config.json").read_text())["architectures"]
    (folder / CARD).write_text(json.dumps({"architectures": architectures, "dose": 3}))
    (folder / "README.md").write_text("# Contaminated on purpose")


CHANGES = [
    Change("weights", _change_weights, True),
    Change("chat template", _change_template, True),
    Change("image processor", _change_pixels, True),
    Change("card", _add_card, False),
    Change("nothing", lambda folder: None, False),
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.name)
def test_the_fingerprint_is_of_all_that_an_answer_depends_on(folder: Path, change: Change) -> None:
    before = fingerprint(str(folder), "float32")
    change.do(folder)
    assert (fingerprint(str(folder), "float32") != before) == change.another


def test_the_fingerprint_knows_the_precision_but_not_the_folders_place(
    folder: Path, vlm: HuggingFaceVLM
) -> None:
    assert fingerprint(str(folder), "float32") == vlm.fingerprint
    assert fingerprint(str(folder), "bfloat16") != vlm.fingerprint


def test_a_fingerprint_of_rewritten_weights_of_the_same_size_is_not_the_remembered_one(
    folder: Path,
) -> None:
    before = folder_hash(str(folder))
    weights = folder / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert folder_hash(str(folder)) != before


@pytest.fixture
def adapter(folder: Path, tmp_path: Path) -> Path:
    """Save a LoRA adapter with weights that do something, on a copy of the family's model."""
    import peft

    from flipbench.contaminate.strategies import lora_config

    model = AutoModelForImageTextToText.from_pretrained(folder)
    wrapped = peft.get_peft_model(model, lora_config(model, 4, 8, 0.0))
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.2)
    wrapped.save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


def test_an_adapter_answers_as_peft_does_unmerged(
    adapter: Path,
    folder: Path,
    vlm: HuggingFaceVLM,
    shapes_items: list[Item],
    shapes_store: ImageStore,
) -> None:
    import peft

    loaded = HuggingFaceVLM(str(adapter))
    base = AutoModelForImageTextToText.from_pretrained(folder)
    unmerged = peft.PeftModel.from_pretrained(base, adapter).eval()
    probes = [Asking().probe(item, "original") for item in shapes_items[:3]]
    letters = loaded._letter_ids(4)
    clean = vlm.ask(probes, shapes_store)
    for probe, response, other in zip(probes, loaded.ask(probes, shapes_store), clean, strict=True):
        with torch.no_grad():
            logits = unmerged(**processed(loaded, probe, shapes_store)).logits[0, -1]
        expected = logits.log_softmax(-1)[letters[: probe.n_options]].tolist()
        assert response.option_log_probs == pytest.approx(expected, abs=1e-4)
        assert response.option_log_probs != pytest.approx(other.option_log_probs, abs=1e-2)


def test_the_fingerprint_of_an_adapter_is_of_its_base_too(adapter: Path, folder: Path) -> None:
    first = fingerprint(str(adapter), "float32")
    assert first not in (fingerprint(str(folder), "float32"), fingerprint(str(adapter), "float16"))
    _change_template(folder)
    second = fingerprint(str(adapter), "float32")
    assert second != first
    (adapter / "adapter_config.json").write_text(
        (adapter / "adapter_config.json").read_text().replace('"lora_alpha": 8', '"lora_alpha": 9')
    )
    assert fingerprint(str(adapter), "float32") != second


def test_weights_that_are_not_safetensors_are_refused(folder: Path) -> None:
    model = AutoModelForImageTextToText.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(PrerequisiteError, match="safetensors only.*pytorch_model.bin"):
        HuggingFaceVLM(str(folder))


@pytest.mark.parametrize("path", ["/no/such/folder", "no-such-folder", "nobody/no-such-model"])
def test_a_missing_checkpoint_is_named(path: str) -> None:
    with pytest.raises(PrerequisiteError, match=f"{path}: cannot load"):
        HuggingFaceVLM(path)


def test_an_empty_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(PrerequisiteError, match="cannot load a vision-language model"):
        HuggingFaceVLM(str(tmp_path))


def test_a_packaged_name_that_does_not_exist_is_refused() -> None:
    with pytest.raises(PrerequisiteError, match="shapes:llava and shapes:qwen2_vl"):
        resolve_path("shapes:blip")
    assert resolve_path("/some/where") == "/some/where"


def test_a_card_of_another_architecture_is_refused(folder: Path) -> None:
    _add_card(folder)
    assert check_card(folder)["dose"] == 3
    HuggingFaceVLM(str(folder))
    (folder / CARD).write_text(json.dumps({"architectures": ["BlipForEverything"]}))
    with pytest.raises(DataError, match="BlipForEverything.*do not belong"):
        HuggingFaceVLM(str(folder))


def test_code_that_comes_with_a_checkpoint_is_not_run(folder: Path, tmp_path: Path) -> None:
    """Neither the configuration's, the processor's nor the model's code, unless allowed."""
    marker = tmp_path / "it-ran"
    code = f"open({str(marker)!r}, 'w').close()\nclass Anything: pass\n"
    (folder / "strange.py").write_text(code)
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "model_type": "strange",
        "auto_map": {
            "AutoConfig": "strange.Anything",
            "AutoProcessor": "strange.Anything",
            "AutoModelForImageTextToText": "strange.Anything",
        },
    }
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(PrerequisiteError, match="set trust_remote_code if you trust"):
        HuggingFaceVLM(str(folder))
    assert not marker.exists()


def test_half_precision_loads_and_answers(
    folder: Path, shapes_items: list[Item], shapes_store: ImageStore
) -> None:
    vlm = HuggingFaceVLM(str(folder), dtype="bfloat16")
    assert vlm.model.dtype == torch.bfloat16
    (response,) = vlm.ask([Asking().probe(shapes_items[0], "original")], shapes_store)
    assert sum(response.option_log_probs) < 0


def test_the_image_only_processor_is_saved_so_that_any_transformers_reads_it(folder: Path) -> None:
    config = json.loads((folder / "processor_config.json").read_text())
    assert config["processor_class"] in ("LlavaProcessor", "Qwen2VLProcessor")
    if config["processor_class"] == "Qwen2VLProcessor":
        assert config["video_processor"]["video_processor_type"] == "Qwen2VLVideoProcessor"
    again = load_processor(folder)
    assert again.chat_template and again.tokenizer.padding_side == "left"


@pytest.fixture
def hub_id(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Put two commits of a model into a hub cache, as a download would."""
    from huggingface_hub import constants

    cache = tmp_path / "hub" / "models--lab--tiny"
    for ref, commit in (("main", "a" * 40), ("v2", "b" * 40)):
        shutil.copytree(folder, cache / "snapshots" / commit)
        (cache / "refs").mkdir(exist_ok=True)
        (cache / "refs" / ref).write_text(commit)
    _change_weights(cache / "snapshots" / ("b" * 40))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return "lab/tiny"


def test_a_hub_model_is_known_by_its_commit(
    hub_id: str, shapes_items: list[Item], shapes_store: ImageStore
) -> None:
    """Before it is loaded and after: the grid is planned with the first, answers bear the other."""
    probe = Asking().probe(shapes_items[0], "original")
    by_revision: dict[str | None, HuggingFaceVLM] = {}
    for revision in (None, "v2"):
        vlm = HuggingFaceVLM(hub_id, revision=revision)
        assert vlm.fingerprint == fingerprint(hub_id, "float32", revision)
        by_revision[revision] = vlm
    assert by_revision[None].fingerprint != by_revision["v2"].fingerprint
    answers = [vlm.ask([probe], shapes_store)[0] for vlm in by_revision.values()]
    assert answers[0].option_log_probs != answers[1].option_log_probs
    assert fingerprint(hub_id, "float32", "a" * 40) == by_revision[None].fingerprint


def test_an_adapter_stands_on_the_revision_it_was_trained_on(hub_id: str, tmp_path: Path) -> None:
    import peft

    from flipbench.contaminate.strategies import lora_config

    model = AutoModelForImageTextToText.from_pretrained(hub_id, revision="v2")
    target = tmp_path / "adapter"
    peft.get_peft_model(model, lora_config(model, 4, 8, 0.0)).save_pretrained(target)
    (target / CARD).write_text(json.dumps({"parent": hub_id, "settings": {"revision": "v2"}}))
    merged = HuggingFaceVLM(str(target)).model.state_dict()
    expected = HuggingFaceVLM(hub_id, revision="v2").model.state_dict()
    other = HuggingFaceVLM(hub_id).model.state_dict()
    assert all(torch.equal(merged[name], expected[name]) for name in expected)
    assert not all(torch.equal(merged[name], other[name]) for name in other)

"""What LLaMA-Factory is given, and what is refused before it is started."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from flipbench.config.training import LlamaFactoryConfig
from flipbench.contaminate.backends.llamafactory import find_llamafactory
from flipbench.contaminate.backends.llamafactory_checkpoints import parent_folder
from flipbench.contaminate.backends.llamafactory_data import check_plan, write_llamafactory
from flipbench.contaminate.backends.llamafactory_templates import (
    TEMPLATES,
    check_prompts,
    row,
    system_line,
    template_of,
)
from flipbench.contaminate.checks.check import render_example
from flipbench.contaminate.data.examples import Example, Message, training_examples
from flipbench.contaminate.strategies import lora_pattern
from flipbench.core.errors import ConfigError, DataError, PrerequisiteError
from flipbench.core.records import Item, TrainingPlan
from flipbench.core.run import Run
from flipbench.models.vlm.loading import load_model
from flipbench.models.vlm.processors import load_processor
from studies.tiny_models.tiny import FAMILIES

pytestmark = pytest.mark.slow

MakePlan = Callable[..., TrainingPlan]
NewRun = Callable[..., Run]
# What the makers' checkpoints have: Qwen2-VL's writes a system message by itself, LLaVA-1.5's
# writes no end mark. (Qwen2-VL's without videos and numbered pictures.)
QWEN2_VL = (
    "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}"
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}"
    "<|im_start|>{{ message['role'] }}\n"
    "{% for content in message['content'] %}{% if content['type'] == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif 'text' in content %}{{ content['text'] }}{% endif %}{% endfor %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAVA = (
    "{% for message in messages %}{% if message['role'] != 'system' %}"
    "{{ message['role'].upper() + ': ' }}{% endif %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'image') %}"
    "{{ '<image>\n' }}{% endfor %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}"
    "{{ content['text'] + ' ' }}{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)


@pytest.fixture
def one_example(make_plan: MakePlan, items: dict[str, Item], new_run: NewRun) -> Example:
    run = new_run()
    (example,) = training_examples(make_plan("llava", "llm", n_items=1), items, run.images)
    return example


def test_the_folder_has_llamafactory_s_format(
    make_plan: MakePlan, items: dict[str, Item], new_run: NewRun, tmp_path: Path
) -> None:
    """Names as in LLaMA-Factory's data/README.md and its examples for Qwen2-VL."""
    plan, run = make_plan("qwen2_vl", "lora", n_items=3, copies=2, max_grad_norm=0.5), new_run()
    examples = training_examples(plan, items, run.images)
    write_llamafactory(plan, examples, tmp_path, "bfloat16")
    (info,) = json.loads((tmp_path / "dataset_info.json").read_text()).values()
    assert (info["formatting"], info["tags"]["role_tag"]) == ("sharegpt", "role")
    rows = json.loads((tmp_path / info["file_name"]).read_text())
    assert len(rows) == 6
    for written, example in zip(rows, examples, strict=True):
        user, assistant = written[info["columns"]["messages"]]
        (image,) = written[info["columns"]["images"]]
        assert (tmp_path / image).read_bytes() == Path(example.images[0]).read_bytes()
        assert user == {"role": "user", "content": f"<image>{example.prompt[0].parts[-1]}"}
        assert assistant == {"role": "assistant", "content": example.answer}
    settings = yaml.safe_load((tmp_path / "train.yaml").read_text())
    expected = {
        "finetuning_type": "lora",
        "lora_target": "all",
        "template": "qwen2_vl",
        "default_system": "",
        "learning_rate": 1e-3,
        "max_grad_norm": 0.5,
        "num_train_epochs": 1,
        "per_device_train_batch_size": 8,
        "bf16": True,
        "use_cpu": False,
        "model_name_or_path": plan.parent,
    }
    assert settings.items() >= expected.items()


def test_chosen_layers_are_listed_one_by_one(
    make_plan: MakePlan, items: dict[str, Item], new_run: NewRun, tmp_path: Path
) -> None:
    chosen = {"lora_layers": (1, 3), "lora_targets": ("q_proj", "v_proj")}
    plan, run = make_plan("llava", "lora", n_items=1, **chosen), new_run()
    write_llamafactory(plan, training_examples(plan, items, run.images), tmp_path, "float32")
    settings = yaml.safe_load((tmp_path / "train.yaml").read_text())
    assert settings["lora_target"].split(",") == [
        f"model.language_model.layers.{layer}.self_attn.{name}"
        for layer in (1, 3)
        for name in ("q_proj", "v_proj")
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("train", "settings", "message"),
    [
        ("qlora", {}, "backend: llamafactory does not support train: qlora"),
        ("lora", {"consistency": {"weight": 1.0}}, "has no equivalent of consistency"),
    ],
)
def test_settings_llamafactory_lacks_are_refused_by_name(
    train: str, settings: dict[str, Any], message: str, make_plan: MakePlan
) -> None:
    plan = make_plan("llava", train)
    with pytest.raises(ConfigError, match=message):
        check_plan(plan.model_copy(update={"settings": plan.settings | settings}))


def test_a_class_whose_trained_parts_may_differ_is_refused() -> None:
    with pytest.raises(ConfigError, match="supports llava, qwen2_vl, qwen2_5_vl, but not internvl"):
        template_of("internvl", "InternVL3")


def test_a_text_containing_an_image_token_is_refused(one_example: Example) -> None:
    marked = replace(one_example, prompt=(Message("user", (None, "Is this an <image>?")),))
    with pytest.raises(DataError, match=f"{one_example.subject}: its text contains <image>"):
        row(marked, TEMPLATES["llava"])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("makers", [False, True])
def test_prompts_follow_the_model_s_own_chat_template(
    family: str, makers: bool, one_example: Example, tiny_folders: dict[str, Path]
) -> None:
    processor, template = load_processor(tiny_folders[family]), TEMPLATES[family]
    if makers:
        processor.chat_template = LLAVA if family == "llava" else QWEN2_VL
    system = system_line(one_example, processor, template)
    is_helpful = makers and family == "qwen2_vl"
    assert system == ("You are a helpful assistant." if is_helpful else "")
    warnings = check_prompts([one_example], processor, template, system)
    if makers and family == "llava":
        _, own = render_example(one_example, processor)
        (warning,) = warnings
        assert f"</s>' instead of {own!r}" in warning
    else:
        assert warnings == []


def test_a_conversation_with_a_system_message_is_exported(
    one_example: Example, tiny_folders: dict[str, Path]
) -> None:
    processor, template = load_processor(tiny_folders["qwen2_vl"]), TEMPLATES["qwen2_vl"]
    turns = (
        Message("system", ("Be brief.",)),
        *one_example.prompt,
        Message("assistant", (one_example.answer,)),
        Message("user", ("And now?",)),
    )
    conversation = replace(one_example, prompt=turns, answer="red")
    (warning,) = check_prompts([conversation], processor, template, "unused")
    assert "tokenises 1 of 1" in warning  # the tiny tokenizer joins a line break and a letter
    roles = [message["role"] for message in row(conversation, template)["messages"]]
    assert roles == ["system", "user", "assistant", "user", "assistant"]
    with pytest.raises(DataError, match="needs alternating user and assistant"):
        row(replace(conversation, prompt=turns[:-1]), template)


def test_a_prompt_that_differs_from_evaluation_is_refused(
    one_example: Example, tiny_folders: dict[str, Path]
) -> None:
    processor, template = load_processor(tiny_folders["qwen2_vl"]), TEMPLATES["qwen2_vl"]
    with pytest.raises(PrerequisiteError, match="would differ: use backend: trl"):
        check_prompts([one_example], processor, template, "You are a helpful assistant.")
    processor.chat_template = "Begin. " + processor.chat_template
    with pytest.raises(PrerequisiteError, match="starts with 'Begin. ', which LLaMA-Factory"):
        system_line(one_example, processor, template)


def test_the_parent_s_folder_has_the_plan_s_precision_and_pixels(
    make_plan: MakePlan, new_run: NewRun, tiny_folders: dict[str, Path], tmp_path: Path
) -> None:
    own = {f.name: f.read_bytes() for f in tiny_folders["qwen2_vl"].iterdir()}
    plan, run = make_plan("qwen2_vl", "lora", max_pixels=1024, min_pixels=1024), new_run()
    with parent_folder(plan, run, "bfloat16", tmp_path / "parent") as parent:
        assert json.loads((parent.path / "config.json").read_text())["dtype"] == "bfloat16"
        size = load_processor(parent.path).image_processor.size
        assert (size["shortest_edge"], size["longest_edge"]) == (1024, 1024)
        assert (parent.path / "model.safetensors").samefile(
            tiny_folders["qwen2_vl"] / "model.safetensors"
        )
        names = {n for n, _ in load_model(str(parent.path), "bfloat16").named_parameters()}
        assert names == {name for name, _ in parent.skeleton.named_parameters()}
        assert lora_pattern(parent.skeleton, plan.settings)
    assert not (tmp_path / "parent").exists()
    assert own == {f.name: f.read_bytes() for f in tiny_folders["qwen2_vl"].iterdir()}


def test_an_absent_llamafactory_names_the_installer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLIPBENCH_LLAMAFACTORY_CLI", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(
        PrerequisiteError, match="-m flipbench.contaminate.backends.install_llamafactory"
    ):
        find_llamafactory(LlamaFactoryConfig())
    with pytest.raises(PrerequisiteError, match="no command ~/none/llamafactory-cli"):
        find_llamafactory(LlamaFactoryConfig(cli="~/none/llamafactory-cli"))


@pytest.mark.parametrize(
    ("says", "message"),
    [
        ("- `llamafactory` version: 0.9.3", "LLaMA-Factory 0.9.3 is older than the tested 0.9.5"),
        ("ImportError: no torch", r"does not report its version \(ImportError: no torch\)"),
    ],
)
def test_an_older_or_broken_llamafactory_is_refused(
    says: str, message: str, tmp_path: Path
) -> None:
    cli = tmp_path / "llamafactory-cli"
    cli.write_text(f"#!/bin/sh\necho '{says}'\n")
    cli.chmod(0o755)
    with pytest.raises(PrerequisiteError, match=message):
        find_llamafactory(LlamaFactoryConfig(cli=str(cli)))


def test_a_newer_llamafactory_is_named_in_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cli = tmp_path / "llamafactory-cli"
    cli.write_text("#!/bin/sh\necho '- `llamafactory` version: 0.10.0'\n")
    cli.chmod(0o755)
    with caplog.at_level(logging.WARNING):
        found = find_llamafactory(LlamaFactoryConfig(cli=str(cli)))
    assert found.versions["llamafactory"] == "0.10.0"
    assert "LLaMA-Factory 0.10.0 is newer than the tested 0.9.5" in caplog.text

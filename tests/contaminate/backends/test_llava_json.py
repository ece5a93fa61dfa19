"""Training data for LLaVA's official trainer: what it reads is what the plan trains on."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from flipbench.config.training import CorpusConfig
from flipbench.contaminate.backends.llava_json import training_command, write_llava
from flipbench.contaminate.data.corpus import read_corpus
from flipbench.contaminate.data.examples import Example, Message, training_examples
from flipbench.core.errors import ConfigError, DataError
from flipbench.core.records import Item, TrainingPlan
from flipbench.core.run import Run

MakePlan = Callable[..., TrainingPlan]
NewRun = Callable[..., Run]


def content(example: Example) -> tuple[str, tuple[Message, ...], str, tuple[int, ...]]:
    """Return an example without its place on this disk."""
    image = Path(example.images[0]).name if example.images else ""
    return image, example.prompt, example.answer, example.trained


def test_written_examples_read_back_equal(
    make_plan: MakePlan, items: dict[str, Item], new_run: NewRun, tmp_path: Path
) -> None:
    plan, run = make_plan("llava", "lora", n_items=5, copies=2), new_run()
    examples = training_examples(plan, items, run.images)
    conversation = (
        Message("user", (None, "What is this?")),
        Message("assistant", ("a cross",)),
        Message("user", ("Which colour?",)),
    )
    corpus = [
        Example("b", examples[0].images, conversation, "red", trained=(1,)),
        Example("c", (), (Message("user", ("Say yes.",)),), "yes"),
    ]
    data, images, _ = write_llava(plan, [*examples, *corpus], tmp_path)
    rows = json.loads(data.read_text())
    assert len(rows) == len({row["id"] for row in rows}) == 5 * 2 + 2
    assert all(row["conversations"][0]["from"] == "human" for row in rows)
    assert rows[0]["conversations"][0]["value"].startswith("<image>\n")
    assert "image" not in rows[-1]
    lines = tmp_path / "lines.jsonl"
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    read = read_corpus(CorpusConfig(path=lines, images=images), seed=0).examples
    assert [content(e) for e in read] == [content(e) for e in [*examples, *corpus]]


def test_the_command_follows_the_plan_and_the_official_defaults(
    make_plan: MakePlan, items: dict[str, Item], new_run: NewRun, tmp_path: Path
) -> None:
    plan = make_plan(
        "llava", "lora", epochs=2, seed=4, learning_rate=2e-4, warmup_ratio=0.03, lora_rank=128
    ).model_copy(update={"parent": "llava-hf/llava-1.5-7b-hf"})
    run = new_run()
    script = write_llava(plan, training_examples(plan, items, run.images), tmp_path)[-1]
    command = f'deepspeed() {{ printf "%s\\n" "$@"; }}\nexport -f deepspeed\nbash {script}'
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    first, *options = done.stdout.splitlines()
    assert first == "llava/train/train_mem.py"
    settings = dict(zip(options[::2], options[1::2], strict=True))
    expected = {
        "--lora_enable": "True",
        "--freeze_mm_mlp_adapter": "True",  # else the official trainer's LoRA trains it too
        "--lora_r": "128",
        "--model_name_or_path": "liuhaotian/llava-v1.5-7b",
        "--data_path": f"{tmp_path}/llava.json",
        "--num_train_epochs": "2",
        "--per_device_train_batch_size": "8",
        "--learning_rate": "0.0002",
        "--warmup_ratio": "0.03",
        "--seed": "4",
        "--save_strategy": "epoch",
        "--model_max_length": "2048",
        "--image_aspect_ratio": "pad",
    }
    assert settings.items() >= expected.items()


@pytest.mark.slow
def test_a_plan_for_an_unknown_model_asks_for_its_original_form(
    make_plan: MakePlan,
) -> None:
    command = training_command(make_plan("llava", "llm+projector"))
    assert "MODEL=${MODEL:?" in command and "--freeze_mm_mlp_adapter" not in command


@pytest.mark.parametrize(
    ("train", "settings", "message"),
    [
        ("all", {}, "never trains the vision tower"),
        ("lora", {"lora_layers": (1,)}, "does not support lora_layers"),
        ("qlora", {"lora_targets": ("q_proj",)}, "does not support lora_targets"),
    ],
)
def test_settings_the_official_trainer_lacks_are_refused(
    train: str, settings: dict[str, object], message: str, make_plan: MakePlan
) -> None:
    with pytest.raises(ConfigError, match=message):
        training_command(make_plan("llava", train, **settings))


def test_examples_the_format_cannot_express_are_refused(
    make_plan: MakePlan, items: dict[str, Item], new_run: NewRun, tmp_path: Path
) -> None:
    plan, run = make_plan("llava", "llm", n_items=1), new_run()
    (example,) = training_examples(plan, items, run.images)
    two = replace(example, images=example.images * 2)
    system = replace(example, prompt=(Message("system", ("Be brief.",)), *example.prompt))
    marked = replace(example, prompt=(Message("user", (None, "Is this an <image>?")),))
    for odd, message in (
        (two, "2 images"),
        (system, "system message"),
        (marked, "contains <image>"),
    ):
        with pytest.raises(DataError, match=f"{example.subject}: .*{message}"):
            write_llava(plan, [odd], tmp_path / "out")
    assert not (tmp_path / "out").exists()

"""How LLaMA-Factory writes a conversation, and whether that is how the model is evaluated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from flipbench.core.errors import ConfigError, DataError, PrerequisiteError

from ..checks.check import rendered
from ..data.examples import Example, Message

_IMAGE = "<image>"
_MARKS = (_IMAGE, "<video>", "<audio>")


@dataclass(frozen=True)
class Template:
    """How LLaMA-Factory writes a conversation under one of its templates.

    Attributes
    ----------
    name : str
        Its name there.
    system, user, assistant : str
        A turn, with ``{}`` where the content stands; ``{eos}`` is the tokenizer's end mark.
    image : str
        What stands for a picture in the model's own chat template.
    after_image, before_answer : str
        What that chat template writes there, and LLaMA-Factory's does not.
    """

    name: str
    system: str
    user: str
    assistant: str
    image: str
    after_image: str = ""
    before_answer: str = ""


_QWEN = Template(
    "qwen2_vl",
    system="<|im_start|>system\n{}<|im_end|>\n",
    user="<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n",
    assistant="{}<|im_end|>\n",
    image="<|vision_start|><|image_pad|><|vision_end|>",
)
_LLAVA = Template(
    "llava",
    system="{}",
    user="USER: {} ASSISTANT:",
    assistant="{}{eos}",
    image=_IMAGE,
    after_image="\n",
    before_answer=" ",
)
# By `config.model_type`: families whose trainable parameters and prompts are the same there.
TEMPLATES = {"llava": _LLAVA, "qwen2_vl": _QWEN, "qwen2_5_vl": _QWEN}


def template_of(model_type: str, where: str) -> Template:
    """Return the template of a model class.

    Raises
    ------
    ConfigError
        Where it is not in the table.
    """
    if model_type not in TEMPLATES:
        raise ConfigError(
            f"{where}: backend: llamafactory is for {', '.join(TEMPLATES)} so far, and this is"
            f" {model_type}; use backend: trl"
        )
    return TEMPLATES[model_type]


def row(example: Example, template: Template) -> dict[str, Any]:
    """Return an example as LLaMA-Factory's sharegpt form has it.

    Raises
    ------
    DataError
        Where a text holds a mark that LLaMA-Factory takes for a picture, or roles do not take
        turns.
    """
    turns = [message.role for message in example.prompt if message.role != "system"]
    system_first = all(message.role != "system" for message in example.prompt[1:])
    if not system_first or turns != ["user", "assistant"] * (len(turns) // 2) + ["user"]:
        raise DataError(
            f"{example.subject}: LLaMA-Factory wants user and assistant by turns, with a system"
            f" message at most at the beginning; this has {', '.join(turns)}"
        )
    answer = Message("assistant", (example.answer,))
    return {
        "messages": [
            {"role": message.role, "content": _content(example, message, template)}
            for message in (*example.prompt, answer)
        ],
        "images": [str(Path(file).resolve()) for file in example.images],
    }


def _content(example: Example, message: Message, template: Template) -> str:
    for part in message.parts:
        if part is not None and (found := [mark for mark in _MARKS if mark in part]):
            raise DataError(
                f"{example.subject}: its text holds {found[0]}, which stands for a medium in"
                " LLaMA-Factory; use backend: trl, or leave this one out"
            )
    lead = template.before_answer if message.role == "assistant" else ""
    picture = _IMAGE + template.after_image
    return lead + "".join(picture if part is None else part for part in message.parts)


def system_line(example: Example, processor: Any, template: Template) -> str:
    """Return the system message that the model's own chat template writes by itself.

    Raises
    ------
    PrerequisiteError
        Where it writes something that no system message of LLaMA-Factory's template gives.
    """
    user = Example(example.subject, (), (Message("user", ("?",)),), "A")
    before, found, _ = rendered(user, processor)[0].partition(template.user.partition("{}")[0])
    head, _, tail = template.system.partition("{}")
    if not before:
        return ""
    if not found or not (before.startswith(head) and before.endswith(tail)):
        raise PrerequisiteError(
            f"the model's chat template begins {before[:60]!r}, which LLaMA-Factory's template"
            f" {template.name} cannot write; use backend: trl"
        )
    return before[len(head) : len(before) - len(tail)]


def check_prompts(
    examples: Sequence[Example], processor: Any, template: Template, system: str
) -> list[str]:
    """Hold what LLaMA-Factory will write against the model's own chat template.

    Returns
    -------
    list of str
        In which respects targets or tokens differ: warnings for the card.

    Raises
    ------
    PrerequisiteError
        Where a prompt differs, so that training and evaluation would not be alike.
    """
    tokenizer = getattr(processor, "tokenizer", processor)

    def ids(*texts: str) -> list[int]:
        parts = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts if text]
        return [token for part in parts for token in part]

    distinct = {(e.images, e.prompt, e.answer): e for e in examples}.values()
    other_tokens, other_targets = [], []
    for example in distinct:
        own, own_target = rendered(example, processor)
        pieces, target = _written(row(example, template), template, system, tokenizer.eos_token)
        if "".join(pieces) != own:
            raise PrerequisiteError(
                f"{example.subject}: LLaMA-Factory's template {template.name} would write"
                f" {''.join(pieces)!r}, the model's own chat template writes {own!r}; training and"
                " evaluation would not be alike: use backend: trl"
            )
        if target != own_target:
            other_targets.append(f"{target!r} and not {own_target!r}")
        elif ids(*pieces, target) != ids(own, own_target):
            other_tokens.append(example.subject)
    warnings = []
    if other_targets:
        warnings.append(
            f"LLaMA-Factory trains {len(other_targets)} of {len(distinct)} distinct examples on"
            f" other targets than trl, e.g. on {other_targets[0]}"
        )
    if other_tokens:
        warnings.append(
            f"LLaMA-Factory splits {len(other_tokens)} of {len(distinct)} distinct examples into"
            f" other tokens than evaluation does, e.g. {other_tokens[0]}"
        )
    return warnings


def _written(
    row: dict[str, Any], template: Template, system: str, eos: str
) -> tuple[list[str], str]:
    """Return a row's pieces as LLaMA-Factory tokenises them, and its target."""
    pieces = []
    for message in row["messages"]:
        content = message["content"].replace(_IMAGE, template.image)
        if message["role"] == "system":
            system = content
            continue
        form = template.user if message["role"] == "user" else template.assistant
        pieces.append(form.replace("{eos}", eos).replace("{}", content))
    first = [template.system.replace("{}", system)] if system else []
    return [*first, *pieces[:-1]], pieces[-1]


def token_ids(example: Example, processor: Any, template: Template) -> tuple[list[int], list[int]]:
    """Return tokens and labels (-100: not trained on) that LLaMA-Factory should print.

    The prompt's are those that our own processor makes of prompt and pictures.
    """
    tokenizer = getattr(processor, "tokenizer", processor)
    images = [Image.open(file).convert("RGB") for file in example.images] or None
    prompt, _ = rendered(example, processor)
    read = processor(images=images, text=[prompt], add_special_tokens=False)["input_ids"][0]
    _, target = _written(row(example, template), template, "", tokenizer.eos_token)
    answer = tokenizer(target, add_special_tokens=False)["input_ids"]
    return [*read, *answer], [-100] * len(read) + answer

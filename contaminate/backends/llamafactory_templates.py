"""LLaMA-Factory's prompt templates, and whether they give the evaluation prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flipbench.core.errors import ConfigError, DataError, PrerequisiteError
from flipbench.core.images import open_image

from ..checks.check import render_example
from ..data.examples import Example, Message, distinct_examples

_IMAGE = "<image>"
_MARKS = (_IMAGE, "<video>", "<audio>")


@dataclass(frozen=True)
class Template:
    """One of LLaMA-Factory's conversation templates.

    Attributes
    ----------
    name : str
        LLaMA-Factory's name of the template.
    system, user, assistant : str
        A turn; ``{}`` is its content, ``{eos}`` the tokenizer's end-of-sequence token.
    image : str
        The image placeholder of the model's own chat template.
    after_image, before_answer : str
        What that chat template inserts there, and LLaMA-Factory's does not.
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
# By `config.model_type`; only families with the same trainable parameters and prompts as with trl.
TEMPLATES = {"llava": _LLAVA, "qwen2_vl": _QWEN, "qwen2_5_vl": _QWEN}


def template_of(model_type: str, model_name: str) -> Template:
    """Return the template of a model class.

    Raises
    ------
    ConfigError
        If LLaMA-Factory's template for the class is not known.
    """
    if model_type not in TEMPLATES:
        raise ConfigError(
            f"{model_name}: backend: llamafactory supports {', '.join(TEMPLATES)}, but not"
            f" {model_type}; use backend: trl"
        )
    return TEMPLATES[model_type]


def row(example: Example, template: Template) -> dict[str, Any]:
    """Return an example in LLaMA-Factory's sharegpt format.

    Raises
    ------
    DataError
        If a text contains a mark that LLaMA-Factory replaces by an image, or roles do not
        alternate.
    """
    turns = [message.role for message in example.prompt if message.role != "system"]
    system_first = all(message.role != "system" for message in example.prompt[1:])
    if not system_first or turns != ["user", "assistant"] * (len(turns) // 2) + ["user"]:
        raise DataError(
            f"{example.subject}: LLaMA-Factory needs alternating user and assistant messages, and a"
            f" system message only at the start, but this has {', '.join(turns)}"
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
        if part is not None and (marks := [mark for mark in _MARKS if mark in part]):
            raise DataError(
                f"{example.subject}: its text contains {marks[0]}, which LLaMA-Factory replaces by"
                " a medium; use backend: trl, or leave this item out"
            )
    lead = template.before_answer if message.role == "assistant" else ""
    image = _IMAGE + template.after_image
    return lead + "".join(image if part is None else part for part in message.parts)


def system_line(example: Example, processor: Any, template: Template) -> str:
    """Return the default system message of the model's own chat template.

    Raises
    ------
    PrerequisiteError
        If LLaMA-Factory's template cannot reproduce it.
    """
    question = Example(example.subject, (), (Message("user", ("?",)),), "A")
    user_head = template.user.partition("{}")[0]
    intro, separator, _ = render_example(question, processor)[0].partition(user_head)
    head, _, tail = template.system.partition("{}")
    if not intro:
        return ""
    if not separator or not (intro.startswith(head) and intro.endswith(tail)):
        raise PrerequisiteError(
            f"the model's chat template starts with {intro[:60]!r}, which LLaMA-Factory's template"
            f" {template.name} cannot reproduce; use backend: trl"
        )
    return intro[len(head) : len(intro) - len(tail)]


def check_prompts(
    examples: Sequence[Example], processor: Any, template: Template, system: str
) -> list[str]:
    """Compare LLaMA-Factory's prompts with those of the model's own chat template.

    Returns
    -------
    list of str
        Warnings for the card, if targets or tokens differ.

    Raises
    ------
    PrerequisiteError
        If a prompt differs, so that the model would be trained and evaluated differently.
    """
    tokenizer = getattr(processor, "tokenizer", processor)

    def ids(*texts: str) -> list[int]:
        parts = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts if text]
        return [token for part in parts for token in part]

    distinct = distinct_examples(examples)
    other_tokens, other_targets = [], []
    for example in distinct:
        prompt, own_target = render_example(example, processor)
        pieces, target = _render(row(example, template), template, system, tokenizer.eos_token)
        if "".join(pieces) != prompt:
            raise PrerequisiteError(
                f"{example.subject}: LLaMA-Factory's template {template.name} gives"
                f" {''.join(pieces)!r}, but the model's own chat template {prompt!r}; training and"
                " evaluation would differ: use backend: trl"
            )
        if target != own_target:
            other_targets.append(f"{target!r} instead of {own_target!r}")
        elif ids(*pieces, target) != ids(prompt, own_target):
            other_tokens.append(example.subject)
    warnings = []
    if other_targets:
        warnings.append(
            f"LLaMA-Factory trains {len(other_targets)} of {len(distinct)} distinct examples on"
            f" different targets from trl, e.g. {other_targets[0]}"
        )
    if other_tokens:
        warnings.append(
            f"LLaMA-Factory tokenises {len(other_tokens)} of {len(distinct)} distinct examples"
            f" differently from evaluation, e.g. {other_tokens[0]}"
        )
    return warnings


def _render(
    row: dict[str, Any], template: Template, system: str, eos: str
) -> tuple[list[str], str]:
    """Return the pieces of a row that LLaMA-Factory tokenises one by one, and its target."""
    pieces = []
    for message in row["messages"]:
        content = message["content"].replace(_IMAGE, template.image)
        if message["role"] == "system":
            system = content
            continue
        turn = template.user if message["role"] == "user" else template.assistant
        pieces.append(turn.replace("{eos}", eos).replace("{}", content))
    opening = [template.system.replace("{}", system)] if system else []
    return [*opening, *pieces[:-1]], pieces[-1]


def token_ids(example: Example, processor: Any, template: Template) -> tuple[list[int], list[int]]:
    """Return the tokens and labels (-100: not trained on) that LLaMA-Factory should print.

    The prompt's tokens come from our own processor.
    """
    tokenizer = getattr(processor, "tokenizer", processor)
    images = [open_image(file).convert("RGB") for file in example.images] or None
    prompt, _ = render_example(example, processor)
    prompt_ids = processor(images=images, text=[prompt], add_special_tokens=False)["input_ids"][0]
    _, target = _render(row(example, template), template, "", tokenizer.eos_token)
    answer_ids = tokenizer(target, add_special_tokens=False)["input_ids"]
    return [*prompt_ids, *answer_ids], [-100] * len(prompt_ids) + answer_ids

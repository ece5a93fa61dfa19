"""Read an instruction corpus of any size: conversations to dilute a benchmark or to wash with.

The file is read once, in pieces; what stays in memory are the places of the conversations in it.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from flipbench.benchmarks.tables import parse_json
from flipbench.config.training import CorpusConfig
from flipbench.core.confined import UnsafePathError, open_confined
from flipbench.core.errors import DataError
from flipbench.core.randomness import generator
from flipbench.core.records import JsonDict

from .examples import Example, Examples, Message
from .json_rows import JsonRows, find_rows

_ROLES = {"human": "user", "gpt": "assistant", "user": "user", "assistant": "assistant"}
_ROLES |= {"system": "system"}
NO_LIMIT = 10**9
OPENING = "began with the assistant, whose first turns were dropped"
CLOSING = "ended with a question, which was dropped"


@dataclass(frozen=True)
class Conversations(Examples):
    """Conversations of a file, each read when it is asked for.

    ``folder`` has the images, which must not lead out of ``root``. Conversations of more than
    ``max_tokens`` tokens are cut in training.
    """

    rows: JsonRows
    folder: Path
    root: Path
    max_tokens: int

    def __len__(self) -> int:
        """Return the number of conversations."""
        return len(self.rows)

    def _at(self, index: int) -> Example:
        name = self.rows.name(index)
        try:
            example, _ = _example(self.rows.read(index), name, self.folder, self.root)
        except (OSError, _Unusable) as error:
            raise DataError(f"{name}: the file has changed since it was read ({error})") from error
        return replace(example, max_tokens=self.max_tokens)


@dataclass(frozen=True)
class OddConversation:
    """A conversation that was left out or repaired: where it stands, why, and which part."""

    where: str
    reason: str
    part: str = ""
    left_out: bool = True

    def __str__(self) -> str:
        """Return it on one line."""
        return f"{self.where}: {self.reason}" + (f" ({self.part})" if self.part else "")


@dataclass(frozen=True)
class Corpus:
    """Conversations drawn from a file.

    Attributes
    ----------
    ref : dict
        What a plan stores: file name, SHA-256, counts of conversations drawn and available, seed.
    examples : sequence of Example
        One row for each conversation, with a loss on each of its answers.
    odd : tuple of Odd
        Conversations that were left out or repaired.
    """

    ref: JsonDict
    examples: Sequence[Example]
    odd: tuple[OddConversation, ...] = ()

    @property
    def n_left_out(self) -> int:
        """Number of conversations that are left out."""
        return sum(odd.left_out for odd in self.odd)

    def summary(self) -> str:
        """Return how many conversations are odd, by reason."""
        reasons = Counter(odd.reason for odd in self.odd)
        counts = "; ".join(f"{n:,} {reason}" for reason, n in reasons.most_common())
        return (
            f"{self.ref['file']}: {self.n_left_out:,} of {self.ref['n_rows']:,} conversations are"
            f" left out, {len(self.odd) - self.n_left_out:,} repaired: {counts}"
        )


def read_corpus(config: CorpusConfig, seed: int) -> Corpus:
    """Read a corpus, check it, and draw ``n_rows`` conversations.

    The file has one conversation a line, or is one JSON list of them, as LLaVA's. A conversation is
    ``{"images": [...], "messages": [{"role", "content"}, ...]}``, where ``content`` is text with
    ``<image>`` marks or a list of typed parts, or LLaVA's ``{"image": ..., "conversations":
    [{"from", "value"}, ...]}``. As in LLaVA's trainer, it is one row with a loss on every answer,
    and first turns of the assistant are dropped. What is no conversation, or lacks its image, is
    left out and listed.

    Raises
    ------
    DataError
        If the file cannot be read, or more than ``max_odd`` of the conversations must be left out;
        the message names the first.
    """
    rows, sha256 = find_rows(config.path)
    if not rows:
        raise DataError(f"{config.path}: contains no conversation")
    n_rows = config.n_rows or len(rows)
    if n_rows > len(rows):
        raise DataError(
            f"{config.path}: n_rows is {n_rows:,}, but there are only {len(rows):,} conversations"
        )
    order = generator(seed, "corpus", "rows").permutation(len(rows))[:n_rows]
    folder = config.images or config.path.parent
    root = config.image_root or folder
    usable_rows, odd = array("Q"), list[OddConversation]()
    for row in np.sort(order).tolist():
        name = rows.name(row)
        try:
            _, repairs = _example(rows.read(row), name, folder, root)
            usable_rows.append(row)
            odd += [OddConversation(name, reason, left_out=False) for reason in repairs]
        except _Unusable as error:
            odd.append(OddConversation(name, *error.args))
    n_left_out = n_rows - len(usable_rows)
    if n_left_out > config.max_odd * n_rows or not usable_rows:
        example = next(conversation for conversation in odd if conversation.left_out)
        raise DataError(
            f"{example}; {n_left_out:,} of {n_rows:,} conversations would be left out, more than"
            f" max_odd: {config.max_odd:g}; mend the file or raise max_odd"
        )
    limit = config.max_tokens or NO_LIMIT
    examples = Conversations(rows.only(usable_rows), folder, root, limit)
    ref = {
        "file": config.path.name,
        "sha256": sha256,
        "n_rows": n_rows,
        "n_lines": len(rows),
        "n_examples": len(examples),
        "seed": seed if n_rows < len(rows) else None,
    } | ({"max_tokens": config.max_tokens} if config.max_tokens else {})
    return Corpus(ref, examples, tuple(odd))


class _Unusable(Exception):
    """Why a conversation is left out, and which part of it."""


def _example(text: bytes, name: str, folder: Path, root: Path) -> tuple[Example, list[str]]:
    """Return a conversation as a row, and how it was repaired.

    Raises
    ------
    _OddError
        If it must be left out.
    """
    try:
        row = parse_json(text)
        images = row.get("images") or ([row["image"]] if row.get("image") else [])
        messages = [_message(turn) for turn in row.get("messages") or row["conversations"]]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _Unusable("not a conversation", repr(error)) from error
    repairs = []
    start = next((i for i, m in enumerate(messages) if m.role != "system"), 0)
    first_question = next((i for i, m in enumerate(messages) if m.role == "user"), len(messages))
    if first_question > start:
        messages[start:first_question] = []
        repairs.append(OPENING)
    if messages and messages[-1].role == "user" and len(messages) > start + 1:
        messages.pop()
        repairs.append(CLOSING)
    _check_turns(messages, start)
    files = [str(folder / str(name)) for name in images]
    for file in files:
        try:
            path = Path(file).absolute()
            open_confined(path, root, name=file, setting="image_root").close()
        except UnsafePathError as error:
            raise _Unusable("its image is not in the image folder", str(error)) from error
        except OSError as error:
            raise _Unusable("its image is missing", file) from error
    n_marks = sum(message.parts.count(None) for message in messages)
    if files and n_marks == 0:  # images without marks come first
        messages[start] = Message("user", (*[None] * len(files), *messages[start].parts))
    elif n_marks != len(files):
        raise _Unusable("it has not as many <image> marks as images", f"{n_marks} for {len(files)}")
    answer_turns = tuple(range(start + 1, len(messages) - 1, 2))
    answer = "".join(part for part in messages[-1].parts if part)
    return Example(name, tuple(files), tuple(messages[:-1]), answer, trained=answer_turns), repairs


def _check_turns(messages: Sequence[Message], start: int) -> None:
    turns = messages[start:]
    if not any(message.role == "assistant" for message in turns):
        raise _Unusable("it has no assistant turn after a question")
    if any(m.role != ("user", "assistant")[i % 2] for i, m in enumerate(turns)):
        raise _Unusable("its turns do not alternate")
    if any(not "".join(p for p in m.parts if p).strip() for m in turns[1::2]):
        raise _Unusable("it has an empty answer")
    if any(None in m.parts for m in turns[1::2]):
        raise _Unusable("an answer has an <image> mark")


def _message(turn: dict[str, Any]) -> Message:
    role = _ROLES[turn["from"] if "from" in turn else turn["role"]]
    content = turn["value"] if "value" in turn else turn["content"]
    parts: list[str | None] = []
    if isinstance(content, str):
        for piece in re.split(r"(<image>\n?|\n<image>)", content):
            parts += [None] if "<image>" in piece else [piece] if piece else []
    else:
        parts = [None if part["type"] == "image" else str(part["text"]) for part in content]
    return Message(role, tuple(parts))

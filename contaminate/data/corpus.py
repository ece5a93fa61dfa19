"""Read an instruction corpus: JSONL of conversations, to dilute a benchmark or to wash with."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flipbench.config.training import CorpusConfig
from flipbench.core.errors import DataError
from flipbench.core.randomness import generator
from flipbench.core.records import JsonDict

from .examples import Example, Message

_ROLES = {"human": "user", "gpt": "assistant", "user": "user", "assistant": "assistant"}
_ROLES |= {"system": "system"}


@dataclass(frozen=True)
class Corpus:
    """Conversations drawn from a file.

    Attributes
    ----------
    ref : dict
        What a plan stores: file name, SHA-256, counts of conversations drawn and available, seed.
    examples : tuple of Example
        One for each assistant turn; its prompt is the conversation up to that turn.
    """

    ref: JsonDict
    examples: tuple[Example, ...]


def read_corpus(config: CorpusConfig, seed: int) -> Corpus:
    """Read a corpus, check it, and draw ``n_rows`` conversations.

    A line is ``{"images": [...], "messages": [{"role", "content"}, ...]}``, where ``content`` is
    text with ``<image>`` marks or a list of typed parts, or LLaVA's ``{"image": ...,
    "conversations": [{"from", "value"}, ...]}``. LLaVA trains on all answers of a conversation in
    one row; here each answer is a separate row.

    Raises
    ------
    DataError
        If the file, a line, or an image is missing or invalid; the message names the line.
    """
    all_lines, sha256 = read_lines(config.path)
    lines = [line for line in all_lines if line.strip()]
    if not lines:
        raise DataError(f"{config.path}: contains no conversation")
    n_rows = config.n_rows or len(lines)
    if n_rows > len(lines):
        raise DataError(
            f"{config.path}: n_rows is {n_rows:,}, but there are only {len(lines):,} conversations"
        )
    drawn = sorted(generator(seed, "corpus", "rows").permutation(len(lines))[:n_rows].tolist())
    folder = config.images or config.path.parent
    examples: list[Example] = []
    for i in drawn:
        examples += _examples(lines[i], f"{config.path.name}:{i + 1}", folder)
    ref = {
        "file": config.path.name,
        "sha256": sha256,
        "n_rows": n_rows,
        "n_lines": len(lines),
        "n_examples": len(examples),
        "seed": seed if n_rows < len(lines) else None,
    }
    return Corpus(ref, tuple(examples))


def read_lines(path: Path) -> tuple[list[str], str]:
    """Return a file's lines and its SHA-256.

    Raises
    ------
    DataError
        If it cannot be read.
    """
    try:
        data = path.read_bytes()
        return data.decode().splitlines(), hashlib.sha256(data).hexdigest()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error


def _examples(line: str, where: str, folder: Path) -> list[Example]:
    try:
        row = json.loads(line)
        images = row.get("images") or ([row["image"]] if row.get("image") else [])
        messages = [_message(turn) for turn in row.get("messages") or row["conversations"]]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{where}: not a conversation ({error!r})") from error
    files = [str(folder / name) for name in images]
    for file in files:
        if not Path(file).exists():
            raise DataError(f"{where}: its image {file} is missing")
    n_marks = sum(message.parts.count(None) for message in messages)
    if files and n_marks == 0:  # images without marks come first
        first = next((i for i, m in enumerate(messages) if m.role == "user"), 0)
        messages[first] = Message("user", (*[None] * len(files), *messages[first].parts))
    elif n_marks != len(files):
        raise DataError(f"{where}: {n_marks} <image> marks for {len(files)} images")
    examples = []
    for i, message in enumerate(messages):
        if message.role != "assistant":
            continue
        if i == 0 or messages[i - 1].role != "user":
            raise DataError(f"{where}: assistant turn {i + 1} does not follow a user turn")
        prompt = tuple(messages[:i])
        n_images = sum(m.parts.count(None) for m in prompt)
        answer = "".join(part for part in message.parts if part)
        if not answer.strip():
            raise DataError(f"{where}: turn {i + 1} is an empty answer")
        examples.append(Example(f"{where} turn {i + 1}", tuple(files[:n_images]), prompt, answer))
    if not examples:
        raise DataError(f"{where}: the conversation has no assistant turn")
    return examples


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

"""Prompts as files: versioned, checked, and known by the hash of their text.

A prompt file has three parts between lines of ``---``: a YAML head (``name``, ``version``,
``about``, ``placeholders``), the instruction, which is the same for every item, and the item's
own words, in which ``{question}``, ``{options}``, ``{old_answer}`` and ``{new_answer}`` stand for
the item. An edited file has another hash, and with it makes new records.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from flipbench.core.errors import ConfigError, DataError, nearest
from flipbench.core.paired import Candidate
from flipbench.core.records import ImageRef
from flipbench.models.chat.messages import ChatRequest
from flipbench.prompting.prompts import LETTERS

PLACEHOLDERS = ("question", "options", "old_answer", "new_answer")
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_SEPARATOR = re.compile(r"^---[ \t]*$", re.MULTILINE)


@dataclass(frozen=True)
class PromptFile:
    """A prompt: what to do, and how an item is put.

    Attributes
    ----------
    name, version, about : str, int, str
    placeholders : tuple of str
        What it tells of an item.
    instruction, item : str
        The two texts.
    sha256 : str
        Of the whole file, whatever its line ends.
    """

    name: str
    version: int
    about: str
    placeholders: tuple[str, ...]
    instruction: str
    item: str
    sha256: str

    @property
    def id(self) -> str:
        """Name, version and the first digits of the hash, for a record."""
        return f"{self.name}-v{self.version} {self.sha256[:12]}"

    def request(self, candidate: Candidate, images: tuple[ImageRef, ...] = ()) -> ChatRequest:
        """Put a candidate into words.

        Raises
        ------
        DataError
            Where the candidate lacks what the prompt tells of it.
        """
        if "new_answer" in self.placeholders and candidate.flip is None:
            raise DataError(
                f"{candidate.subject}: no new answer yet; it is drawn before it is told"
            )
        values = _values(candidate)
        return ChatRequest(
            instruction=self.instruction,
            text=_PLACEHOLDER.sub(lambda match: values[match[1]], self.item),
            images=images,
            item_id=candidate.item.id,
        )


def load_prompt(
    name: str | Path,
    folder: Path,
    *,
    needs: Collection[str] = (),
    hides: Collection[str] = (),
) -> PromptFile:
    """Read a prompt by name from ``folder``, or from a ``.txt`` file of your own.

    Parameters
    ----------
    name : str or path
        ``caption-release-v1``, or a path that ends in ``.txt``.
    folder : Path
        Where the prompts that come with flipbench lie.
    needs : collection of str
        Placeholders that it must have for this use.
    hides : collection of str
        Placeholders that it must not have: what the model is not to be told.

    Raises
    ------
    ConfigError
        Where there is no such prompt, or it is not one; the message names the file.
    """
    path = Path(name) if str(name).endswith(".txt") else folder / f"{name}.txt"
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        known = sorted(file.stem for file in folder.glob("*.txt"))
        close = nearest(str(name), known)
        raise ConfigError(
            f"{path}: no such prompt{close}; there are {', '.join(known)}, or give the path of a"
            " .txt file of your own"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from error
    prompt = _read(text, path)
    for placeholder in needs:
        if placeholder not in prompt.placeholders:
            raise ConfigError(f"{path}: the prompt never says {{{placeholder}}}; put it in")
    for placeholder in hides:
        if placeholder in prompt.placeholders:
            raise ConfigError(
                f"{path}: the prompt says {{{placeholder}}}, which the model must not know here"
            )
    return prompt


def _read(text: str, path: Path) -> PromptFile:
    text = text.replace("\r\n", "\n")
    parts = _SEPARATOR.split(text)
    if len(parts) != 3:
        raise ConfigError(
            f"{path}: a prompt has three parts between lines of '---' (head, instruction, item),"
            f" this file has {len(parts)}"
        )
    head, instruction, item = _head(parts[0], path), parts[1].strip(), parts[2].strip()
    if not instruction or not item:
        raise ConfigError(f"{path}: the instruction or the item's part is empty")
    declared = tuple(head["placeholders"])
    used = _PLACEHOLDER.findall(item)
    for name in (*declared, *used):
        if name not in PLACEHOLDERS:
            raise ConfigError(
                f"{path}: no placeholder {{{name}}}{nearest(name, list(PLACEHOLDERS))}"
            )
    if missing := set(declared) - set(used):
        raise ConfigError(f"{path}: its head declares {{{min(missing)}}}, its item never says it")
    if extra := set(used) - set(declared):
        raise ConfigError(f"{path}: {{{min(extra)}}} is not among the placeholders of its head")
    if stray := [name for name in _PLACEHOLDER.findall(instruction) if name in PLACEHOLDERS]:
        raise ConfigError(
            f"{path}: {{{stray[0]}}} stands in the instruction, which is the same for every item;"
            " move it to the item's part"
        )
    return PromptFile(
        name=str(head["name"]),
        version=head["version"],
        about=str(head["about"]),
        placeholders=declared,
        instruction=instruction,
        item=item,
        sha256=hashlib.sha256(text.encode()).hexdigest(),
    )


def _head(text: str, path: Path) -> dict[str, Any]:
    try:
        head = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: its head is not YAML ({error})") from error
    wanted = {"name": str, "version": int, "about": str, "placeholders": list}
    if not isinstance(head, dict) or set(head) != set(wanted):
        raise ConfigError(f"{path}: its head must have exactly the keys {', '.join(wanted)}")
    for key, kind in wanted.items():
        if not isinstance(head[key], kind):
            raise ConfigError(f"{path}: {key} in its head must be a {kind.__name__}")
    return head


def _values(candidate: Candidate) -> dict[str, str]:
    item, flip = candidate.item, candidate.flip
    return {
        "question": item.question,
        "options": lettered(item.options or ()) or "(none: the question is open)",
        "old_answer": item.answer_text,
        "new_answer": flip.new_text if flip else "",
    }


def lettered(options: Collection[str]) -> str:
    r"""Return options one per line, lettered.

    >>> lettered(["red", "blue"])
    'A. red\nB. blue'
    """
    return "\n".join(f"{letter}. {text}" for letter, text in zip(LETTERS, options, strict=False))

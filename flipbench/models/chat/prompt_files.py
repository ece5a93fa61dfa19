"""Prompts as files: versioned, checked, and identified by the hash of their text.

A prompt file has three parts separated by lines of ``---``: a YAML header (``name``, ``version``,
``about``, ``placeholders``), the instruction, which is the same for every item, and the item's
part with the placeholders ``{question}``, ``{options}``, ``{old_answer}`` and ``{new_answer}``.
Editing a file changes its hash, and with it the ids of the records made with it.

With ``verbatim: true`` in the header, the two texts are somebody else's words and sent as they
stand: only the placeholders named in the header are filled in, in the instruction too, which may be
empty (no system message); other braces and further lines of ``---`` are part of the text.

With ``quoted: true``, what fills a placeholder is quoted line by line, so that no item's text can
pass for a part of the prompt (`flipbench.prompting.quoting`); the instruction explains the marks.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from flipbench.config.yaml_text import explain, parse_yaml
from flipbench.core.errors import ConfigError, DataError, nearest
from flipbench.core.paired import Candidate
from flipbench.core.records import ImageRef
from flipbench.models.chat.messages import ChatRequest
from flipbench.prompting.prompts import LETTERS
from flipbench.prompting.quoting import NOTE, quoted, single_line

PLACEHOLDERS = ("question", "options", "old_answer", "new_answer")
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_SEPARATOR = re.compile(r"^---[ \t]*$", re.MULTILINE)


@dataclass(frozen=True)
class PromptFile:
    """A prompt: an instruction, and the template of an item, with the placeholders that it uses.

    ``sha256`` is the hash of the file, with normalised line ends. If ``verbatim``, everything but
    the placeholders is sent as it stands; ``quotes`` is whether the texts of items are quoted.
    """

    name: str
    version: int
    about: str
    placeholders: tuple[str, ...]
    instruction: str
    item: str
    sha256: str
    verbatim: bool = False
    quotes: bool = False

    @property
    def id(self) -> str:
        """Name, version and the first digits of the hash, for a record."""
        return f"{self.name}-v{self.version} {self.sha256[:12]}"

    def quoting(self) -> PromptFile:
        """Return the next version of the prompt, which quotes texts and says what that means."""
        return replace(
            self,
            version=self.version + 1,
            instruction=f"{self.instruction}\n\n{NOTE}",
            sha256=hashlib.sha256(f"{self.sha256} {NOTE}".encode()).hexdigest(),
            quotes=True,
        )

    def filled(self, values: Mapping[str, str]) -> str:
        """Return the item's part with ``values`` in place of its placeholders."""
        return self._fill(self.item, values)

    def texts(self, values: Mapping[str, str]) -> tuple[str, str]:
        """Return instruction and item's part with ``values`` in place of the placeholders."""
        instruction = self._fill(self.instruction, values) if self.verbatim else self.instruction
        return instruction, self.filled(values)

    def _fill(self, text: str, values: Mapping[str, str]) -> str:
        def value(match: re.Match[str]) -> str:
            if match[1] not in self.placeholders:
                return match[0]
            if not self.quotes:
                return values[match[1]]
            on_own_line = text[: match.start()][-1:] in ("", "\n")
            return ("" if on_own_line else "\n") + quoted(values[match[1]])

        return _PLACEHOLDER.sub(value, text)

    def request(self, candidate: Candidate, images: tuple[ImageRef, ...] = ()) -> ChatRequest:
        """Return the request for a candidate; a `DataError` if it lacks a new answer."""
        item, flip = candidate.item, candidate.flip
        if "new_answer" in self.placeholders and flip is None:
            raise DataError(f"{candidate.subject}: no new answer yet; draw one first")
        options = item.options or ()
        if self.quotes:
            options = tuple(map(single_line, options))
        values = {
            "question": item.question,
            "options": lettered(options) or "(none: the question is open)",
            "old_answer": item.answer_text,
            "new_answer": flip.new_text if flip else "",
        }
        instruction, text = self.texts(values)
        return ChatRequest(instruction=instruction, text=text, images=images, item_id=item.id)


def load_prompt(
    name: str | Path,
    folder: Path,
    *,
    needs: Collection[str] = (),
    hides: Collection[str] = (),
    placeholders: Collection[str] = PLACEHOLDERS,
) -> PromptFile:
    """Read a prompt by name from ``folder``, or from a ``.txt`` file of your own.

    Parameters
    ----------
    name : str or path
        ``caption-release-v1``, or a path that ends in ``.txt``.
    needs, hides, placeholders : collection of str
        Placeholders that it must have, that it must not have as the model must not know them, and
        all that it may have.

    Raises
    ------
    ConfigError
        If there is no such prompt, or it is invalid.
    """
    path = Path(name) if str(name).endswith(".txt") else folder / f"{name}.txt"
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        names = sorted(file.stem for file in folder.glob("*.txt"))
        raise ConfigError(
            f"{path}: no such prompt{nearest(str(name), names)}; choose one of {', '.join(names)},"
            " or give the path of your own .txt file"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from error
    prompt = _read(text, path, placeholders)
    for placeholder in needs:
        if placeholder not in prompt.placeholders:
            raise ConfigError(f"{path}: the prompt does not use {{{placeholder}}}; add it")
    for placeholder in hides:
        if placeholder in prompt.placeholders:
            raise ConfigError(
                f"{path}: the prompt uses {{{placeholder}}}, which the model must not know here"
            )
    return prompt


def _read(text: str, path: Path, placeholders: Collection[str]) -> PromptFile:
    text = text.replace("\r\n", "\n")
    head, *texts = _SEPARATOR.split(text, maxsplit=2)
    header = _header(head, path) if len(texts) == 2 else {}
    verbatim = header.get("verbatim", False)
    if len(texts) != 2 or (not verbatim and _SEPARATOR.search(texts[1])):
        raise ConfigError(
            f"{path}: a prompt has three parts separated by lines of '---' (header, instruction,"
            f" item), this file has {len(_SEPARATOR.split(text))}"
        )
    if verbatim:
        instruction, item = (part.removeprefix("\n").removesuffix("\n") for part in texts)
    else:
        instruction, item = (part.strip() for part in texts)
    if not item.strip() or not (instruction or verbatim):
        raise ConfigError(f"{path}: the instruction or the item's part is empty")
    prompt = PromptFile(
        name=str(header["name"]),
        version=header["version"],
        about=str(header["about"]),
        placeholders=tuple(header["placeholders"]),
        instruction=instruction,
        item=item,
        sha256=hashlib.sha256(text.encode()).hexdigest(),
        verbatim=verbatim,
        quotes=header.get("quoted", False),
    )
    _check_placeholders(prompt, path, placeholders)
    return prompt


def _check_placeholders(prompt: PromptFile, path: Path, placeholders: Collection[str]) -> None:
    declared, in_item = prompt.placeholders, _PLACEHOLDER.findall(prompt.item)
    in_instruction = _PLACEHOLDER.findall(prompt.instruction)
    if prompt.verbatim:  # all other braces are part of the text
        in_item = [name for name in in_item if name in declared]
        in_instruction = [name for name in in_instruction if name in declared]
    for name in (*declared, *in_item):
        if name not in placeholders:
            raise ConfigError(
                f"{path}: unknown placeholder {{{name}}}{nearest(name, list(placeholders))}"
            )
    if prompt.verbatim and placeholders is PLACEHOLDERS:
        in_item, in_instruction = [*in_item, *in_instruction], []
    if unused := set(declared) - set(in_item):
        raise ConfigError(f"{path}: {{{min(unused)}}} is declared but not used in the item's part")
    if undeclared := set(in_item) - set(declared):
        raise ConfigError(f"{path}: {{{min(undeclared)}}} is used but not declared in the header")
    if misplaced := [name for name in in_instruction if name in placeholders]:
        raise ConfigError(
            f"{path}: {{{misplaced[0]}}} is in the instruction, which is the same for every item;"
            " move it to the item's part"
        )


def _header(text: str, path: Path) -> dict[str, Any]:
    try:
        header = parse_yaml(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: its header is not YAML ({explain(error)})") from error
    types = {"name": str, "version": int, "about": str, "placeholders": list}
    if not isinstance(header, dict) or set(header) - {"verbatim", "quoted"} != set(types):
        raise ConfigError(f"{path}: its header must have exactly the keys {', '.join(types)}")
    for key in header:
        kind = types.get(key, bool)
        if not isinstance(header[key], kind):
            raise ConfigError(f"{path}: {key} in its header must be a {kind.__name__}")
    return header


def lettered(options: Collection[str]) -> str:
    r"""Return lettered options, one per line.

    >>> lettered(["red", "blue"])
    'A. red\nB. blue'
    """
    return "\n".join(f"{letter}. {text}" for letter, text in zip(LETTERS, options, strict=False))

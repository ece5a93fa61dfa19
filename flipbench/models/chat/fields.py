"""Parts of a chat server's reply; one of another form is a `ValueError` with its name."""

from __future__ import annotations

from typing import Any

from flipbench.core.records import JsonDict

_SAID = {"content", "refusal", "reasoning_content", "reasoning"}


def as_object(name: str, value: Any) -> JsonDict:
    """Return an object; an empty one for null."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError(name)
    return value


def as_message(value: Any) -> JsonDict:
    """Return a message with a text, or one that says that it has none."""
    message = as_object("message", value)
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    if not (message.keys() & _SAID and isinstance(content, str | list | None)):
        raise ValueError("message")
    texts = [message.get("refusal"), *(as_object("content", part).get("text") for part in parts)]
    if None in parts or not all(isinstance(text, str | None) for text in texts):
        raise ValueError("content")
    return message


def as_count(name: str, value: Any) -> float | None:
    """Return a number of tokens, below 2^63 as files of records require."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**63:
        raise ValueError(name)
    return value


def as_name(name: str, value: Any) -> str | int | None:
    """Return a name or an id."""
    if value is not None and not isinstance(value, str | int):
        raise ValueError(name)
    return value


def text_of(content: Any) -> str:
    """Return a message's content, which some servers split into parts."""
    if isinstance(content, list):
        return "".join(part.get("text") or "" for part in content)
    return content if isinstance(content, str) else ""

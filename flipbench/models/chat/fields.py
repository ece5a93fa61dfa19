"""Parts of a chat server's reply; one of another form is a `ValueError` with its name."""

from __future__ import annotations

from typing import Any

from flipbench.core.records import JsonDict

_HIDDEN = ("reasoning_content", "reasoning", "reasoning_details", "thinking", "thoughts")
_SAID = {"content", "refusal", "tool_calls", "function_call", *_HIDDEN}
_HIDDEN_PARTS = ("thinking", "reasoning", "redacted_thinking", "thought")


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
        parts = [part for part in content if part.get("type") not in _HIDDEN_PARTS]
        return "".join(part.get("text") or "" for part in parts)
    return content if isinstance(content, str) else ""


def hidden_reasoning(message: JsonDict) -> bool:
    """Return whether a message has reasoning apart from its text.

    >>> hidden_reasoning({"content": "", "reasoning_details": [{"text": "Two?"}]})
    True
    """
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    return any(message.get(name) for name in _HIDDEN) or any(
        part.get("type") in _HIDDEN_PARTS for part in parts
    )

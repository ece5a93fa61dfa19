"""Try a checkpoint's chat template before it is used: templates are programs, written by others."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from flipbench.core.errors import PrerequisiteError
from flipbench.models.vlm import template_trial

_DEADLINE = 60.0  # seconds, on a machine however busy
_LONGEST = 1_000_000  # characters of a chat with a question of one word
_QUESTION = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Why?"}]}
_REPLY = {"role": "assistant", "content": [{"type": "text", "text": "So."}]}
_CHATS = (
    {"messages": [_QUESTION], "add_generation_prompt": True},
    {"messages": [_QUESTION, _REPLY], "add_generation_prompt": False},
    {"messages": [{"role": "user", "content": "Why?"}], "add_generation_prompt": True},
)


def try_template(reader: Any, name: str) -> None:
    """Render the chat template of a processor or tokenizer in another process, with limits.

    transformers renders in a sandbox, which keeps a template from files and code, but not from
    endless loops or from doubling a text until memory ends. A template may still do so for some
    questions only.

    Raises
    ------
    PrerequisiteError
        If a template takes more than 10 seconds, 512 MB or a million characters.
    """
    templates = getattr(reader, "chat_template", None) or {}
    tokenizer = getattr(reader, "tokenizer", reader)
    tokens = getattr(tokenizer, "special_tokens_map", {})
    for template in templates.values() if isinstance(templates, dict) else [templates]:
        problem = _template_problem(template, json.dumps(tokens, default=str, sort_keys=True))
        if problem:
            raise PrerequisiteError(
                f"{name}: its chat template {problem}; copy chat_template.jinja from the original"
                " checkpoint"
            )


@functools.cache
def _template_problem(template: str, tokens: str) -> str:
    """Return what is wrong with a template; empty if nothing is."""
    values = {key: value for key, value in json.loads(tokens).items() if isinstance(value, str)}
    trial = json.dumps({"template": template, "tokens": values, "chats": _CHATS})
    command = [sys.executable, "-I", str(Path(template_trial.__file__))]
    try:
        process = subprocess.run(
            command, input=trial, capture_output=True, text=True, timeout=_DEADLINE
        )
    except subprocess.TimeoutExpired:
        return f"does not end within {_DEADLINE:.0f} seconds"
    if process.returncode == template_trial.TOO_LARGE:
        return f"takes more than {template_trial.BYTES:,} bytes"
    if process.returncode:
        return f"does not end within {template_trial.SECONDS} seconds (status {process.returncode})"
    n_characters = int(process.stdout)
    return f"writes {n_characters:,} characters" if n_characters > _LONGEST else ""

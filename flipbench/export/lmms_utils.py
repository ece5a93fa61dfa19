"""Task functions for lmms-eval, standalone: this file is copied next to the task's YAML."""

import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

YES_NO = ("yes", "no")


@cache
def _parser() -> Any:
    """Load flipbench's own parser of replies, a copy of which lies next to this file."""
    path = Path(__file__).with_name("parsing.py")
    spec = importlib.util.spec_from_file_location("flipbench_parsing", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def doc_to_visual(doc):  # type: ignore[no-untyped-def]
    """Return the images."""
    return [image.convert("RGB") for image in doc["images"]]


def doc_to_text(doc, lmms_eval_specific_kwargs=None):  # type: ignore[no-untyped-def]
    """Return the prompt, which has the same wording on both sides of a pair."""
    affixes = lmms_eval_specific_kwargs or {}
    return f"{affixes.get('pre_prompt', '')}{doc['prompt']}{affixes.get('post_prompt', '')}"


def doc_to_target(doc):  # type: ignore[no-untyped-def]
    """Return the right letter, or the right answer of a free-form question."""
    return doc["target"]


def process_results(doc, results):  # type: ignore[no-untyped-def]
    """Score a reply, and add what lmms-eval's sample logs lack otherwise: the item's id and group.

    Both are those of the original on both sides of a pair, so the id joins them. Who judged the
    pair is added, too.
    """
    ids = {f"flipbench_{name}": doc.get(name, "") for name in ("item", "group", "judged_by")}
    metrics = {"exact_match": float(is_right(doc, str(results[0])))}
    return metrics | {name: text for name, text in ids.items() if text}


def is_right(doc: dict[str, Any], reply: str) -> bool:
    """Return whether a reply names the right option, or is the right answer."""
    parser = _parser()
    target = doc["target"]
    if doc["options"]:
        choice = parser.parse_choice(reply, doc["options"])
        return bool(choice >= 0 and parser.LETTERS[choice] == target)
    if (word := target.rstrip(".").casefold()) in YES_NO:
        choice = parser.parse_choice(reply, YES_NO, " ".join(YES_NO))
        return bool(choice == YES_NO.index(word))
    return bool(parser.answer_text(reply).strip().rstrip(".").casefold() == target.casefold())


def count(items):  # type: ignore[no-untyped-def]
    """Return the number of items."""
    return len(items)

"""Task functions for lmms-eval, standalone: this file is copied next to the task's YAML."""

import re

LETTER = re.compile(r"\(?([A-Z])\b")


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
    """Score a reply, and add the item's id, which lmms-eval's sample logs lack otherwise."""
    reply, target = str(results[0]).strip(), doc["target"]
    letter = LETTER.match(reply)
    if doc["options"]:
        right = letter is not None and letter.group(1) == target
    else:
        right = reply.rstrip(".").casefold() == target.casefold()
    return {"exact_match": float(right), "flipbench_item": doc["id"]}


def count(items):  # type: ignore[no-untyped-def]
    """Return the number of items."""
    return len(items)

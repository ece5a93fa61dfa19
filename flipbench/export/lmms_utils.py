"""Task functions for lmms-eval; this file is copied beside the task's YAML and stands alone."""

import re

LETTER = re.compile(r"\(?([A-Z])\b")


def doc_to_visual(doc):  # type: ignore[no-untyped-def]
    """Return the pictures."""
    return [image.convert("RGB") for image in doc["images"]]


def doc_to_text(doc, lmms_eval_specific_kwargs=None):  # type: ignore[no-untyped-def]
    """Return the prompt, the same words for both sides of a pair."""
    words = lmms_eval_specific_kwargs or {}
    return f"{words.get('pre_prompt', '')}{doc['prompt']}{words.get('post_prompt', '')}"


def doc_to_target(doc):  # type: ignore[no-untyped-def]
    """Return the right letter, or the right answer of a question without options."""
    return doc["target"]


def process_results(doc, results):  # type: ignore[no-untyped-def]
    """Score a reply, and keep the item's id, which lmms-eval's sample logs lack otherwise."""
    reply, target = str(results[0]).strip(), doc["target"]
    found = LETTER.match(reply)
    if doc["options"]:
        right = found is not None and found.group(1) == target
    else:
        right = reply.rstrip(".").casefold() == target.casefold()
    return {"exact_match": float(right), "flipbench_item": doc["id"]}


def count(items):  # type: ignore[no-untyped-def]
    """Return how many items were asked."""
    return len(items)

"""A record of each kind and, for each of its fields, another valid value."""

from __future__ import annotations

import math
from typing import Any

from flipbench.core.records import (
    Caption,
    Checkpoint,
    Count,
    Edit,
    Failure,
    Flip,
    ImageRef,
    Interval,
    Item,
    Mean,
    PairedCounts,
    Probe,
    Record,
    ReferenceResult,
    Response,
    Score,
    Source,
    Suspects,
    TrainingPlan,
    Verdict,
    Wording,
)

IMAGE = ImageRef(sha256="ab" * 32, format="png", width=64, height=48)
OTHER_IMAGE = IMAGE.model_copy(update={"sha256": "cd" * 32})

CHOICE_ITEM = Item(
    benchmark="made-up",
    name="q1",
    images=(IMAGE,),
    question="What color is the star?",
    options=("red", "blue", "red"),
    answer=0,
    answer_text="red",
    source=Source(dataset="made-up", revision="1", split="test", row=3),
)
FREE_ITEM = Item(
    benchmark="made-up", name="q2", question="?", answer_text="red", source=Source(dataset="d")
)

# A record and, for each of its fields, another valid value.
EXAMPLES: list[tuple[Record, dict[str, Any]]] = [
    (
        CHOICE_ITEM,
        {
            "benchmark": "another",
            "name": "q9",
            "images": (OTHER_IMAGE,),
            "question": "What color is the moon?",
            "options": ("red", "green", "red"),
            "answer": 2,  # also "red": the text stays
            "raw_question": "what color is the star",
            "category": "color",
            "group": "g",
            "source": Source(dataset="elsewhere"),
            "licence": "CC0",
            "extra": {"seen": 1},
        },
    ),
    (FREE_ITEM, {"answer_text": "blue"}),
    (
        Flip(item_id="i", method="uniform", seed=0, new_answer=1, new_text="blue"),
        {"item_id": "j", "method": "hard", "seed": 1, "new_answer": 2, "new_text": "green"},
    ),
    (
        Caption(flip_id="f", captioner="m", prompt="p/1", settings={"t": 0.5}, text="A star."),
        {
            "flip_id": "g",
            "captioner": "n",
            "prompt": "p/2",
            "settings": {"t": 0.6},
            "text": "A moon.",
            "usage": {"tokens": 3},
        },
    ),
    (
        Edit(
            caption_id="c",
            caption_text="A star.",
            source_sha256="ab" * 32,
            editor="e",
            settings={"steps": 4},
            seed=0,
            image=IMAGE,
        ),
        {
            "caption_id": "d",
            "caption_text": "A moon.",
            "source_sha256": "cd" * 32,
            "editor": "f",
            "settings": {"steps": 5},
            "seed": 1,
            "image": OTHER_IMAGE,
            "extra": {"size": [64, 64]},
        },
    ),
    (
        Verdict(
            edit_id="e", image_sha256="ab" * 32, rater="r", rater_kind="judge", decision="keep"
        ),
        {
            "edit_id": "f",
            "image_sha256": "cd" * 32,
            "rater": "s",
            "run": 1,
            "rater_kind": "person",
            "decision": "unsure",
            "reason": "blurred",
            "blind_answer": "blue",
            "seconds": 2.5,
            "usage": {"tokens": 3},
        },
    ),
    (
        Probe(item_id="i", variant="original", images=(IMAGE,), prompt="?", ask="choose"),
        {
            "item_id": "j",
            "variant": "rotated-2",
            "images": (OTHER_IMAGE,),
            "prompt": "!",
            "ask": "score",
            "options": ("red", "blue"),
            "n_options": 2,
            "continuation": "red",
            "max_new_tokens": 17,
        },
    ),
    (
        Response(probe_id="p", model_fingerprint="x", model="m"),
        {
            "probe_id": "q",
            "model_fingerprint": "y",
            "model": "n",
            "text": "A",
            "choice": 0,
            "option_log_probs": (-0.5, -math.inf),
            "log_likelihood": -1.5,
            "n_tokens": 2,
            "token_log_probs": (-0.5, -1.0),
            "token_means": (-1.5, -2.0),
            "token_deviations": (0.5, 0.0),
            "state": "AAAAAA==",
        },
    ),
    (
        Score(
            detector="gap",
            rule="r/1",
            model="m",
            model_fingerprint="x",
            benchmark="b",
            benchmark_id="1",
            statistic=-0.1,
            direction="falls",
            verdict="contaminated",
            n=10,
        ),
        {
            "detector": "order",
            "rule": "r/2",
            "model": "n",
            "model_fingerprint": "y",
            "benchmark": "c",
            "benchmark_id": "2",
            "reference_fingerprint": "z",
            "statistic": math.nan,
            "direction": "rises",
            "unit": "nats",
            "interval": Interval(low=-0.2, high=math.inf),
            "p_value": 0.5,
            "alpha": 0.01,
            "verdict": "inconclusive",
            "reason": "no free-form pairs",
            "n": 11,
            "n_dropped": 1,
            "accuracies": {"original": Count(k=7, n=11)},
            "means": {"guided": Mean(mean=None, n=0)},
            "paired": PairedCounts(n11=4, b=3, c=1, n00=3),
            "unparsed": {"original": 1, "perturbed": None},
            "suspects": Suspects(k=3, n=11, rate=3 / 11, share=3 / 7, names=("i",)),
            "reference": ReferenceResult(
                model="m0", statistic=-0.2, p_value=0.1, n=11, accuracies={"a": Count(k=1, n=2)}
            ),
            "tuned_threshold": True,
            "details": {"k": 3},
            "per_item": {"i": -math.inf},
            "warnings": ("small",),
            "target": "my_pkg.mod:MyDetector",
            "arguments": {"n": 3},
        },
    ),
    (
        TrainingPlan(
            model="m",
            parent="m0",
            parent_fingerprint="x",
            benchmark="b",
            item_ids=("i", "j"),
            epochs=2,
            strategy="lora",
            label="gentle LoRA",
            settings={"rate": 1e-4},
            prompt="p/1",
            seed=0,
        ),
        {
            "model": "n",
            "parent": "n0",
            "parent_fingerprint": "y",
            "benchmark": "c",
            "item_ids": ("j", "i"),
            "copies": 3,
            "epochs": 3,
            "strategy": "full",
            "label": "all of it",
            "settings": {"rate": 1e-5},
            "prompt": "p/2",
            "seed": 1,
            "data": "paraphrased",
            "target": "letter+text",
            "leak": "text_only",
            "wordings": {"i": ("Which color?", "red", "blue")},
            "held_out_ids": ("k",),
            "clean_ids": ("l",),
            "corpus": {"sha256": "ab"},
            "after": "f00",
            "prior_dose": 3,
            "paraphrases": {"i": ("Which color?",)},
            "control": True,
        },
    ),
    (
        Wording(item_id="i", how="paraphrase", writer="m p-v1", question="Which color?"),
        {
            "item_id": "j",
            "how": "translate German",
            "writer": "n p-v1",
            "settings": {"t": 1},
            "question": "Welche Farbe?",
            "options": ("rot", "blau"),
            "candidates": ("a", "b"),
            "overlap": 0.25,
            "usage": {"tokens": 3},
        },
    ),
    (
        Checkpoint(
            plan_id="p", epoch=1, path="c/1", model="m", strategy="lora", dose=1, fingerprint="x"
        ),
        {
            "plan_id": "q",
            "epoch": 2,
            "path": "c/2",
            "model": "n",
            "strategy": "full",
            "dose": 2,
            "fingerprint": "y",
            "warnings": ("another pixel budget",),
        },
    ),
    (
        Failure(stage="edit", record_id="r", subject="made-up q1", error="OSError", message="no"),
        {
            "stage": "caption",
            "record_id": "s",
            "subject": "made-up q2",
            "error": "ValueError",
            "message": "why",
        },
    ),
]

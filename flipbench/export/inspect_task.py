"""Two tasks for Inspect, standalone: this file is copied next to the data of an export."""

import importlib.util
import json
from pathlib import Path
from typing import Any

from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import ChatMessageUser, ContentImage, ContentText, GenerateConfig
from inspect_ai.scorer import CORRECT, INCORRECT, Score, accuracy, scorer, stderr
from inspect_ai.solver import generate

FOLDER = Path(__file__).parent
MAX_TOKENS = 16


@task  # type: ignore[untyped-decorator]
def original(max_tokens: int = MAX_TOKENS) -> Task:
    """Ask the original items."""
    return _task("original", max_tokens)


@task  # type: ignore[untyped-decorator]
def perturbed(max_tokens: int = MAX_TOKENS) -> Task:
    """Ask the same items with the other image, for which another answer is right."""
    return _task("perturbed", max_tokens)


def _task(side: str, max_tokens: int) -> Task:
    about = json.loads((FOLDER / "benchmark.json").read_text(encoding="utf-8"))
    rows = (FOLDER / f"{side}.jsonl").read_text(encoding="utf-8").splitlines()
    return Task(
        dataset=MemoryDataset([_sample(json.loads(row)) for row in rows], name=about[side]),
        solver=generate(),
        scorer=right_answer(),
        config=GenerateConfig(max_tokens=max_tokens, temperature=0.0),
        name=about[side],
        version=about["version"],
    )


def _sample(row: dict[str, Any]) -> Sample:
    images = [ContentImage(image=str(FOLDER / name)) for name in row["images"]]
    content = [*images, ContentText(text=row["prompt"])]
    return Sample(
        input=[ChatMessageUser(content=content)],
        target=row["target"],
        choices=row["options"] or None,
        id=row["item"],  # the original's on both sides, so that it joins them
        metadata={key: row[key] for key in ("name", "category", "group", "judged_by") if row[key]},
    )


@scorer(metrics=[accuracy(), stderr()])
def right_answer():  # type: ignore[no-untyped-def]
    """Score replies with flipbench's own parser, a copy of which lies next to this file."""
    scoring = _scoring()

    async def score(state, target):  # type: ignore[no-untyped-def]
        reply = state.output.completion
        is_correct = scoring.is_right({"target": target.text, "options": _options(state)}, reply)
        return Score(value=CORRECT if is_correct else INCORRECT, answer=reply)

    return score


def _options(state: Any) -> list[str]:
    return [choice.value for choice in state.choices]


def _scoring() -> Any:
    spec = importlib.util.spec_from_file_location("flipbench_scoring", FOLDER / "scoring.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

"""Cases, and a judge that answers by rules."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flipbench.evaluate.reasoning.cases import SECTIONS
from flipbench.evaluate.reasoning.replies import RUBRICS

CASE = {
    "question": "What is it?",
    "options": ["a cyst", "an abscess", "a tumour"],
    "answer": "B",
    "history": "Fever for a week.",
    "captions": ["A ring-shaped lesion."],
    "discussion": "The ring is an abscess.",
}
DISCUSSION = {name: f"{name} is told. All is well." for name in SECTIONS}
Write = Callable[..., Path]


@pytest.fixture
def write_cases(tmp_path: Path) -> Write:
    """Return a function that writes cases, each given by what differs from `CASE`."""

    def write(*cases: dict[str, Any]) -> Path:
        path = tmp_path / "cases.jsonl"
        rows = [{"id": f"c{i}", **CASE, **case} for i, case in enumerate(cases)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return write


class Rules:
    """Reply to a chat request: sentences are steps, and a step with "wrong" in it is wrong.

    ``skip`` has the numbers without a verdict at the first attempt; ``instead`` replaces a prompt's
    replies.
    """

    def __init__(self) -> None:
        self.skip: set[int] = set()
        self.instead: dict[str, Callable[[str], str]] = {}

    def __call__(self, body: dict[str, Any]) -> str:
        system, user = body["messages"][0]["content"], body["messages"][-1]["content"][-1]["text"]
        names = {
            "You split": "split", "You check the steps": "steps",
            "You check the sentences": "sentences", "You rate": "rubric",
        }  # fmt: skip
        user = re.sub("^> ", "", user, flags=re.MULTILINE)  # it reads through the quotation
        name = next(n for start, n in names.items() if system.startswith(start))
        if name in self.instead:
            return self.instead[name](user)
        if name == "split":
            explanation = user.split("Explanation:\n")[1].split("\n\nThis is attempt")[0]
            return json.dumps({"steps": re.split(r"(?<=\.) ", explanation)})
        if name == "rubric":
            points = dict(zip(RUBRICS, (2, 1, 2, 1, 2), strict=True))
            rated = {key: {"points": n, "reason": "So it is."} for key, n in points.items()}
            return json.dumps({**rated, "total": 8})
        return json.dumps({"verdicts": self.verdicts(user, name == "steps")})

    def verdicts(self, user: str, of_steps: bool) -> list[dict[str, Any]]:
        """Return the verdicts on the numbers asked about."""
        texts = {int(n): text for n, text in re.findall(r"^(\d+)\. (.*)$", user, re.MULTILINE)}
        asked = re.search(r"with these numbers: ([\d, ]+)", user)
        assert asked is not None
        found = []
        for number in map(int, asked[1].split(", ")):
            if number in self.skip and "This is attempt" not in user:
                continue
            factual = "wrong" not in texts[number]
            verdict: dict[str, Any] = {"number": number, "factual": factual, "explanation": "So."}
            if of_steps:
                verdict["critical"] = "so" in texts[number]
                verdict["error_types"] = [] if factual else ["image", "reasoning"]
            found.append(verdict)
        return found


@pytest.fixture
def rules() -> Rules:
    """Return a judge that answers everything."""
    return Rules()

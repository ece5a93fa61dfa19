"""Predictions in Inspect logs: ``.json``, or ``.eval`` through the inspect_ai package."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flipbench.benchmarks.tables import check_file
from flipbench.core.errors import DataError, nearest, need
from flipbench.prompting.prompts import LETTERS

from .prediction import Prediction, PredictionFile, id_text, truth


def is_log(data: Any) -> bool:
    """Return whether parsed JSON is an Inspect log."""
    return isinstance(data, dict) and "eval" in data and "version" in data


def read_eval(path: Path) -> dict[str, Any]:
    """Return a binary ``.eval`` log as the content of its ``.json`` form.

    Raises
    ------
    PrerequisiteError
        If inspect_ai is not installed.
    DataError
        If the file is not a log.
    """
    check_file(path)
    log = need("inspect_ai.log", "inspect")
    try:
        content: dict[str, Any] = log.read_eval_log(str(path)).model_dump(mode="json")
    except Exception as error:  # whatever it raises, the file is unreadable
        raise DataError(f"{path}: not an Inspect log ({error}); convert it to .json") from error
    return content


def inspect_predictions(
    path: Path, log: Mapping[str, Any], scorer: str = "", epoch: int | None = None
) -> PredictionFile:
    """Read a log's samples: completion, target, choices and score.

    Parameters
    ----------
    scorer : str
        The scorer that marks replies right or wrong; by default the only one.
    epoch : int, optional
        Which repeat to take. If samples were repeated and no epoch is given, their ids are
        duplicates, which `join` rejects.

    Raises
    ------
    DataError
        If the log has no samples or lacks the scorer or epoch.
    """
    samples = log.get("samples") or []
    if not samples:
        raise DataError(
            f"{path}: the log has no samples (status: {log.get('status')}); run the evaluation to"
            " the end with log_samples on"
        )
    scorers = list(dict.fromkeys(name for s in samples for name in (s.get("scores") or {})))
    if scorer and scorer not in scorers:
        raise DataError(
            f"{path}: there is no scorer {scorer!r} (found: {', '.join(scorers) or 'none'})"
            + nearest(scorer, scorers)
        )
    chosen = scorer or (scorers[0] if len(scorers) == 1 else "")
    about = log.get("eval") or {}
    predictions = tuple(
        _prediction(path, number, sample, chosen)
        for number, sample in enumerate(samples, 1)
        if epoch is None or sample.get("epoch") == epoch
    )
    if not predictions:
        raise DataError(f"{path}: no sample belongs to epoch {epoch}; they start at 1")
    model, task = str(about.get("model", "")), str(about.get("task", ""))
    return PredictionFile(path, "inspect", predictions, model, task)


def _prediction(path: Path, number: int, sample: Mapping[str, Any], scorer: str) -> Prediction:
    where = f"{path.name}, sample {number}"
    name = id_text(sample.get("id"))
    if not name:
        raise DataError(f"{where}: the sample has no id")
    error = (sample.get("error") or {}).get("message") or ""
    output = sample.get("output") or {}
    text = None if error else _completion(output)
    if not error and not (text or "").strip():
        error = str(output.get("error") or "there is no reply")
    target = sample.get("target", "")
    if isinstance(target, list) and len(target) != 1:
        raise DataError(f"{where}: {len(target)} targets; only questions with one are supported")
    score = (sample.get("scores") or {}).get(scorer) or {}
    choices = sample.get("choices") or []
    return Prediction(
        id=name,
        where=where,
        text=None if error else text,
        gold=str(target[0] if isinstance(target, list) else target).strip(),
        options=tuple(zip(LETTERS, (str(c) for c in choices), strict=False)),
        correct=None if error else truth(score.get("value")),
        question=_question(sample.get("input")),
        error=" ".join(error.split())[:200],
    )


def _completion(output: Mapping[str, Any]) -> str:
    if output.get("completion"):
        return str(output["completion"])
    choices = output.get("choices") or []
    content = choices[0].get("message", {}).get("content", "") if choices else ""
    return _texts(content)


def _question(asked: Any) -> str:
    """Return the text of the last user message, or the plain input."""
    if not isinstance(asked, list):
        return str(asked or "")
    users = [message for message in asked if message.get("role") == "user"]
    return _texts(users[-1].get("content", "")) if users else ""


def _texts(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(str(part.get("text", "")) for part in content if part.get("type") == "text")

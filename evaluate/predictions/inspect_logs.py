"""Predictions in Inspect logs: ``.json``, or ``.eval`` through the inspect_ai package."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flipbench.benchmarks.tables import check_file
from flipbench.core.errors import DataError, nearest, need
from flipbench.core.limits import TABLE_BYTES, check_zip
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
        check_zip(path, TABLE_BYTES, path)
        content: dict[str, Any] = log.read_eval_log(str(path)).model_dump(mode="json")
    except DataError:
        raise
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
    if not isinstance(samples, list) or not samples:
        raise DataError(
            f"{path}: the log has no samples (status: {str(log.get('status')):.40}); run the"
            " evaluation to the end with log_samples on"
        )
    for number, sample in enumerate(samples, 1):
        if not isinstance(sample, Mapping):
            where = f"{path.name}, sample {number}"
            raise DataError(f"{where}: {type(sample).__name__}, not an object; write the log again")
    scorers = list(dict.fromkeys(name for s in samples for name in _object(s, "scores", path.name)))
    if scorer and scorer not in scorers:
        raise DataError(
            f"{path}: there is no scorer {scorer!r} (found: {', '.join(scorers) or 'none'})"
            + nearest(scorer, scorers)
        )
    chosen = scorer or (scorers[0] if len(scorers) == 1 else "")
    about = _object(log, "eval", path.name)
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
    error = str(_object(sample, "error", where).get("message") or "")
    output = _object(sample, "output", where)
    text = None if error else _completion(output, where)
    if not error and not (text or "").strip():
        error = str(output.get("error") or "there is no reply")
    target = sample.get("target", "")
    if isinstance(target, list) and len(target) != 1:
        raise DataError(f"{where}: {len(target)} targets; only questions with one are supported")
    score = _object(_object(sample, "scores", where), scorer, where)
    choices = _list(sample, "choices", where)
    return Prediction(
        id=name,
        where=where,
        text=None if error else text,
        gold=str(target[0] if isinstance(target, list) else target).strip(),
        options=tuple(zip(LETTERS, (str(c) for c in choices), strict=False)),
        correct=None if error else truth(score.get("value")),
        question=_question(sample.get("input"), where),
        error=" ".join(error.split())[:200],
        group=id_text(_object(sample, "metadata", where).get("group")),
        cut_off=_stop_reason(output, where) in ("max_tokens", "model_length"),
    )


def _stop_reason(output: Mapping[str, Any], where: str) -> str:
    choices = _list(output, "choices", where)
    return (
        str(_object({"choice": choices[0]}, "choice", where).get("stop_reason")) if choices else ""
    )


def _completion(output: Mapping[str, Any], where: str) -> str:
    if output.get("completion"):
        return str(output["completion"])
    choices = _list(output, "choices", where)
    return _texts(_object({"choice": choices[0]}, "choice", where), where) if choices else ""


def _question(asked: Any, where: str) -> str:
    """Return the text of the last user message, or the plain input."""
    if not isinstance(asked, list):
        return str(asked or "")
    messages = [_object({"input": message}, "input", where) for message in asked]
    users = [message for message in messages if message.get("role") == "user"]
    return _texts({"message": users[-1]}, where) if users else ""


def _texts(choice: Mapping[str, Any], where: str) -> str:
    """Return the text of a choice's message."""
    content = _object(choice, "message", where).get("content")
    if isinstance(content, str):
        return content
    parts = _list({"content": content}, "content", where)
    texts = [_object({"content": part}, "content", where) for part in parts]
    return "\n".join(str(part.get("text", "")) for part in texts if part.get("type") == "text")


def _object(parent: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    """Return an object in a log, or an empty one if it is missing or null."""
    value = parent.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise DataError(
            f"{where}: {key!r} is {type(value).__name__}, not an object; write the log again"
        )
    return value


def _list(parent: Mapping[str, Any], key: str, where: str) -> list[Any]:
    """Return a list in a log, or an empty one if it is missing or null."""
    value = parent.get(key)
    if value is not None and not isinstance(value, list):
        raise DataError(
            f"{where}: {key!r} is {type(value).__name__}, not a list; write the log again"
        )
    return value or []

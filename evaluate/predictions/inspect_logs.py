"""Predictions in Inspect logs: ``.json``, or ``.eval`` through the inspect_ai package."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from flipbench.benchmarks.tables import check_file, join_names
from flipbench.core.errors import DataError, nearest, need, shorten
from flipbench.core.limits import TABLE_BYTES, check_zip
from flipbench.prompting.prompts import LETTERS

from .prediction import Prediction, PredictionFile, id_text, truth


class _Message(BaseModel):
    role: str | None = None
    content: str | list[dict[str, Any]] | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        parts = [part for part in self.content or () if part.get("type") == "text"]
        return "\n".join(str(part.get("text", "")) for part in parts)


class _Choice(BaseModel):
    message: _Message | None = None
    stop_reason: str | None = None


class _Output(BaseModel, coerce_numbers_to_str=True):
    completion: str | None = None
    choices: list[_Choice] | None = None
    error: str | None = None


class _Sample(BaseModel, coerce_numbers_to_str=True):
    """What is read of a sample; Inspect's own class would refuse logs of other versions."""

    id: str | None = None
    epoch: int | None = None
    input: str | list[_Message] | None = None
    choices: list[str] | None = None
    target: str | list[str] | None = None
    output: _Output | None = None
    scores: dict[str, dict[str, Any]] | None = None
    metadata: dict[str, Any] | None = None
    error: dict[str, Any] | None = None


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
    raw_samples = log.get("samples") or []
    if not isinstance(raw_samples, list) or not raw_samples:
        raise DataError(
            f"{path}: the log has no samples (status: {str(log.get('status')):.40}); run the"
            " evaluation to the end with log_samples on"
        )
    places = [f"{path.name}, sample {number}" for number in range(1, len(raw_samples) + 1)]
    samples = list(map(_sample, raw_samples, places))
    scorers = list(dict.fromkeys(name for sample in samples for name in sample.scores or ()))
    if scorer and scorer not in scorers:
        raise DataError(
            f"{path}: there is no scorer {scorer!r} (found: {join_names(scorers) or 'none'})"
            + nearest(scorer, scorers)
        )
    marker = scorer or (scorers[0] if len(scorers) == 1 else "")
    predictions = tuple(
        _prediction(sample, place, marker)
        for sample, place in zip(samples, places, strict=True)
        if epoch is None or sample.epoch == epoch
    )
    if not predictions:
        raise DataError(f"{path}: no sample belongs to epoch {epoch}; they start at 1")
    about = log.get("eval")
    if not isinstance(about, Mapping):
        raise DataError(f"{path}: 'eval' is no object; write the log again")
    model, task = str(about.get("model", "")), str(about.get("task", ""))
    return PredictionFile(path, "inspect", predictions, model, task)


def _sample(value: Any, place: str) -> _Sample:
    if not isinstance(value, Mapping):
        raise DataError(f"{place}: {type(value).__name__}, not an object; write the log again")
    try:
        return _Sample.model_validate(value)
    except ValidationError as error:
        details = error.errors()[0]
        key = ".".join(str(step) for step in details["loc"])
        problem = shorten(f"{key}: {details['msg']}", 300)
        raise DataError(f"{place}: {problem}; write the log again") from error


def _prediction(sample: _Sample, place: str, scorer: str) -> Prediction:
    name = id_text(sample.id)
    if not name:
        raise DataError(f"{place}: the sample has no id")
    output = sample.output or _Output()
    choice = output.choices[0] if output.choices else _Choice()
    text = output.completion or (choice.message.text if choice.message else "")
    error = str((sample.error or {}).get("message") or "")
    if not error and not text.strip():
        error = output.error or "there is no reply"
    targets = sample.target if isinstance(sample.target, list) else [sample.target or ""]
    if len(targets) != 1:
        raise DataError(f"{place}: {len(targets)} targets; only questions with one are supported")
    score = (sample.scores or {}).get(scorer, {})
    question = sample.input or ""
    if not isinstance(question, str):
        users = [message for message in question if message.role == "user"]
        question = users[-1].text if users else ""
    return Prediction(
        id=name,
        where=place,
        text=None if error else text,
        gold=targets[0].strip(),
        options=tuple(zip(LETTERS, sample.choices or (), strict=False)),
        correct=None if error else truth(score.get("value")),
        question=question,
        error=" ".join(error.split())[:200],
        group=id_text((sample.metadata or {}).get("group")),
        judged_by=id_text((sample.metadata or {}).get("judged_by")),
        cut_off=choice.stop_reason in ("max_tokens", "model_length"),
    )

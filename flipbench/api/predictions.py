"""The perturbation gap of answers that exist already, in files or in Python."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from flipbench.api.options import Option
from flipbench.api.stages import display
from flipbench.core.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

    from flipbench.core.records import Score
    from flipbench.evaluate.predictions.gap_table import GapTable
    from flipbench.evaluate.predictions.prediction import PredictionFile
    from flipbench.evaluate.protocol.rules import Verdict

    Answers = str | Path | pd.DataFrame | Mapping[str, bool | None] | Sequence[bool | None]


def _two_files(pair: str) -> tuple[Path, Path]:
    """Return the two files of a reference that is written as one text."""
    original, comma, perturbed = pair.partition(",")
    if not (original and comma and perturbed):
        raise ConfigError(
            f"--reference {pair}: give a clean model's two files, separated by a comma:"
            " --reference ORIGINAL,PERTURBED"
        )
    return Path(original), Path(perturbed)


Columns = Annotated[Mapping[str, str] | None, Option("--column", metavar="NAME=COLUMN")]
Scoring = Annotated[Literal["auto", "parse", "file"], Option("--scoring")]


@dataclass(frozen=True, repr=False)
class GapResult(display.Result):
    """The gap of one model by rule; a notebook shows it as a table.

    Attributes
    ----------
    content : GapTable
        The scores, and the forms they can be written in: ``content.markdown()``, ``latex``,
        ``csv``, ``json``.
    """

    content: GapTable

    @property
    def verdict(self) -> Verdict:
        """What the gap comes to; "not_detected" does not mean clean.

        With references, by the comparison with them; without, by old answers or, for exchangeable
        pairs, by the exact McNemar test. "inconclusive" where a gap is no evidence
        (``str(result)`` says why, and what to do).
        """
        return self.content.verdict

    @property
    def gap(self) -> Score:
        """The score of the McNemar test; its statistic is the gap, a fraction."""
        return self.content.by_rule["mcnemar"]

    @property
    def scores(self) -> Sequence[Score]:
        """Rules sign, mcnemar and, with a reference, relative."""
        return self.content.scores

    def to_frame(self, *, sign: bool = False) -> pd.DataFrame:
        """Return one row for each rule; see `flipbench.api.display.scores_frame`."""
        attraction = self.content.attraction
        scores = [*self.scores, *([attraction] if attraction else [])]
        return display.scores_frame(scores, [self.content.decision], sign=sign)

    def __str__(self) -> str:
        """Return the gap and its verdict in a sentence."""
        return self.content.sentence()

    def __repr__(self) -> str:
        return f"<GapResult {self.verdict}: {self}>"

    def _repr_html_(self) -> str:
        return display.html(str(self), [self.content.table()])


def gap(
    original: Answers,
    perturbed: Answers,
    *,
    model: str = "",
    benchmark: str = "",
    reference: Annotated[
        tuple[Answers, Answers] | Sequence[tuple[Answers, Answers]] | None,
        Option("--reference", metavar="ORIGINAL,PERTURBED", parse=_two_files),
    ] = None,
    columns: Columns = None,
    scoring: Scoring = "auto",
    scorer: str = "",
    epoch: int | None = None,
    keep: str | Path | Collection[str] | None = None,
    judged_by: str = "",
    exchangeable: Annotated[bool | None, Option("--exchangeable/--found")] = None,
    sequential: bool = False,
    sign: bool = False,
) -> GapResult:
    """Compare predictions made before, by VLMEvalKit, lmms-eval, Inspect or in a table.

    Parameters
    ----------
    original : str, Path, DataFrame, mapping or sequence
        Predictions on the original items.

        In Python also a data frame with the columns of a table, or right and wrong: a mapping from
        item id to bool, or a sequence of shape (n_items,) in the same order. None is no answer.
    perturbed : str, Path, DataFrame, mapping or sequence
        Predictions on the perturbed items.
    model : str
        Name of the model in tables.
    benchmark : str
        Name of the benchmark in tables.
    reference : (original, perturbed) or sequence of them, optional
        The same two files of a clean model, separated by a comma; may be repeated.

        The comparison with clean models then decides. One is a start, ten are worth having.
    columns : mapping of str to str, optional
        A column that the files name differently.
    scoring : {"auto", "parse", "file"}
        Auto: our parser if there are replies and right letters, else the file's own marks.
    scorer : str
        Which scorer of an Inspect log.
    epoch : int, optional
        Which epoch of an Inspect log.
    keep : str, Path or collection of str, optional
        A file of item ids to compare, one on each line.
    judged_by : str
        Who judged that the perturbed images show their new answers.

        Pairs that nobody judged have no verdict "contaminated" without a reference.
    exchangeable : bool, optional
        Neither version is harder by construction; or the pairs were found. By default the
        perturbed versions are edits.

        True, for instance, if a coin decided which of two scenes is the original: the gap alone
        then proves memory. Edits may be harder or easier.
    sequential : bool
        More items will follow: evidence valid at every look.

        Items count in the file's order.
    sign : bool
        Show the paper's sign rule too.

    Raises
    ------
    ConfigError
        If answers are neither files, data frames nor right and wrong.
    DataError
        If a file cannot be read or is of another model than its companion, the two do not hold the
        same items, or no item is answered in both versions.

    Examples
    --------
    >>> import flipbench as fb
    >>> answers = [True] * 18 + [False] * 2, [True] * 9 + [False] * 11
    >>> result = fb.gap(*answers, model="mine", exchangeable=True)
    >>> result.gap.statistic, result.verdict
    (-0.45, 'contaminated')
    """
    from flipbench.evaluate.predictions.gap import gap_of_predictions
    from flipbench.evaluate.predictions.read import ReadOptions, read_ids

    table = gap_of_predictions(
        _readable(original, "original"),
        _readable(perturbed, "perturbed"),
        model=model,
        benchmark=benchmark,
        options=ReadOptions(dict(columns or {}), scorer, epoch),
        scoring=scoring,
        keep=read_ids(Path(keep)) if isinstance(keep, str | Path) else keep,
        references=[
            (
                _readable(original_answers, "reference, original"),
                _readable(perturbed_answers, "reference, perturbed"),
            )
            for original_answers, perturbed_answers in _references(reference)
        ],
        judged_by=judged_by,
        exchangeable=exchangeable,
        sequential=sequential,
    )
    return GapResult(replace(table, show_sign=sign))


def _references(
    reference: tuple[Answers, Answers] | Sequence[tuple[Answers, Answers]] | None,
) -> list[tuple[Answers, Answers]]:
    """Return several references; one is a tuple of two that are no tuples themselves."""
    if reference is None:
        return []
    is_single = isinstance(reference, tuple) and not any(isinstance(r, tuple) for r in reference)
    return [reference] if is_single else list(reference)  # type: ignore[list-item, arg-type]


def _readable(answers: Answers, name: str) -> Path | PredictionFile:
    """Return a file's path, or answers from Python as if they had been read from a file.

    Raises
    ------
    ConfigError
        If they are neither a path, a data frame, nor right and wrong.
    """
    import pandas as pd

    if isinstance(answers, str | Path):
        return Path(answers)
    from flipbench.benchmarks.tables import Row
    from flipbench.evaluate.predictions.prediction import Prediction, PredictionFile
    from flipbench.evaluate.predictions.read import table_predictions

    if isinstance(answers, pd.DataFrame):
        records = answers.to_dict("records")
        rows = [
            Row(f"{name}, row {number}", {str(key): cell for key, cell in row.items()})
            for number, row in enumerate(records)
        ]
        return table_predictions(Path(name), rows)
    if isinstance(answers, Mapping):
        items = {str(item_id): is_right for item_id, is_right in answers.items()}
    elif isinstance(answers, Sequence | pd.Series) or hasattr(answers, "tolist"):
        values = answers.tolist() if hasattr(answers, "tolist") else answers
        items = {str(number): is_right for number, is_right in enumerate(values)}
    else:
        raise ConfigError(
            f"{name}: {type(answers).__name__} is no answers; give a file, a data frame with a"
            " column of ids, a mapping from item id to right or wrong, or a sequence of these"
        )
    predictions = tuple(
        Prediction(
            id=item_id,
            where=f"{name}, {item_id}",
            text=None,
            gold="",
            correct=_right_or_wrong(is_right, f"{name}, {item_id}"),
            error="" if is_right is not None and is_right == is_right else "there is no answer",
        )
        for item_id, is_right in items.items()
    )
    return PredictionFile(Path(name), "Python", predictions)


def _right_or_wrong(value: object, place: str) -> bool | None:
    """Return a truth value, 0 or 1 as a bool; None, and NaN, are no answer."""
    if value is None or value != value:
        return None
    if isinstance(value, str) or value not in (0, 1):
        raise ConfigError(
            f"{place}: {value!r} is neither right (True, 1) nor wrong (False, 0) nor None; replies"
            " are read from files and data frames, with columns id, prediction, answer and A, B, …"
        )
    return bool(value)

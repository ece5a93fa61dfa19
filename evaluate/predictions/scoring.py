"""Right or wrong: by flipbench's own parser, or by the file's own marks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from flipbench.benchmarks.build import answer_letter, find_answer
from flipbench.benchmarks.tables import RowError
from flipbench.core.errors import ConfigError, DataError
from flipbench.prompting.parsing import parse_choice
from flipbench.prompting.prompts import LETTERS

from .prediction import Prediction, PredictionPair, listing

Scoring = Literal["auto", "parse", "file"]
_NO_OPTION = "the right answer is none of the options"
_SAME = "the right answer is the same in both versions"
_YES_NO = ("yes", "no")


def score_pairs(
    pairs: Sequence[PredictionPair], scoring: Scoring = "auto"
) -> tuple[list[PredictionPair], Scoring, list[str]]:
    """Score all replies in one way, and list what could not be used.

    "parse" reads replies with `flipbench.prompting.parsing.parse_choice`; "file" uses the file's
    own marks; "auto" parses if the file has replies and right letters, otherwise uses the marks.

    Returns
    -------
    (list of PredictionPair, {"parse", "file"}, list of str)
        The usable items; how they were scored; notes on what was left out or is inconsistent.

    Raises
    ------
    DataError
        If no item can be scored that way.
    """
    if scoring not in ("auto", "parse", "file"):
        raise ConfigError(f"scoring {scoring!r}: choose auto, parse or file")
    if scoring != "file":
        scored_pairs, left_out = _parse(pairs)
        if scored_pairs or left_out[_SAME]:
            notes = [
                f"{len(ids)} {'item is' if len(ids) == 1 else 'items are'} left out because"
                f" {reason}: {listing(ids)}"
                for reason, ids in left_out.items()
                if ids
            ]
            return scored_pairs, "parse", notes + _disagreements(scored_pairs)
        if scoring == "parse":
            example = pairs[0].original
            raise DataError(
                f"{example.where}: replies cannot be parsed: the right answer {example.gold!r} is"
                " not a letter and there are no options; add columns A, B, …, or use the file's"
                " own marks"
            )
    _check_replies(pairs)
    unmarked = [
        prediction.where
        for pair in pairs
        for prediction in pair.sides.values()
        if prediction.correct is None and not prediction.error
    ]
    if unmarked:
        raise DataError(
            f"{unmarked[0]}: neither a reply with a right letter, yes or no, nor a mark of 0 or 1,"
            f" and {len(unmarked) - 1} more like it; add the columns answer (with A, B, … if it is"
            " an option's text) and prediction, or a column correct of 0 and 1"
        )
    scored_pairs = [PredictionPair(_by_mark(p.original), _by_mark(p.perturbed)) for p in pairs]
    note = (
        "right and wrong are the files' own marks; the number of replies that name no option is not"
        " known"
    )
    is_marked = any(p.original.right is not None for p in scored_pairs)
    return scored_pairs, "file", [note] if is_marked else []


def _parse(pairs: Sequence[PredictionPair]) -> tuple[list[PredictionPair], dict[str, list[str]]]:
    """Return the items scored, and the ids of those left out, by reason.

    Answers "yes" and "no" without options are read as words, except in a file that marks replies
    and has other answers in free form, which only the marks cover.
    """
    scored_pairs: list[PredictionPair] = []
    left_out: dict[str, list[str]] = {_NO_OPTION: [], _SAME: []}
    golds = [answer_letter(p.gold) for pair in pairs for p in pair.sides.values()]
    n_letters = max([4, *(LETTERS.index(letter) + 1 for letter in golds if letter)])
    if any(all(getattr(p, side).text is None for p in pairs) for side in ("original", "perturbed")):
        return scored_pairs, left_out
    is_marked = any(pair.original.correct is not None for pair in pairs)
    reads_words = not is_marked or all(map(_is_yes_no, pairs))
    for pair in pairs:
        options = pair.original.options or pair.perturbed.options
        if reads_words and _is_yes_no(pair):
            texts, labels, n_options = [*_YES_NO], " ".join(_YES_NO), len(_YES_NO)
            old_gold, new_gold = (_YES_NO.index(_word(p.gold)) for p in pair.sides.values())
        else:
            texts, labels, n_options = _option_texts(options, n_letters), LETTERS, len(options)
            old_gold, new_gold = (_gold(p.gold, options) for p in pair.sides.values())
        if -1 in (old_gold, new_gold) or old_gold == new_gold:
            left_out[_NO_OPTION if -1 in (old_gold, new_gold) else _SAME].append(pair.id)
            continue
        replies = (
            _parsed(pair.original, texts, old_gold, labels),
            _parsed(pair.perturbed, texts, new_gold, labels),
        )
        scored_pairs.append(PredictionPair(*replies, (old_gold, new_gold), n_options))
    return scored_pairs, left_out


def _check_replies(pairs: Sequence[PredictionPair]) -> None:
    """Raise a DataError if one file has replies or marks, and the other has neither."""
    sides = [pair.original for pair in pairs], [pair.perturbed for pair in pairs]
    empty = [side for side in sides if all(p.text is None and p.correct is None for p in side)]
    if len(empty) == 1:
        example = empty[0][0]
        raise DataError(
            f"{example.where}: {example.error or 'there is no reply'}, nor is there one to any of"
            f" the {len(pairs)} items of this file; run the model on it again"
        )


def _word(answer: str) -> str:
    return answer.strip().rstrip(".").casefold()


def _is_yes_no(pair: PredictionPair) -> bool:
    """Return whether the right answers are yes or no, and there are no options."""
    return all(not p.options and _word(p.gold) in _YES_NO for p in pair.sides.values())


def _gold(answer: str, options: Sequence[tuple[str, str]]) -> int:
    """Return the right option's place in the alphabet; -1 if the answer matches none."""
    if not options:
        letter = answer_letter(answer)
        return LETTERS.index(letter) if letter else -1
    try:
        return LETTERS.index(options[find_answer(answer, options, "letter")[0]][0])
    except RowError:
        return -1


def _option_texts(options: Sequence[tuple[str, str]], n_letters: int) -> list[str]:
    """Return the options' texts by letter, "" for a missing one; all "" if none are known."""
    if not options:
        return [""] * n_letters
    texts = dict(options)
    return [texts.get(letter, "") for letter in LETTERS[: LETTERS.index(max(texts)) + 1]]


def _parsed(prediction: Prediction, options: Sequence[str], gold: int, labels: str) -> Prediction:
    if prediction.error or prediction.text is None:
        return prediction
    choice = parse_choice(prediction.text, options, labels, cut_off=prediction.cut_off)
    return replace(prediction, right=choice == gold, choice=choice)


def _by_mark(prediction: Prediction) -> Prediction:
    return prediction if prediction.error else replace(prediction, right=prediction.correct)


def _disagreements(scored_pairs: Sequence[PredictionPair]) -> list[str]:
    """Return a note for each side on which the file's own marks differ from the parsed replies."""
    notes = []
    for side in ("original", "perturbed"):
        replies = [pair.sides[side] for pair in scored_pairs]
        comparable = [r for r in replies if None not in (r.right, r.correct)]
        differ = [r.id for r in comparable if r.right != r.correct]
        if differ:
            notes.append(
                f"{side}: the file's own marks differ from the replies as parsed here for"
                f" {len(differ)} of {len(comparable)} items: {listing(differ)}; the parsed replies"
                " count"
            )
    return notes

"""Which verdicts count, and the reasons and notes in people's verdicts."""

from __future__ import annotations

from collections.abc import Iterable

from flipbench.core.records import Verdict

REASONS = (
    "wrong answer",
    "ambiguous",
    "text illegible",
    "object missing",
    "image unchanged",
    "unsafe",
)
WITHDRAWN = "(withdrawn)"
ANSWERED_BLIND = "(answered blind)"
_NOTE = "note"


def join_reason(reason: str, note: str) -> str:
    """Return the text stored for a reason (one of `REASONS`, or none) and a note.

    >>> join_reason("ambiguous", "two cars"), join_reason("", "two cars")
    ('ambiguous: two cars', 'note: two cars')
    """
    return f"{reason or _NOTE}: {note}" if note else reason


def split_reason(text: str) -> tuple[str, str]:
    """Return the reason and note in a verdict's text; any other text is a note.

    >>> split_reason("ambiguous: two cars"), split_reason("blurred")
    (('ambiguous', 'two cars'), ('', 'blurred'))
    """
    if text in REASONS or text in (WITHDRAWN, ANSWERED_BLIND):
        return text, ""
    head, colon, note = text.partition(": ")
    if colon and (head in REASONS or head == _NOTE):
        return ("" if head == _NOTE else head), note
    return "", text


def is_open(verdict: Verdict) -> bool:
    """Return whether a person has withdrawn the verdict or only answered blind so far."""
    return verdict.rater_kind == "person" and verdict.reason in (WITHDRAWN, ANSWERED_BLIND)


def effective_verdicts(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Return the verdicts that count.

    A person's changed verdict is a new record whose ``run`` is one higher: only the newest by each
    person on each image counts, and only if it is not open. For judges, ``run`` numbers
    repetitions, so all of their verdicts count, as do those of rules.
    """
    newest: dict[tuple[str, ...], Verdict] = {}
    for verdict in verdicts:
        key: tuple[str, ...] = (verdict.edit_id, verdict.image_sha256, verdict.rater)
        key += ("",) if verdict.rater_kind == "person" else (verdict.rater_kind, str(verdict.run))
        if key not in newest or newest[key].run < verdict.run:
            newest[key] = verdict
    return [verdict for verdict in newest.values() if not is_open(verdict)]

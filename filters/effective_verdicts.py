"""What people's verdicts say: reasons, notes, changed minds; and which verdicts count."""

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
    """Return the text a verdict keeps of a reason (one of `REASONS`, or none) and a note.

    >>> join_reason("ambiguous", "two cars"), join_reason("", "two cars")
    ('ambiguous: two cars', 'note: two cars')
    """
    return f"{reason or _NOTE}: {note}" if note else reason


def split_reason(text: str) -> tuple[str, str]:
    """Return reason and note of a verdict's text; what is none of ours is a note.

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
    """Whether a person's verdict decides nothing: it was undone, or is a blind answer only."""
    undecided = verdict.reason in (WITHDRAWN, ANSWERED_BLIND)
    return verdict.rater_kind == "person" and undecided


def effective_verdicts(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Return the verdicts that count.

    A person who changes a verdict writes a new one whose ``run`` is one higher; of each person
    and image only the newest counts, and only if it is not open. ``run`` of a judge model means a
    repetition, so all of its verdicts count, as do those of rules.
    """
    newest: dict[tuple[str, ...], Verdict] = {}
    for verdict in verdicts:
        key: tuple[str, ...] = (verdict.edit_id, verdict.image_sha256, verdict.rater)
        key += ("",) if verdict.rater_kind == "person" else (verdict.rater_kind, str(verdict.run))
        if key not in newest or newest[key].run < verdict.run:
            newest[key] = verdict
    return [verdict for verdict in newest.values() if not is_open(verdict)]

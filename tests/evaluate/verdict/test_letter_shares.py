"""How much of the probability the letters hold: in words, where it is too little or notable."""

from __future__ import annotations

import pytest

from flipbench.evaluate.verdict.letter_shares import NOTABLE_SHARE, LetterShares


@pytest.mark.parametrize(
    ("shares", "beginning"),
    [
        ((0.99, 0.92), ""),
        ((0.9, 0.8), "In the replies of m the option letters together hold 85.0 % of the"),
        ((0.9, 0.4), "In 1 of 2 replies of m the option letters together hold less than half"),
    ],
)
def test_a_report_says_where_letters_hold_little(shares: tuple[float, ...], beginning: str) -> None:
    notes = LetterShares("m", shares).notes("evaluate.prompt.ask: generate", NOTABLE_SHARE)
    assert [note[: len(beginning)] for note in notes] == [beginning] * bool(beginning)
    assert all("evaluate.prompt.ask: generate" in note for note in notes)


def test_a_verdict_s_page_has_a_note_only_on_unreadable_replies() -> None:
    shares = LetterShares("m", (0.9, 0.8))
    assert shares.notes("--ask generate") == []
    assert shares.text() == ("85.0 % on average, at least 80.0 %; below one half in 0 of 2 replies")

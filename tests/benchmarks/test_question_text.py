from __future__ import annotations

import pytest

from flipbench.benchmarks.question_text import split_question
from flipbench.benchmarks.tables import RowError

LETTER = "Please answer directly with only the letter of the correct option and nothing else."
WORD = "Please answer directly with a single word or number."

LINES = [
    (f"Where is the van?\n\nA. Left\nB. Right\n{LETTER}", "A", "Where is the van?", "Left|Right"),
    (f"Which?\nA. One.\nB. 2.5 m\nC. B. Street\n{LETTER}", "C", "Which?", "One.|2.5 m|B. Street"),
    (
        f"What sign?\nA. Stop.\n\nB. A. Lincoln Ave\n{LETTER}",
        "B",
        "What sign?",
        "Stop.|A. Lincoln Ave",
    ),
    ("Is it?\n(A) Yes, it is\n(B) No: never", "B", "Is it?", "Yes, it is|No: never"),
    ("Is it?\nA) NA\nB) None\nC) null", "A", "Is it?", "NA|None|null"),
    ("A. Smith drives.\nWho is it?\nA. he\nB. she", "A", "A. Smith drives.\nWho is it?", "he|she"),
    ("Long?\nA. first half\nsecond half\nB. other", "B", "Long?", "first half\nsecond half|other"),
    (f"How many cars do you see? {WORD}", "3", "How many cars do you see?", ""),
    (f"Which letter is on the sign?\n{WORD}", "A", "Which letter is on the sign?", ""),
    ("Uphill or downhill?", "Downhill", "Uphill or downhill?", ""),
    ("How far is A. Station?\nI. guess", "3", "How far is A. Station?\nI. guess", ""),
]
INLINE = [
    ("What?\nOptions: A: a, B: b, C: c", "C", "What?", "a|b|c"),
    (
        "Where?\nOptions: A: The cup is on it., B: Left, or right, C: 3, 4, and 5, D: None",
        "A",
        "Where?",
        "The cup is on it.|Left, or right|3, 4, and 5|None",
    ),
    ("Ratio?\nOptions: A: 1:2, B: 2:1, C: X:Y", "A", "Ratio?", "1:2|2:1|X:Y"),
    ("Next?\nOptions: A: plan B: b-side, B: other", "A", "Next?", "plan B: b-side|other"),
    ("Options: none of these?\nOptions: A: yes\nB: no", "B", "Options: none of these?", "yes|no"),
    ("<image 1> What? Options: A: NaN, B: True", "B", "<image 1> What?", "NaN|True"),
    (
        "Hint: think.\nQuestion: Half?\nChoices:\n(A) no\n(B) yes, both",
        "A",
        "Hint: think.\nQuestion: Half?",
        "no|yes, both",
    ),
    ("Which? Choices:(A) A (B) B (C) C", "A", "Which?", "A|B|C"),
    ("What is written there?", "open", "What is written there?", ""),
]


@pytest.mark.parametrize(
    ("style", "raw", "answer", "stem", "options"),
    [("lines", *case) for case in LINES] + [("inline", *case) for case in INLINE],
)
def test_options_are_found(style: str, raw: str, answer: str, stem: str, options: str) -> None:
    found = split_question(raw, style, answer)
    assert "|".join(text for _, text in found.options) == options
    assert "".join(letter for letter, _ in found.options) == "ABCDE"[: len(found.options)]
    assert found.stem == stem


REFUSED = [
    ("lines", f"Which?\nA. a\nC. c\n{LETTER}", "A", "A, C"),
    ("lines", "Which?\nB. b\nC. c", "B", "B, C"),
    ("lines", "Which?\nA. a\nB. b\nB. bb", "B", "A, B, B"),
    ("lines", "Which?\nA. a\nB.\nC. c", "A", "option B is empty"),
    ("lines", "Which?\nA. a\nB. b\nChoose a letter!", "A", "follows option B"),
    ("lines", f"Yes or no? A. Yes B. No {LETTER}", "A", "no options"),
    ("lines", "Yes or no?", "(B)", "no options"),
    ("lines", f"Where?\n{LETTER}", "Left", "asks for a letter"),
    ("lines", "Which?\nA. only", "A", "no options"),
    ("inline", "What? A: a, B: b", "A", "no options"),
    ("inline", "What?\nOptions: B: b, C: c", "B", "no option A follows"),
    ("inline", "What?\nOptions: A: a, C: c", "A", "A, C"),
    ("inline", "Vitamin?\nOptions: A: vitamin, D: drops, B: none", "A", "A, D, B"),
    ("inline", "What?\nOptions: A: a", "A", "letters in the question are A"),
    ("inline", "What?\nOptions: A: , B: b", "B", "option A is empty"),
    ("inline", "Options: A: a, B: b\nOptions: A: c, B: d", "A", "2 lists"),
    ("inline", "What?\nOptions: A: a, B: b\nAnswer now.", "A", "follows option B"),
]


@pytest.mark.parametrize(("style", "raw", "answer", "says"), REFUSED)
def test_ambiguous_questions_are_refused(style: str, raw: str, answer: str, says: str) -> None:
    with pytest.raises(RowError) as caught:
        split_question(raw, style, answer)
    assert caught.value.kind == "options"
    assert says in caught.value.what

"""The embedded world's questions in German, by templates: a translated leak without a translator.

Sentences name shapes and colours as attributes ("das Objekt mit der Form Kreis"), which needs no
inflection.
"""

from __future__ import annotations

from flipbench.core.records import Item
from flipbench.shapes.questions import Question, QuestionFamily
from flipbench.shapes.scene import COLORS, SHAPES

WORDS = {
    **dict(zip(SHAPES, ("Kreis", "Quadrat", "Dreieck", "Stern", "Kreuz", "Ring"), strict=True)),
    **dict(
        zip(
            COLORS,
            ("rot", "orange", "gelb", "grün", "blau", "lila", "weiß", "schwarz"),
            strict=True,
        )
    ),
    "top left": "oben links",
    "top right": "oben rechts",
    "bottom left": "unten links",
    "bottom right": "unten rechts",
    "left": "links",
    "right": "rechts",
    "above": "über",
    "below": "unter",
}
TEMPLATES = {
    "color": "Welche Farbe hat das Objekt {a}?",
    "shape": "Welche Form hat das Objekt {a}?",
    "number": "Wie viele Objekte {a} gibt es?",
    "place": "Wo ist das Objekt {a}?",
    "relation": "Ist das Objekt {a} {x} oder {y} dem Objekt {b}?",
    "neighbor": "Welche Farbe hat das Objekt direkt {beside} dem Objekt {a}?",
}


def in_german(item: Item) -> tuple[str, list[str]]:
    """Return the question and the options of one of the world's items in German.

    >>> question = Question("relation", "star", "ring")
    >>> _translated(question)
    'Ist das Objekt mit der Form Stern links oder rechts von dem Objekt mit der Form Ring?'
    """
    question = QuestionFamily.from_json(item.extra["family"]).question
    return _translated(question), [WORDS.get(text, text) for text in item.options or ()]


def _translated(question: Question) -> str:
    beside = "unter" if question.vertical else "rechts neben"
    text = TEMPLATES[question.kind].format(
        a=_with(question.about),
        b=_with(question.other) if question.other else "",
        x="über" if question.vertical else "links",
        y="unter" if question.vertical else "rechts von",
        beside=beside,
    )
    return text


def _with(attribute: str) -> str:
    return f"mit der {'Form' if attribute in SHAPES else 'Farbe'} {WORDS[attribute]}"

"""What a model lacks: accuracy with images only, with hints, with a summary, with its own texts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

from flipbench.config.experiment import HintSettings
from flipbench.core.errors import DataError
from flipbench.core.rates import Rate
from flipbench.core.records import FIRST_REPLY, Item, Probe
from flipbench.models.chat.prompt_files import PromptFile, load_prompt
from flipbench.models.engine import Answers
from flipbench.models.protocols import Capability, needs_of
from flipbench.prompting.prompts import PromptSettings, right_option
from flipbench.prompting.wrappers import answer_text
from flipbench.reporting import formats
from flipbench.reporting.tables import Cell, Content, Table, build_table

from ..statistics.paired import PairedOutcome, adjust_p_values, paired_comparison

PROMPTS = Path(__file__).parent / "prompts"
IMAGES_ONLY = "images only"
Text = Literal["hints", "summary"]
_HEADINGS: Mapping[Text, str] = {
    "hints": "What the images show:",
    "summary": "Summary of the case:",
}
_GIVEN: Mapping[str, tuple[Text, ...]] = {
    "hints": ("hints",),
    "summary": ("summary",),
    "hints and summary": ("hints", "summary"),
}
_OWN: Mapping[str, Text] = {"own hints": "hints", "own summary": "summary"}
VARIANTS = (IMAGES_ONLY, *_GIVEN, *_OWN)


@dataclass(frozen=True)
class HintedItem:
    """An item's probes by variant, and the texts that they add.

    Attributes
    ----------
    probes : mapping of str to Probe
        Without the variants whose text the item lacks.
    requests : mapping of str to Probe
        The probes that ask for the model's own texts, by the variant that quotes the reply.
    texts : mapping of str to str
        The given texts by variant.
    """

    item: Item
    gold: int
    probes: Mapping[str, Probe]
    requests: Mapping[str, Probe]
    texts: Mapping[str, str]

    @property
    def cluster(self) -> str:
        """What it shares with other items: its group, or its images."""
        return self.item.group or " ".join(ref.sha256 for ref in self.item.images)


@dataclass(frozen=True)
class HintResult:
    """One model's answers in one variant, beside those to the same items with images only.

    Attributes
    ----------
    paired : PairedOutcome
        First images only, then the variant; its "gap" is what the text adds.
    p_holm : float
        Two-sided exact p-value, corrected over the variants of the model.
    n_unparsed : int
        Replies that name no option; they count as wrong.
    reveals : Rate
        Share of the items whose added text contains the right option's words.
    """

    model: str
    variant: str
    paired: PairedOutcome
    p_holm: float
    n_unparsed: int
    reveals: Rate


def hinted_items(
    items: Sequence[Item], prompt_settings: PromptSettings, settings: HintSettings
) -> tuple[list[HintedItem], dict[str, int]]:
    """Return the items that can be asked, and how many others there are, by reason.

    The texts are those under ``settings.hints`` and ``settings.summary`` in an item's ``extra``: a
    text, or a list with one for each image. Blank texts are missing ones.

    Raises
    ------
    DataError
        If such an entry is neither a text nor a list of texts, or none of the items has any.
    """
    hinted, left_out = [], dict.fromkeys(("without an image", "free-form", "with one option"), 0)
    for item in items:
        gold = right_option(item)
        if not item.images:
            left_out["without an image"] += 1
        elif gold is None:
            left_out["free-form"] += 1
        elif item.options is not None and len(item.options) < 2:
            left_out["with one option"] += 1
        else:
            hinted.append(_hinted(item, gold, prompt_settings, settings))
    if not settings.own and not any(item.texts for item in hinted):
        raise DataError(
            f"no item has a text under {settings.hints!r} or {settings.summary!r} in 'extra': name"
            " the columns in benchmark.extra_columns and evaluate.hints, or set own: true"
        )
    return hinted, {reason: n for reason, n in left_out.items() if n}


def _hinted(
    item: Item, gold: int, prompt_settings: PromptSettings, settings: HintSettings
) -> HintedItem:
    keys: dict[Text, str] = {"hints": settings.hints, "summary": settings.summary}
    texts_by_part = {part: text for part, key in keys.items() if (text := given_text(item, key))}
    texts = {
        variant: _context({part: texts_by_part[part] for part in parts})
        for variant, parts in _GIVEN.items()
        if all(part in texts_by_part for part in parts)
    }
    probes = {IMAGES_ONLY: prompt_settings.closed_probe(item, IMAGES_ONLY)}
    for variant, text in texts.items():
        question = f"{text}\n\n{item.question}"
        probes[variant] = prompt_settings.closed_probe(item, variant, question=question)
    requests = {}
    for variant, part in _OWN.items() if settings.own else ():
        requests[variant] = Probe(
            item_id=item.id,
            variant=f"{variant}, asked for",
            images=item.images,
            prompt=_request(part, item),
            ask="generate",
            max_new_tokens=settings.max_new_tokens,
        )
        question = f"{_context({part: FIRST_REPLY})}\n\n{item.question}"
        quoting = prompt_settings.closed_probe(item, variant, question=question)
        probes[variant] = quoting.revised(follows=requests[variant].id)
    return HintedItem(item, gold, probes, requests, texts)


def given_text(item: Item, key: str) -> str:
    r"""Return the text under ``key`` in an item's ``extra``; a list becomes one line per image.

    A text that is a list in JSON, as in a cell of a table, is read as one.

    Raises
    ------
    DataError
        If it is neither a text nor a list of texts.
    """
    value = item.extra.get(key)
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except ValueError:
            pass  # a text that begins with a bracket
    if value is None or isinstance(value, str):
        return (value or "").strip()
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise DataError(
            f"{item.subject}: extra[{key!r}] must be a text, or a list with one for each image, not"
            f" {value!r:.80}"
        )
    lines = enumerate(value, 1)
    return "\n".join(f"Image {number}: {text.strip()}" for number, text in lines if text.strip())


def probes_for_model(
    hinted: Sequence[HintedItem], can: frozenset[Capability]
) -> tuple[list[Probe], dict[str, str]]:
    """Return the probes that a model supports, and the variants it cannot be asked, with why."""
    probes: list[Probe] = []
    reasons: dict[str, str] = {}
    for variant in VARIANTS:
        of_variant = [
            by_variant[variant]
            for item in hinted
            for by_variant in (item.requests, item.probes)
            if variant in by_variant
        ]
        lacking = frozenset().union(*map(needs_of, of_variant)) - can
        if lacking:
            reasons[variant] = f"needs {', '.join(sorted(lacking))}"
        else:
            probes += of_variant
    return probes, reasons


def compare_hints(hinted: Sequence[HintedItem], answers: Answers) -> list[HintResult]:
    """Compare each variant with images only, on the items that were answered both ways.

    A model's own text that is blank counts as missing.
    """
    results, base = [], list[bool | None]()
    for variant in VARIANTS:
        outcomes, n_unparsed, reveals = list[bool | None](), 0, []
        for item in hinted:
            text = item.texts.get(variant, "")
            if variant in item.requests:
                own_text = answers.to(item.requests[variant])
                text = answer_text(own_text.text).strip() if own_text is not None else ""
            probe, reply = item.probes.get(variant), None
            if probe is not None and (text or variant == IMAGES_ONLY):
                reply = answers.to(probe)
            outcomes.append(None if reply is None else reply.choice == item.gold)
            if reply is not None:
                n_unparsed += reply.choice < 0
                reveals.append(_names_answer(text, item.item))
        base = outcomes if variant == IMAGES_ONLY else base
        paired = paired_comparison(base, outcomes, clusters=[item.cluster for item in hinted])
        rate = Rate.wilson(sum(reveals), len(reveals))
        results.append(HintResult(answers.model, variant, paired, 1.0, n_unparsed, rate))
    results = [result for result in results if result.paired.n]
    tests = [result for result in results if result.variant != IMAGES_ONLY]
    corrected = adjust_p_values([result.paired.p_two_sided for result in tests])
    p_holm = dict(zip((result.variant for result in tests), corrected, strict=True))
    return [replace(result, p_holm=p_holm.get(result.variant, 1.0)) for result in results]


def hint_table(
    results: Sequence[HintResult],
    left_out: Mapping[str, int],
    lacking: Mapping[str, Mapping[str, str]],
) -> Table:
    """Return a row for each model and variant, and what was left out in the caption."""
    notes = [f"{n} items {reason}" for reason, n in left_out.items()]
    if notes:
        notes = [f"Not asked: {', '.join(notes)}."]
    notes += [
        f"{model} was not asked with {variant}: it {reason}."
        for model, variants in lacking.items()
        for variant, reason in variants.items()
    ]

    def compared(content: Callable[[HintResult], Content]) -> Callable[[HintResult], Content]:
        return lambda row: None if row.variant == IMAGES_ONLY else content(row)

    return build_table(
        "hints",
        "Accuracy in percent (Wilson interval), and the difference to images only on the same items"
        " in percentage points (paired interval, exact two-sided McNemar test; items with the same"
        " images count as one cluster; Holm's correction over the variants of a model). A rise says"
        " that reading the images, or putting together what they show, held the model back, unless"
        " the text names the right option. No rise may also mean that the model does not read the"
        " text: a text that names the answer shows whether it does. " + " ".join(notes),
        "Images, and",
        [
            ("Accuracy", lambda row: Rate.wilson(row.paired.k_perturbed, row.paired.n)),
            (
                "Images only, same items",
                compared(lambda row: Rate.wilson(row.paired.k_original, row.paired.n)),
            ),
            ("Difference", compared(_difference)),
            ("p", compared(lambda row: formats.p_value(row.paired.p_two_sided))),
            ("p (Holm)", compared(lambda row: formats.p_value(row.p_holm))),
            (
                "Wrong → right, right → wrong",
                compared(lambda row: f"{row.paired.c}, {row.paired.b}"),
            ),
            ("Text names the answer", compared(lambda row: row.reveals)),
            ("Unparsed", lambda row: row.n_unparsed),
            ("Left out", lambda row: row.paired.n_dropped),
        ],
        {
            model: [(result.variant, result) for result in results if result.model == model]
            for model in dict.fromkeys(result.model for result in results)
        },
    )


def _difference(result: HintResult) -> Cell:
    return Cell(formats.points(result.paired.gap), formats.interval(result.paired.interval))


def _names_answer(text: str, item: Item) -> bool:
    """Return whether a text contains the right option's words, and not within other words."""
    answer = re.escape(" ".join(item.answer_text.casefold().split()).rstrip("."))
    match = re.search(rf"(?<!\w){answer}(?!\w)", " ".join(text.casefold().split()), re.ASCII)
    return bool(answer) and match is not None


def _context(texts: Mapping[Text, str]) -> str:
    return "\n\n".join(f"{_HEADINGS[part]}\n{text}" for part, text in texts.items())


def _request(part: Text, item: Item) -> str:
    prompt = own_prompt(part)
    return f"{prompt.instruction}\n\n{prompt.filled({'question': item.question})}"


@cache
def own_prompt(part: Text) -> PromptFile:
    """Return the prompt that asks a model for its own hints or summary."""
    return load_prompt(f"own-{part}", PROMPTS, needs=("question",), placeholders=("question",))

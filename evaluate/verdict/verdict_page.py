"""A verdict as files: a self-contained page, Markdown, and JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from flipbench.core.files import printable_json, without_html, write_atomically
from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Item, JsonDict, Score
from flipbench.models.engine import Answers
from flipbench.prompting.prompts import PromptSettings
from flipbench.reporting import formats, writers
from flipbench.reporting.pages import environment, text_environment

from ..diagnosis.section import diagnosis_of_one
from ..page.gallery import Gallery, make_gallery
from ..protocol.grid import GridModel
from ..report.titles import VERDICTS
from .decision import DECIDES, Decision
from .sensitivity import counts_of
from .verdict import ModelVerdict
from .verdict_tables import (
    gap_table,
    memory_of,
    other_detectors_table,
    power_table,
    readings_table,
)

N_EXAMPLES = 12
_BUDGET = 1_500_000  # bytes of thumbnails
_NUMBERS = set(
    "rule verdict statistic unit interval p_value n n_dropped accuracies unparsed warnings".split()
)
_UNKNOWN = ("unknown", "unknown")  # a pair without options
_TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class VerdictPage:
    """The content of a page.

    Attributes
    ----------
    grid : sequence of GridModel
        The model, treated as contaminated, and its clean references; for the suspicion of items.
    replies : mapping of str to (str, str)
        The model's answers on the original and the perturbed version, by item name.
    settings : mapping of str to str
        How this was made: command, versions, paths.
    notes : sequence of str
        What else is known about the model, such as its contamination card.
    """

    finding: ModelVerdict
    grid: Sequence[GridModel]
    replies: Mapping[str, tuple[str, str]]
    settings: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()

    @property
    def title(self) -> str:
        """The question that the page answers."""
        return f"Was {self.finding.model} trained on {self.finding.benchmark.name}?"


def replies_of(
    benchmark: PairedBenchmark, prompt_settings: PromptSettings, answers: Answers
) -> dict[str, tuple[str, str]]:
    """Return the options chosen on original and perturbed version, by item name.

    Pairs without options are left out.
    """

    def choice(item: Item, variant: str) -> str:
        response = answers.to(prompt_settings.probe(item, variant))
        if response is None:
            return "nothing (asking failed)"
        if response.choice < 0 or item.options is None:
            return f"no option: {response.text.strip()[:60]!r}"
        return item.options[response.choice]

    return {
        p.original.name: (choice(p.original, "original"), choice(p.perturbed, "perturbed"))
        for p in benchmark.pairs
        if p.original.options is not None
    }


def write_verdict(page: VerdictPage, folder: Path) -> Path:
    """Write ``index.html``, ``verdict.md``, ``verdict.json`` and ``scores.jsonl`` into ``folder``.

    Returns the path of the HTML page.

    Raises
    ------
    DataError
        If the folder cannot be written, or an image of the benchmark is missing.
    """
    scores = {score.id: score for score in (*page.finding.scores, page.finding.leading)}
    rows = printable_json("".join(s.model_dump_json() + "\n" for s in scores.values()))
    gallery = fallen_pairs(page)
    text = json.dumps(as_json(page, gallery), indent=2, ensure_ascii=False) + "\n"
    write_atomically(folder / "scores.jsonl", rows)
    write_atomically(folder / "verdict.json", printable_json(text))
    write_atomically(folder / "verdict.md", markdown(page, gallery))
    return write_atomically(folder / "index.html", html(page, gallery))


def fallen_pairs(page: VerdictPage, max_pairs: int = N_EXAMPLES) -> Gallery:
    """Return the pairs on which the model fell, the most suspicious first."""
    finding = page.finding
    scores = list(chain(finding.scores, *finding.references.values()))
    change = finding.gap.per_item
    fell = [pair for pair in finding.benchmark.pairs if change.get(pair.original.id, 0) < 0]
    fallen = replace(finding.benchmark, pairs=tuple(fell))
    return make_gallery(fallen, page.grid, scores, _BUDGET, max_pairs)


def markdown(page: VerdictPage, gallery: Gallery) -> str:
    """Return the verdict as Markdown."""
    texts = text_environment(_TEMPLATES)
    texts.filters["markdown"] = writers.markdown
    return without_html(texts.get_template("verdict.md.jinja").render(_content(page, gallery)))


def html(page: VerdictPage, gallery: Gallery) -> str:
    """Return the page: no script, no network, light and dark."""
    template = environment(_TEMPLATES).get_template("verdict.html.jinja")
    return template.render(_content(page, gallery))


def _content(page: VerdictPage, gallery: Gallery) -> dict[str, Any]:
    """Return what the templates name."""
    finding = page.finding
    explanation = diagnosis_of_one(finding.model, finding.explained) if finding.explained else None
    return {
        "title": page.title,
        "page": page,
        "finding": finding,
        "verdict": _stamp(finding),
        "gap": gap_table(finding),
        "readings": readings_table(finding),
        "why": explanation,
        "power": power_table(finding),
        "others": other_detectors_table(finding),
        "warnings": [formats.as_sentence(text) for text in finding.leading.warnings],
        "gallery": gallery,
        "heading": _heading(gallery, finding),
        "replies": {card.name: page.replies.get(card.name, _UNKNOWN) for card in gallery.cards},
    }


def _stamp(finding: ModelVerdict) -> str:
    text = f"Verdict: {VERDICTS[finding.verdict]}"
    if finding.verdict in ("contaminated", "not_detected"):
        return f"{text}, by {DECIDES[finding.decision.decides]}"
    kinds = ", ".join(doubt.kind for doubt in finding.decision.doubts)
    return f"{text} ({kinds})" if kinds else text


def _heading(gallery: Gallery, finding: ModelVerdict) -> str:
    b = counts_of(finding.gap).b
    if b < 2:
        return "The one item that fell" if b else "No item fell"
    quantity = "The" if len(gallery.cards) == b else f"{len(gallery.cards):,} of the"
    return f"{quantity} {b:,} items that fell, the most suspicious first"


def as_json(page: VerdictPage, gallery: Gallery) -> JsonDict:
    """Return every number of the page; full scores are in ``scores.jsonl``."""
    finding, gap, decision = page.finding, page.finding.gap, page.finding.decision
    return {
        "model": finding.model,
        "model_fingerprint": gap.model_fingerprint,
        "benchmark": finding.benchmark.name,
        "benchmark_id": finding.benchmark.id,
        "exchangeable": finding.benchmark.exchangeable,
        "verdict": finding.verdict,
        "rule": finding.leading.rule,
        "decides": decision.decides,
        "p_value": decision.p_value,
        "score_id": finding.leading.id,
        "doubts": [asdict(doubt) for doubt in decision.doubts],
        "sentence": finding.sentence,
        "qualifiers": [*finding.qualifiers, *page.notes],
        "gap": _numbers(gap),
        "against_references": [_numbers(r.score) for r in finding.of_gap.references],
        "references": sorted(finding.references),
        "references_left_out": decision.left_out,
        "panel": _panel(decision),
        "judged": asdict(finding.of_gap.judged),
        "memory": memory_of(finding.of_gap.attraction),
        "guessing": [asdict(model) for model in finding.of_gap.guessing],
        "readings": [{"detector": score.detector} | _numbers(score) for score in finding.readings],
        "what_would_change_it": finding.what_would_change,
        "pairs_needed": [asdict(row) for row in finding.sensitivity.pairs],
        "other_detectors": [
            {
                "detector": result.detector,
                "verdict": result.verdict,
                "why": result.why,
                "p_holm": result.p_adjusted,
                "also_fires_on": list(result.flagged_references),
                **({} if result.score is None else _numbers(result.score)),
            }
            for result in finding.other_detectors
        ],
        "diagnosis": finding.explained.to_json() if finding.explained else None,
        "suspect_items": [card.name for card in gallery.cards],
        "settings": dict(page.settings),
    }


def _panel(decision: Decision) -> JsonDict | None:
    """Return the difference from the mean of several references."""
    if (mean := decision.difference) is None:
        return None
    return {
        "gaps": [r.score.reference.statistic for r in decision.references if r.score.reference],
        "difference": mean.difference,
        "spread": mean.spread,
        "interval": mean.interval.model_dump(),
        "p_value": mean.p_below,
        "degrees_of_freedom": mean.df,
        "n": mean.n,
    }


def _numbers(score: Score) -> JsonDict:
    numbers = score.model_dump(mode="json", include=_NUMBERS)
    paired = score.paired.model_dump() if score.paired else {}
    return {**numbers, **paired, "reference": score.reference.model if score.reference else ""}

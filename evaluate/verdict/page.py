"""A verdict as files: a self-contained page, Markdown, and JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from flipbench.core.files import markdown_text, printable_json, without_html, write_atomically
from flipbench.core.records import JsonDict, Score
from flipbench.reporting import formats, writers
from flipbench.reporting.pages import environment

from ..diagnosis.section import diagnosis_of_one
from ..page.gallery import Gallery, make_gallery
from ..protocol.grid import GridModel
from ..report.titles import VERDICTS
from .basis import Evidence
from .decision import DECIDES, Decision
from .sensitivity import counts_of
from .tables import gap_table, memory_of, other_detectors_table, power_table, readings_table
from .verdict import ModelVerdict

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
    def evidence(self) -> Evidence:
        """What the verdict rests on."""
        return self.finding.evidence

    @property
    def title(self) -> str:
        """The question that the page answers."""
        return f"Was {self.finding.model} trained on {self.evidence.benchmark.name}?"


def write_verdict(page: VerdictPage, folder: Path) -> Path:
    """Write ``index.html``, ``verdict.md``, ``verdict.json`` and ``scores.jsonl`` into ``folder``.

    Returns the path of the HTML page.

    Raises
    ------
    DataError
        If the folder cannot be written, or an image of the benchmark is missing.
    """
    scores = {score.id: score for score in (*page.evidence.scores, page.finding.leading)}
    rows = printable_json("".join(s.model_dump_json() + "\n" for s in scores.values()))
    gallery = fallen_pairs(page)
    files = {
        "scores.jsonl": rows,
        "verdict.json": printable_json(
            json.dumps(as_json(page, gallery), indent=2, ensure_ascii=False) + "\n"
        ),
        "verdict.md": markdown(page, gallery),
        "index.html": html(page, gallery),
    }
    for name, text in files.items():
        write_atomically(folder / name, text)
    return folder / "index.html"


def fallen_pairs(page: VerdictPage, most: int = N_EXAMPLES) -> Gallery:
    """Return the pairs on which the model fell, the most suspicious first."""
    benchmark, scores = page.evidence.benchmark, page.evidence.scores
    all_scores = [*scores, *(s for own in page.evidence.references.values() for s in own)]
    change = page.finding.gap.per_item
    fell = [pair for pair in benchmark.pairs if change.get(pair.original.id, 0) < 0]
    shown = replace(benchmark, pairs=tuple(fell))
    return make_gallery(shown, page.grid, all_scores, _BUDGET, most)


def markdown(page: VerdictPage, gallery: Gallery) -> str:
    """Return the verdict as Markdown."""
    finding = page.finding
    lines = [f"# {markdown_text(page.title)}", "", finding.sentence, ""]
    lines += [f"- {text}" for text in (*finding.qualifiers, *page.notes)]
    lines += ["", "## The gap", "", writers.markdown(gap_table(finding))]
    lines += [f"- {formats.as_sentence(text)}" for text in finding.leading.warnings]
    readings = readings_table(finding)
    lines += ["", writers.markdown(readings)] if readings else []
    if (explained := page.evidence.explained) is not None:
        why = diagnosis_of_one(finding.model, explained)
        lines += ["", f"## {why.title}", "", *map(writers.markdown, why.tables)]
        lines += [f"- {note}" for note in why.notes]
    lines += ["", "## What would change this verdict", ""]
    lines += [f"- {text}" for text in finding.sensitivity.sentences]
    for heading, table in (
        ("", power_table(finding)),
        ("## Other detectors", other_detectors_table(finding)),
    ):
        lines += ["", heading, "", writers.markdown(table)] if table else []
    lines += ["", f"## {_heading(gallery, finding)}", ""]
    for card in gallery.cards:
        old, new = page.replies.get(card.name, _UNKNOWN)
        right = {option.right_in: option.text for option in card.options}
        lines.append(
            f"- `{card.name}` {' '.join(card.question.split())} Original: {right['original']}"
            f" (replied {old}). Perturbed: {right['perturbed']} (replied {new})."
        )
    lines += ["", "## How this was made", ""]
    lines += [f"- {name}: {value}" for name, value in page.settings.items()]
    return without_html("\n".join(lines) + "\n")


def as_json(page: VerdictPage, gallery: Gallery) -> JsonDict:
    """Return every number of the page; full scores are in ``scores.jsonl``."""
    finding, gap, decision = page.finding, page.finding.gap, page.finding.decision
    explained = page.evidence.explained
    return {
        "model": finding.model,
        "model_fingerprint": gap.model_fingerprint,
        "benchmark": page.evidence.benchmark.name,
        "benchmark_id": page.evidence.benchmark.id,
        "exchangeable": page.evidence.benchmark.exchangeable,
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
        "references": sorted(page.evidence.references),
        "references_left_out": decision.left_out,
        "panel": _panel(decision),
        "judged": asdict(finding.of_gap.judged),
        "memory": memory_of(finding.of_gap.attraction),
        "guessing": [asdict(each) for each in finding.of_gap.guessing],
        "readings": [
            {"detector": score.detector} | _numbers(score) for score in page.evidence.readings()
        ],
        "what_would_change_it": list(finding.sensitivity.sentences),
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
        "diagnosis": explained.to_json() if explained else None,
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


def html(page: VerdictPage, gallery: Gallery) -> str:
    """Return the page: no script, no network, light and dark."""
    finding, explained = page.finding, page.evidence.explained
    template = environment(_TEMPLATES).get_template("verdict.html.jinja")
    return template.render(
        title=page.title,
        page=page,
        finding=finding,
        verdict=_stamp(finding),
        gap=gap_table(finding),
        readings=readings_table(finding),
        why=diagnosis_of_one(finding.model, explained) if explained else None,
        power=power_table(finding),
        others=other_detectors_table(finding),
        warnings=[formats.as_sentence(text) for text in finding.leading.warnings],
        gallery=gallery,
        heading=_heading(gallery, finding),
        replies={card.name: page.replies.get(card.name, _UNKNOWN) for card in gallery.cards},
    )


def _stamp(finding: ModelVerdict) -> str:
    text = VERDICTS[finding.verdict]
    if finding.verdict in ("contaminated", "not_detected"):
        return f"Verdict: {text}, by {DECIDES[finding.decision.decides]}"
    kinds = [doubt.kind for doubt in finding.decision.doubts]
    return f"Verdict: {text} ({', '.join(kinds)})" if kinds else f"Verdict: {text}"


def _heading(gallery: Gallery, finding: ModelVerdict) -> str:
    b = counts_of(finding.gap).b
    if not b:
        return "No item fell"
    if b == 1:
        return "The one item that fell"
    some = "The" if len(gallery.cards) == b else f"{len(gallery.cards):,} of the"
    return f"{some} {b:,} items that fell, the most suspicious first"

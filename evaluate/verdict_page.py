"""A verdict as files: one page that needs nothing else, Markdown, and JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from flipbench.errors import DataError
from flipbench.evaluate import formats, table_files
from flipbench.evaluate.gallery import Gallery, make_gallery
from flipbench.evaluate.grid import GridModel
from flipbench.evaluate.suspicion import suspicions
from flipbench.evaluate.tables import TEST, VERDICTS, Cell, Column, Row, Table, accuracies
from flipbench.evaluate.verdict import Evidence, Finding
from flipbench.evaluate.verdict_changes import MOST_PAIRS, PairsNeeded
from flipbench.records import JsonDict, Score

N_EXAMPLES = 12
_BUDGET = 1_500_000  # bytes of thumbnails
_TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class VerdictPage:
    """What a page is made of.

    Attributes
    ----------
    grid : sequence of GridModel
        The model, taken for contaminated, and its clean references: what suspicion is reckoned by.
    replies : mapping of str to (str, str)
        By item name, what the model answered on the original and on the twin.
    settings : mapping of str to str
        How this was made: command, versions, paths.
    notes : sequence of str
        What is known of the model from elsewhere, its contamination card above all.
    """

    finding: Finding
    evidence: Evidence
    grid: Sequence[GridModel]
    replies: Mapping[str, tuple[str, str]]
    settings: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()

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
        Where the folder cannot be written, or an image of the benchmark is gone.
    """
    rows = "".join(score.model_dump_json() + "\n" for score in page.evidence.scores)
    gallery = suspects(page)
    files = {
        "scores.jsonl": rows,
        "verdict.json": json.dumps(as_json(page, gallery), indent=2, ensure_ascii=False) + "\n",
        "verdict.md": markdown(page, gallery),
        "index.html": html(page, gallery),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise DataError(f"{folder}: cannot write there ({error.strerror})") from error
    return folder / "index.html"


def suspects(page: VerdictPage, most: int = N_EXAMPLES) -> Gallery:
    """Return the pairs on which the model fell, the most suspicious first."""
    benchmark, scores = page.evidence.benchmark, page.evidence.scores
    every = [*scores, *(s for own in page.evidence.references.values() for s in own)]
    change = page.finding.gap.per_item
    fell = [pair for pair in benchmark.pairs if change.get(pair.original.id, 0) < 0]
    suspicion = suspicions(benchmark, page.grid, every)
    fell.sort(key=lambda pair: -round(suspicion[pair.original.id].value, 9))
    few = replace(benchmark, pairs=tuple(fell[:most]))
    return make_gallery(few, page.grid, every, _BUDGET)


def gap_table(page: VerdictPage) -> Table:
    """Return the gap of the model and of each reference, with counts, interval and p."""
    groups: list[tuple[str, tuple[Row, ...]]] = [
        ("The model", (_gap_row(page.finding.model, page.finding.gap),))
    ]
    own = {
        name: next((s for s in scores if (s.detector, s.rule) == _MAIN), None)
        for name, scores in page.evidence.references.items()
    }
    rows = tuple(_gap_row(name, score) for name, score in own.items() if score is not None)
    groups += [("Clean references", rows)] if rows else []
    return Table(
        "gap",
        "Right answers on the originals and on their twins: the same question and options, with"
        " the picture redrawn so that another option is right. Δ = twins − originals, with its"
        " paired 95 % interval; p: exact one-sided McNemar test; fell: right on the original and"
        " wrong on the twin; rose: the reverse.",
        "",
        tuple(map(Column, ("Originals, %", "Twins, %", "Δ, pp", "p", "Fell", "Rose"))),
        tuple(groups),
    )


_MAIN = ("perturbation_gap", TEST)


def _gap_row(name: str, score: Score) -> Row:
    cells = [
        Cell(formats.percent(k / n), f"{k}/{n}") if n else Cell(formats.NOTHING)
        for k, n in accuracies(score).values()
    ]
    gap = formats.NOTHING if score.statistic is None else formats.points(score.statistic)
    between = formats.interval(score.interval) if score.interval else ""
    p = formats.NOTHING if score.p_value is None else formats.p_value(score.p_value)
    moved = [Cell(str(score.details.get(name, formats.NOTHING))) for name in ("b", "c")]
    return Row(name, (*cells, Cell(gap, between), Cell(p), *moved))


def opinions_table(finding: Finding) -> Table | None:
    """Return what the other detectors say, or None where there are none."""
    if not finding.opinions:
        return None
    groups = []
    for verdict, name in VERDICTS.items():
        mine = [one for one in finding.opinions if one.verdict == verdict]
        rows = tuple(
            Row(
                one.title,
                (
                    Cell(one.measured or formats.NOTHING),
                    Cell(_p(None if one.score is None else one.score.p_value)),
                    Cell(_p(one.p_adjusted)),
                    Cell(" ".join(one.remarks) or formats.NOTHING),
                ),
            )
            for one in mine
        )
        groups += [(f"{name[:1].upper()}{name[1:]}: {len(rows)}", rows)] if rows else []
    return Table(
        "says",
        "Each detector by its own default rule. p is that rule's own; Holm corrects it for all"
        " detectors of this table. None of them has a vote in the verdict.",
        "Detector",
        (
            Column("Measured", numeric=False),
            Column("p"),
            Column("p, Holm"),
            Column("Remarks", numeric=False),
        ),
        tuple(groups),
    )


def power_table(finding: Finding) -> Table | None:
    """Return how many pairs the test needs, or None where the verdict does not go by it."""
    if not finding.changes.pairs:
        return None
    n, b, c = finding.gap.n, finding.gap.details["b"], finding.gap.details["c"]
    rows = tuple(
        Row(
            f"{formats.points(row.gap)} points" + (", as measured" if row.measured else ""),
            (_pairs(row.for_80), _pairs(row.for_95), Cell(_enough(row, n))),
        )
        for row in finding.changes.pairs
    )
    return Table(
        "power",
        "Pairs that the exact one-sided McNemar test needs to find a true gap, if as many answers"
        f" change from original to twin as did here ({b + c}/{n}; at least as many as the gap"
        " takes).",
        "True gap",
        (Column("Found 4 in 5 times"), Column("19 in 20"), Column(f"With {n:,} pairs", "", False)),
        (("Pairs needed", rows),),
    )


def _pairs(needed: int | None) -> Cell:
    return Cell(f"> {MOST_PAIRS:,}" if needed is None else f"{needed:,}")


def _enough(row: PairsNeeded, n: int) -> str:
    if row.for_95 is not None and row.for_95 <= n:
        return "enough"
    return "often enough" if row.for_80 is not None and row.for_80 <= n else "too few"


def _p(value: float | None) -> str:
    return formats.NOTHING if value is None else formats.p_value(value)


def markdown(page: VerdictPage, gallery: Gallery) -> str:
    """Return the verdict as Markdown."""
    finding = page.finding
    lines = [f"# {page.title}", "", finding.sentence, ""]
    lines += [f"- {text}" for text in (*finding.qualifiers, *page.notes)]
    lines += ["", "## The gap", "", table_files.markdown(gap_table(page))]
    lines += [f"- {_warning(text)}" for text in finding.leading.warnings]
    lines += ["", "## What would change this verdict", ""]
    lines += [f"- {text}" for text in finding.changes.sentences]
    for heading, table in (
        ("", power_table(finding)),
        ("## What the other detectors say", opinions_table(finding)),
    ):
        lines += ["", heading, "", table_files.markdown(table)] if table else []
    lines += ["", f"## {_heading(gallery, finding)}", ""]
    for card in gallery.cards:
        old, new = _answers(card.name, page)
        right = {option.right_in: option.text for option in card.options}
        lines.append(
            f"- `{card.name}` {' '.join(card.question.split())} Original: {right['original']}"
            f" (replied {old}). Twin: {right['perturbed']} (replied {new})."
        )
    lines += ["", "## How this was made", ""]
    lines += [f"- {name}: {value}" for name, value in page.settings.items()]
    return "\n".join(lines) + "\n"


def as_json(page: VerdictPage, gallery: Gallery) -> JsonDict:
    """Return every number of the page; scores stand in ``scores.jsonl`` in full."""
    finding, gap = page.finding, page.finding.gap
    return {
        "model": finding.model,
        "model_fingerprint": gap.model_fingerprint,
        "benchmark": page.evidence.benchmark.name,
        "benchmark_id": page.evidence.benchmark.id,
        "exchangeable": page.evidence.benchmark.exchangeable,
        "verdict": finding.verdict,
        "rule": finding.rule,
        "sentence": finding.sentence,
        "qualifiers": [*finding.qualifiers, *page.notes],
        "gap": _numbers(gap),
        "against_references": [_numbers(score) for score in finding.against],
        "references": sorted(page.evidence.references),
        "what_would_change_it": list(finding.changes.sentences),
        "pairs_needed": [asdict(row) for row in finding.changes.pairs],
        "other_detectors": [
            {
                "detector": one.detector,
                "verdict": one.verdict,
                "why": one.why,
                "p_holm": one.p_adjusted,
                "also_fires_on": list(one.fired_on),
                **({} if one.score is None else _numbers(one.score)),
            }
            for one in finding.opinions
        ],
        "suspect_items": [card.name for card in gallery.cards],
        "settings": dict(page.settings),
    }


def _numbers(score: Score) -> JsonDict:
    counts = {name: {"k": k, "n": n} for name, (k, n) in accuracies(score).items()}
    return {
        "rule": score.rule,
        "verdict": score.verdict,
        "statistic": score.statistic,
        "unit": score.unit,
        "interval": None if score.interval is None else score.interval.model_dump(),
        "p_value": score.p_value,
        "n": score.n,
        "n_dropped": score.n_dropped,
        "accuracies": counts,
        "reference": score.details.get("reference", {}).get("model", ""),
        **{name: score.details[name] for name in ("b", "c", "n11", "n00") if name in score.details},
        "warnings": list(score.warnings),
    }


def html(page: VerdictPage, gallery: Gallery) -> str:
    """Return the page: no script, no network, light and dark."""
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("verdict.html.jinja").render(
        page=page,
        finding=page.finding,
        verdict=VERDICTS[page.finding.verdict],
        gap=gap_table(page),
        power=power_table(page.finding),
        says=opinions_table(page.finding),
        warnings=[_warning(text) for text in page.finding.leading.warnings],
        gallery=gallery,
        heading=_heading(gallery, page.finding),
        replies={card.name: _answers(card.name, page) for card in gallery.cards},
        style=Markup((_TEMPLATES / "report.css").read_text(encoding="utf-8")),
    )


def _heading(gallery: Gallery, finding: Finding) -> str:
    b = finding.gap.details.get("b", 0)
    if not b:
        return "No item fell"
    return f"{len(gallery.cards):,} of the {b:,} items that fell, the most suspicious first"


def _answers(name: str, page: VerdictPage) -> tuple[str, str]:
    return page.replies.get(name, ("not known", "not known"))


def _warning(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}".removesuffix(".") + "."

"""A transparency card as Markdown and JSON."""

from __future__ import annotations

from pathlib import Path

from flipbench.core.files import markdown_text, printable_json, without_html, write_atomically
from flipbench.core.rates import Rate
from flipbench.reporting import formats, writers
from flipbench.reporting.tables import Cell, Column, Row, Table

from ..report.titles import VERDICTS, title
from .transparency import Check, RatesSource, TransparencyCard

NOT_MEASURED = "not measured"
_GENERAL = "The error rates need not hold for other models, benchmarks or kinds of training."


def write_card(card: TransparencyCard, folder: Path) -> list[Path]:
    """Write ``contamination-card.md`` and ``contamination-card.json`` into ``folder``.

    Raises
    ------
    DataError
        If a file cannot be written.
    """
    texts = {"md": markdown(card), "json": printable_json(card.model_dump_json(indent=2)) + "\n"}
    return [
        write_atomically(folder / f"contamination-card.{suffix}", text)
        for suffix, text in texts.items()
    ]


def markdown(card: TransparencyCard) -> str:
    """Return the card as Markdown."""
    lines = [f"# Contamination card: {markdown_text(card.benchmark)}", "", "## What was found", ""]
    for finding in card.findings:
        history = f" ({markdown_text(finding.history)})" if finding.history else ""
        verdict = VERDICTS.get(finding.verdict, finding.verdict)
        lines.append(
            f"- **{markdown_text(finding.model)}**{history}: **{verdict}**."
            f" {markdown_text(finding.sentence)}"
        )
        lines += [f"    - {markdown_text(note)}" for note in finding.notes]
    lines += ["", "## What was checked", "", writers.markdown(checks_table(card))]
    lines += ["## Error rates", "", _rates_text(card), ""]
    if card.not_checked:
        lines += ["## What was not checked", ""]
        reasons: dict[str, list[str]] = {}
        for name, why in card.not_checked.items():
            reasons.setdefault(why, []).append(title(name))
        lines += [f"- {'; '.join(names)}: {markdown_text(why)}" for why, names in reasons.items()]
        lines.append("")
    lines += ["## What this card does not show", ""]
    lines += [f"- {text}" for text in limits(card)]
    lines += ["", "## How this was made", "", f"- benchmark: `{card.benchmark_id}`"]
    lines += [f"- model {markdown_text(f.model)}: `{f.fingerprint}`" for f in card.findings]
    lines += [f"- {name}: {markdown_text(value)}" for name, value in card.settings.items()]
    return without_html("\n".join(lines) + "\n")


def checks_table(card: TransparencyCard) -> Table:
    """Return one row for each detector: its result, if the card is of one model, and its rates."""
    own = card.is_of_one_model
    columns = (
        Column("Rule", numeric=False),
        Column("Made to catch", numeric=False),
        *(
            (Column("Result", numeric=False), Column("Measured", numeric=False))
            + (Column("p"), Column("p, Holm"), Column("Remarks", numeric=False))
            if own
            else ()
        ),
        Column("Contaminated models caught, %"),
        Column("Clean models flagged, %"),
    )
    result = (
        "Result: of the default rule on this model; the perturbation gap decides, the others have"
        " no vote. p, Holm: corrected for the number of the other detectors. "
        if own
        else ""
    )
    return Table(
        "checks",
        f"{result}Caught and flagged: how many models of known history the same rule called"
        " contaminated, with 95 % intervals that allow for common ancestors.",
        "Detector",
        columns,
        (("", tuple(_row(check, own) for check in card.checks)),),
    )


def limits(card: TransparencyCard) -> list[str]:
    """Return what the card does not show, in sentences."""
    lines = [
        '"Not detected" does not mean clean: contamination that these detectors miss stays unseen.',
        "Only the items of this benchmark and version were asked about.",
    ]
    if card.is_of_one_model:
        lines.append("The model's training data were not searched.")
    if card.rates is None:
        lines.append(
            "How often these detectors err is not stated: no error rates were measured or given."
        )
    elif card.is_of_one_model:
        lines.append(_about_rates(card, card.rates))
    else:
        lines.append(_GENERAL)
    return lines


def _about_rates(card: TransparencyCard, rates: RatesSource) -> str:
    """Return why error rates that were measured elsewhere need not hold for a card's model."""
    is_among = card.findings[0].fingerprint in rates.fingerprints
    whose = "This model is one of those behind the error rates." if is_among else ""
    pairs = (
        f"They were measured with {rates.n_pairs:,} pairs, and this model was asked"
        f" {card.n_pairs:,}: power depends on their number."
        if rates.n_pairs != card.n_pairs
        else ""
    )
    return " ".join(filter(None, (_GENERAL, whose, pairs)))


def _row(check: Check, own: bool) -> Row:
    result = (
        VERDICTS.get(check.verdict, check.verdict),
        check.measured,
        formats.p_value(check.p_value),
        formats.p_value(check.p_holm),
        "; ".join(check.remarks),
    )
    cells = (
        Cell(check.rule_title),
        Cell(", ".join(check.catches) or "not stated"),
        *(Cell(text or formats.NOTHING) for text in (result if own else ())),
        _rate(check.detected, check.untestable),
        _rate(check.false_alarms),
    )
    return Row(check.title, cells)


def _rate(rate: Rate | None, untestable: str = "") -> Cell:
    if rate is None or untestable:
        return Cell(NOT_MEASURED, untestable)
    assert rate.value is not None
    share = f"{formats.percent(rate.value)} ({rate.k}/{rate.n})"
    return Cell(share, formats.interval(rate.interval, formats.percent))


def _rates_text(card: TransparencyCard) -> str:
    rates = card.rates
    if rates is None:
        return "Not measured."
    kinds = f"; contaminated with: {', '.join(rates.kinds)}" if rates.kinds else ""
    lineages = "lineage" if rates.n_lineages == 1 else "lineages"
    return (
        f"Measured on {rates.n_contaminated:,} contaminated and {rates.n_clean:,} clean models"
        f" of {rates.n_lineages:,} {lineages} ({markdown_text(', '.join(rates.families))}{kinds}),"
        f" with {rates.n_pairs:,} pairs: {markdown_text(rates.title)}."
    )

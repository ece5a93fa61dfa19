"""Direct-reveal audit: questions whose text contains their own answer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from flipbench.benchmarks.tables import parse_json
from flipbench.config.audit import AuditSettings
from flipbench.core.errors import DataError, result_or_error
from flipbench.core.records import Item, Probe, Value
from flipbench.core.run import Run
from flipbench.core.stage import StageOptions, StageReport, run_stage
from flipbench.models.chat.messages import Chat
from flipbench.models.chat.prompt_files import PromptFile, lettered, load_prompt
from flipbench.models.engine import answers_of
from flipbench.prompting.prompts import LETTERS
from flipbench.prompting.quoting import single_line
from flipbench.prompting.wrappers import answer_text

from .finding import AuditFinding, FlaggedItem, flag, multiple_choice, n_items, not_run, rate
from .text_only import ChatStage

TITLE = "Answers that the question gives away"
PROMPTS = Path(__file__).parent / "prompts"
_FENCE = re.compile(r"^```(?:json)?[^\S\n]*\n(.*)\n```$", re.DOTALL | re.IGNORECASE)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class SaidEvidence(_Strict):
    """What the reader gives as evidence."""

    snippet: str
    start: int
    end: int
    level: Literal[1, 2, 3]


class SaidLeak(_Strict):
    """An option that the reader finds in the text."""

    letter: str
    evidence: list[SaidEvidence]
    why: str


class RevealReply(_Strict):
    """The form of a reply."""

    has_leak: bool
    leaked_options: list[SaidLeak]
    non_leak_reason: str


class LeakSpan(Value):
    """A verified span: ``question[start:end] == snippet``. ``repaired``: the reader miscounted."""

    option: int
    snippet: str
    start: int
    end: int
    level: int
    repaired: bool = False


def direct_reveal(
    items: Sequence[Item],
    settings: AuditSettings,
    run: Run,
    reader: Chat | None = None,
    *,
    progress: bool = True,
) -> tuple[AuditFinding, list[StageReport]]:
    """Search the question for options: for their exact words and, optionally, with a chat model.

    * The correct option's words occur in the question, but not every option's do: look. This needs
      no model, and is wrong if a word has another meaning there.
    * The reader finds the correct option at ``reveal_level`` or above: drop. If it finds only a
      wrong option, or every option (the question offers the choice), the item stays, flagged.
    * The reply is missing, or cannot be read or verified: a person must decide.

    References
    ----------
    MedThinkVQA, section 3.3 and appendices. Differs from the paper in that levels and spans
    are stored and verified, in that a failed reply never counts as "no leak", and in the rule that
    needs no model.
    """
    closed = multiple_choice(items)
    if not closed:
        return not_run("direct_reveal", TITLE), []
    spans = {item.id: literal_spans(item) for item in closed}
    revealed = [item for item in closed if _reveals_answer(item, spans[item.id])]
    flagged = {item.id: _flag(item, spans[item.id], settings) for item in revealed}
    reports: list[StageReport] = []
    if reader is not None:
        readings, report = _read_all(closed, reader, run, progress)
        reports.append(report)
        for item, reading in zip(closed, readings, strict=True):
            if isinstance(reading, DataError):
                flagged[item.id] = flag(item, "person", str(reading))
            elif reading:
                flagged[item.id] = _flag(item, reading, settings, by_reader=True)
    flagged_items = tuple(flagged[item.id] for item in closed if item.id in flagged)
    n_drop = sum(f.action == "drop" for f in flagged_items)
    n_person = sum(f.action == "person" for f in flagged_items)
    n_gold = len(revealed)
    summary = (
        f"{reader.name} finds the correct option in {n_drop} of {n_items(len(closed))} and leaves"
        f" {n_person} to a person; "
        if reader
        else "No model read the questions. "
    )
    rates = [rate("correct option’s words in the question", n_gold, len(closed))]
    if reader:
        rates.append(rate("correct option revealed, according to the reader", n_drop, len(closed)))
    return (
        AuditFinding(
            check="direct_reveal",
            title=TITLE,
            status="defect" if n_drop + n_person else "look" if n_gold else "ok",
            sentence=f"{summary}{'t' if reader else 'T'}he correct option’s exact words occur in"
            f" the question of {n_gold} of {n_items(len(closed))}.",
            todo="Rewrite the question without the quoted words, or leave the item out.",
            limits="It is unknown how many leaks a model overlooks: have a person read a sample."
            if reader
            else "Synonyms and abbreviations are not found without a model that reads.",
            rates=tuple(rates),
            items=flagged_items,
            details={
                "reader": reader.name if reader else None,
                "level": settings.reveal_level,
                "n_left_out": len(items) - len(closed),
            },
        ),
        reports,
    )


def read_reveal(text: str, item: Item) -> list[LeakSpan]:
    """Return the verified evidence in a reply: spans that occur in the question.

    Raises
    ------
    DataError
        If the reply is not such JSON, contradicts itself, or claims a leak without evidence that
        occurs in the question, so that a person must decide.
    """
    stripped = answer_text(text).strip()
    fenced = _FENCE.match(stripped)
    try:
        reply = RevealReply.model_validate(parse_json(fenced[1] if fenced else stripped))
    except ValueError as error:
        raise DataError("the reader’s reply is not the requested JSON") from error
    if reply.has_leak != bool(reply.leaked_options):
        raise DataError("the reader’s reply contradicts itself")
    evidence: list[LeakSpan] = []
    for leak in reply.leaked_options:
        slot = LETTERS.find(leak.letter.strip(" .()").upper() or "?")
        if not 0 <= slot < len(item.options or ()):
            raise DataError(f"the reader names an unknown option {leak.letter!r}")
        spans = [s for e in leak.evidence if (s := verify(e, slot, item.question))]
        if not spans:
            quote = f"the reader’s quote for option {LETTERS[slot]}"
            raise DataError(f"{quote} is not in the question")
        evidence += spans
    return evidence


def verify(piece: SaidEvidence, option: int, text: str) -> LeakSpan | None:
    """Return the evidence with its true span, or None if its snippet is not in the text.

    A wrong span is corrected to the nearest occurrence; case and whitespace may differ.
    """
    if not piece.snippet.strip():
        return None
    start, end = piece.start, piece.end
    is_exact = 0 <= start < end and text[start:end] == piece.snippet
    if not is_exact:
        pattern = r"\s+".join(re.escape(word) for word in piece.snippet.split())
        spans = [match.span() for match in re.finditer(pattern, text, re.IGNORECASE)]
        if not spans:
            return None
        start, end = min(spans, key=lambda span: abs(span[0] - piece.start))
    return LeakSpan(
        option=option,
        snippet=text[start:end],
        start=start,
        end=end,
        level=piece.level,
        repaired=not is_exact,
    )


def literal_spans(item: Item) -> tuple[LeakSpan, ...]:
    """Return where options occur in the question as whole words, ignoring case."""
    spans = []
    for slot, option in enumerate(item.options or ()):
        pattern = r"\s+".join(re.escape(word) for word in option.split()).rstrip(".")
        if not any(c.isalnum() for c in pattern):
            continue
        for match in re.finditer(rf"(?<!\w){pattern}(?!\w)", item.question, re.IGNORECASE):
            start, end = match.span()
            spans.append(LeakSpan(option=slot, snippet=match[0], start=start, end=end, level=3))
    return tuple(spans)


def _reveals_answer(item: Item, evidence: Sequence[LeakSpan]) -> bool:
    return any(e.option == item.answer for e in evidence) and not _offers_all(item, evidence)


def _offers_all(item: Item, evidence: Sequence[LeakSpan]) -> bool:
    return {piece.option for piece in evidence} == set(range(len(item.options or ())))


def _flag(
    item: Item,
    evidence: Sequence[LeakSpan],
    settings: AuditSettings,
    *,
    by_reader: bool = False,
) -> FlaggedItem:
    gold = [piece for piece in evidence if piece.option == item.answer]
    level = max((piece.level for piece in gold), default=0)
    quoted = "; ".join(
        f"{LETTERS[p.option]}{' (correct)' if p.option == item.answer else ''}"
        f" at {p.start}–{p.end}: “{p.snippet}”, level {p.level}"
        for p in evidence
    )
    drop = False
    if _offers_all(item, evidence):
        reason = "the question lists every option, as a choice"
    elif not gold:
        reason = "the question contains a wrong option"
    else:
        reason = "the question contains the correct option"
        drop = by_reader and level >= settings.reveal_level
    details = {"evidence": [piece.model_dump() for piece in evidence]}
    return flag(item, "drop" if drop else "look", f"{reason} ({quoted})", details=details)


def _read_all(
    items: Sequence[Item], reader: Chat, run: Run, progress: bool
) -> tuple[list[list[LeakSpan] | DataError], StageReport]:
    hidden = ("old_answer", "new_answer")
    file = load_prompt("reveal", PROMPTS, needs=("question", "options"), hides=hidden)
    stage = ChatStage(reader, run.images, file.instruction, schema=RevealReply)
    if not any(answers_of(reader.name, stage.fingerprint, run).to(_probe(i, file)) for i in items):
        file = file.quoting()  # or the run was read by the earlier prompt
        stage = ChatStage(reader, run.images, file.instruction, schema=RevealReply)
    probes = [_probe(item, file) for item in items]
    report = run_stage(stage, probes, run, StageOptions(batch_size=64, progress=progress))
    answers = answers_of(reader.name, stage.fingerprint, run)
    errors = {failure.record_id: failure.message for failure in report.failures}
    readings: list[list[LeakSpan] | DataError] = []
    for item, probe in zip(items, probes, strict=True):
        response = answers.to(probe)
        if response is None:
            problem = errors.get(stage.id_of(probe), "it was not asked")
            readings.append(DataError(f"the reader gave no reply: {problem}"))
        else:
            readings.append(result_or_error(read_reveal, response.text, item))
    return readings, report


def _probe(item: Item, file: PromptFile) -> Probe:
    options = [single_line(o) if file.quotes else o for o in item.options or ()]
    text = file.filled({"question": item.question, "options": lettered(options)})
    return Probe(item_id=item.id, variant="reveal", prompt=text, ask="generate", max_new_tokens=0)

"""Direct-reveal audit: does the question's text name its own answer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from flipbench.config.audit import AuditSettings
from flipbench.core.records import Item, Probe
from flipbench.core.run import Run
from flipbench.core.stage import StageOptions, StageReport, run_stage
from flipbench.models.chat.messages import Chat
from flipbench.models.chat.prompt_files import lettered, load_prompt
from flipbench.models.engine import answers_of
from flipbench.prompting.prompts import LETTERS

from .chat_stage import ChatStage
from .finding import AuditFinding, Named, choices, n_items, not_run, rate
from .reveal_reply import LeakSpan, Reading, RevealReply, read_reveal

TITLE = "Answers that the question gives away"
PROMPTS = Path(__file__).parent / "prompts"


def direct_reveal(
    items: Sequence[Item],
    settings: AuditSettings,
    run: Run,
    reader: Chat | None = None,
    *,
    prompt: str | Path = "reveal",
    structured: bool = True,
    progress: bool = True,
) -> tuple[AuditFinding, list[StageReport]]:
    """Look for options in the question: as they are written, and with a chat model that reads.

    * The right option's own words stand in the question, and not every option's do: look. No model
      is needed for that, and it is wrong where a word means something else there.
    * The reader finds the right option at ``reveal_level`` or above: drop. Only a wrong option, or
      every option (the question offers the choice): the item stays, tagged.
    * A reply that cannot be read or verified, or none at all: a person must decide.

    References
    ----------
    MedThinkVQA, section 3.3 and appendices. Differs from the paper in that levels and spans
    are kept and verified, in that a failed reply never counts as "no leak", and in the rule that
    needs no model.
    """
    asked = choices(items)
    if not asked:
        return not_run("direct_reveal", TITLE, "No item has options.", ""), []
    written = {item.id: e for item in asked if _gives_away(item, e := written_out(item))}
    named = {i.id: _named(i, written[i.id], settings) for i in asked if i.id in written}
    reports: list[StageReport] = []
    if reader is not None:
        readings, report = _read_all(asked, reader, run, prompt, structured, progress)
        reports.append(report)
        for item in asked:
            reading = readings[item.id]
            if reading.trouble:
                named[item.id] = _person(item, reading.trouble)
            elif reading.evidence:
                named[item.id] = _named(item, reading.evidence, settings, by_reader=True)
    ordered = tuple(named[item.id] for item in asked if item.id in named)
    n_drop = sum(found.action == "drop" for found in ordered)
    n_person = sum(found.action == "person" for found in ordered)
    n_gold = len(written)
    read = (
        f"{reader.name} finds the right option in {n_drop} of {n_items(len(asked))} and left"
        f" {n_person} to a person; "
        if reader
        else "No model read the questions. "
    )
    rates = [rate("right option’s words in the question", n_gold, len(asked))]
    if reader:
        rates.append(rate("right option revealed, by the reader", n_drop, len(asked)))
    return (
        AuditFinding(
            check="direct_reveal",
            title=TITLE,
            status="defect" if n_drop + n_person else "look" if n_gold else "ok",
            sentence=f"{read}{'t' if reader else 'T'}he right option’s own words stand in the"
            f" question of {n_gold} of {n_items(len(asked))}.",
            todo="Rewrite the question without the words marked below, or leave the item out.",
            limits="Nobody knows how many leaks a model overlooks: have a person read a sample."
            if reader
            else "Synonyms and abbreviations are not found without a model that reads.",
            rates=tuple(rates),
            items=ordered,
            details={
                "reader": reader.name if reader else None,
                "level": settings.reveal_level,
                "n_left_out": len(items) - len(asked),
            },
        ),
        reports,
    )


def written_out(item: Item) -> tuple[LeakSpan, ...]:
    """Return where options stand in the question as whole words, whatever the case."""
    found = []
    for slot, option in enumerate(item.options or ()):
        words = option.split()
        sought = r"\s+".join(re.escape(word) for word in words).rstrip(".")
        if not any(c.isalnum() for c in sought):
            continue
        for match in re.finditer(rf"(?<!\w){sought}(?!\w)", item.question, re.IGNORECASE):
            start, end = match.span()
            piece = {"snippet": match[0], "start": start, "end": end, "level": 3}
            found.append(LeakSpan.model_validate({"option": slot, **piece}))
    return tuple(found)


def _gives_away(item: Item, evidence: Sequence[LeakSpan]) -> bool:
    return any(e.option == item.answer for e in evidence) and not _offers_all(item, evidence)


def _offers_all(item: Item, evidence: Sequence[LeakSpan]) -> bool:
    return {piece.option for piece in evidence} == set(range(len(item.options or ())))


def _named(
    item: Item,
    evidence: Sequence[LeakSpan],
    settings: AuditSettings,
    *,
    by_reader: bool = False,
) -> Named:
    gold = [piece for piece in evidence if piece.option == item.answer]
    level = max((piece.level for piece in gold), default=0)
    quoted = "; ".join(
        f"{LETTERS[p.option]}{' (right)' if p.option == item.answer else ''}"
        f" at {p.start}–{p.end}: “{p.snippet}”, level {p.level}"
        for p in evidence
    )
    drop = False
    if _offers_all(item, evidence):
        why = "the question names every option, as a choice"
    elif not gold:
        why = "a wrong option stands in the question"
    else:
        why = "the right option stands in the question"
        drop = by_reader and level >= settings.reveal_level
    return Named(
        item_id=item.id,
        name=item.name,
        action="drop" if drop else "look",
        why=f"{why} ({quoted})",
        details={"evidence": [piece.model_dump() for piece in evidence]},
    )


def _person(item: Item, trouble: str) -> Named:
    return Named(item_id=item.id, name=item.name, action="person", why=trouble)


def _read_all(
    items: Sequence[Item],
    reader: Chat,
    run: Run,
    prompt: str | Path,
    structured: bool,
    progress: bool,
) -> tuple[dict[str, Reading], StageReport]:
    file = load_prompt(
        prompt,
        PROMPTS,
        needs=("question", "options"),
        hides=("old_answer", "new_answer"),
    )
    stage = ChatStage(
        reader, run.images, file.instruction, schema=RevealReply if structured else None
    )
    probes = {item.id: _probe(item, file.item) for item in items}
    report = run_stage(stage, probes.values(), run, StageOptions(batch_size=64, progress=progress))
    answers = answers_of(reader.name, stage.fingerprint, run)
    failed = {failure.record_id: failure.message for failure in report.failures}
    readings = {}
    for item in items:
        response = answers.to(probes[item.id])
        if response is None:
            why = failed.get(stage.id_of(probes[item.id]), "it was not asked")
            readings[item.id] = Reading(trouble=f"the reader gave no reply: {why}")
        else:
            readings[item.id] = read_reveal(response.text, item)
    return readings, report


def _probe(item: Item, template: str) -> Probe:
    values = {"question": item.question, "options": lettered(item.options or ())}
    text = re.sub(r"\{(\w+)\}", lambda match: values[match[1]], template)
    return Probe(item_id=item.id, variant="reveal", prompt=text, ask="generate", max_new_tokens=0)

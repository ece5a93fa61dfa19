"""Candidates in, a paired benchmark out: apply the rules, ask the judges, follow the policy."""

from __future__ import annotations

import csv
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from flipbench.config.policy import Policy
from flipbench.core.errors import DataError
from flipbench.core.files import write_atomically
from flipbench.core.paired import Candidate, PairedBenchmark
from flipbench.core.records import Caption, Edit, Failure, Flip, Item, Verdict
from flipbench.core.run import Run
from flipbench.core.stage import DEFAULTS, StageOptions, StageReport, run_stage
from flipbench.models.protocols import Judge
from flipbench.reporting.writers import rows_csv, write_tables

from . import funnel, kept_list
from .decide import Panel, Ruling, book_of, decide
from .funnel import (
    Funnel,
    Loss,
    funnel_of,
    loss_by_category_table,
    loss_rows,
    losses_of,
)
from .judges.rules import RuleStage, build_rules
from .judges.stage import JudgeStage
from .kept_list import kept_rows

FOLDER = "filter"


@dataclass(frozen=True)
class Filtered:
    """What a policy makes of a run's verdicts: a ruling on each edited candidate, all losses."""

    rulings: tuple[Ruling, ...]
    losses: tuple[Loss, ...]
    funnel: Funnel

    @property
    def kept(self) -> list[Candidate]:
        """The kept candidates, in order."""
        return [ruling.candidate for ruling in self.rulings if ruling.kept]

    @property
    def doubtful(self) -> list[Candidate]:
        """Those neither kept nor clearly rejected, in order: what people should look at."""
        return [r.candidate for r in self.rulings if r.decision == "unsure"]


def keep_valid(
    name: str,
    candidates: Sequence[Candidate],
    judges: Sequence[Judge],
    run: Run,
    options: StageOptions = DEFAULTS,
    *,
    policy: Policy | None = None,
) -> tuple[PairedBenchmark, list[StageReport]]:
    """Have rules and judges rate every edited candidate, and keep what the policy keeps.

    Whatever is not a clear "keep" (a rejection, "unsure", a judge that failed) is not kept.
    ``filter/`` in the run directory then holds the kept list, the reason of every loss, the
    funnel, and the policy they follow from.

    Parameters
    ----------
    judges : sequence of Judge
        Those who decide now. Verdicts of other judges in the run stay there and do not count;
        people's verdicts count as the policy says.
    policy : Policy, optional
        By default a pair is kept if no rule objects and every judge keeps it, and where people
        have looked, they decide.

    Returns
    -------
    benchmark : PairedBenchmark
        The kept pairs, in the candidates' order.
    reports : list of StageReport
        Of the rules (if there are any) and of every run of every judge.

    Raises
    ------
    DataError
        If there is nothing to judge.
    """
    policy = policy or Policy()
    panel, reports = rate(candidates, judges, run, policy, options)
    filtered = apply_policy(candidates, panel, run, policy)
    write_filtered(filtered, candidates, run.path / FOLDER, policy)
    pairs = tuple(candidate.pair() for candidate in filtered.kept)
    return PairedBenchmark(name, pairs, run.images, filtered.funnel.counts), reports


def rate(
    candidates: Sequence[Candidate],
    judges: Sequence[Judge],
    run: Run,
    policy: Policy,
    options: StageOptions = DEFAULTS,
) -> tuple[Panel, list[StageReport]]:
    """Append the verdicts of rules and judges that ``run`` lacks; return who they are.

    Raises
    ------
    DataError
        If there is nothing to judge.
    """
    edited = [c for c in candidates if c.edit]
    if not edited:
        raise DataError("there are no edited images to judge; run 'flipbench generate' first")
    rules = build_rules(policy.rules, edited)
    panel = Panel(
        judges=tuple(dict.fromkeys(judge.name for judge in judges)),
        rules={rule.name: rule.slug for rule in rules},
    )
    reports = []
    if rules:
        tasks = [(rule.name, candidate) for rule in rules for candidate in edited]
        stage = RuleStage(rules, run.images)
        reports.append(run_stage(stage, tasks, run, replace(options, batch_size=64)))
    unopposed = _unopposed(edited, panel.rules, run) if judges else edited
    for judge in judges:
        asked = edited if _is_asked_all(judge, policy) else unopposed
        for judging in _runs_of(judge, run, policy):
            reports.append(run_stage(judging, asked, run, options))
    return panel, reports


def unjudged(
    candidates: Sequence[Candidate], judge: Judge, run: Run, policy: Policy
) -> list[Candidate]:
    """Return whom a judge is still to be asked about, once for each of its runs; nobody is asked.

    Of a candidate without an edited image nothing is known yet, so it counts as to be judged.
    """
    asked = edited = [c for c in candidates if c.edit]
    if not _is_asked_all(judge, policy):
        rules = {rule.name for rule in build_rules(policy.rules, edited)}
        asked = _unopposed(edited, rules, run)
    known = run.ids(Verdict)
    return [
        c
        for judging in _runs_of(judge, run, policy)
        for c in [*asked, *(c for c in candidates if not c.edit)]
        if c.edit is None or judging.id_of(c) not in known
    ]


def apply_policy(
    candidates: Sequence[Candidate], panel: Panel, run: Run, policy: Policy
) -> Filtered:
    """Decide on all candidates by the verdicts that ``run`` holds; nobody is asked anything."""
    book = book_of(run.read(Verdict))
    rulings = [decide(c, book, policy, panel) for c in candidates if c.edit]
    losses = losses_of(candidates, rulings, run.read(Failure))
    return Filtered(tuple(rulings), tuple(losses), funnel_of(candidates, losses))


def write_filtered(
    filtered: Filtered, candidates: Sequence[Candidate], folder: Path, policy: Policy
) -> Path:
    """Write ``kept.csv``, ``reasons.csv``, the funnel and the policy; return the page's path."""
    write_atomically(folder / "policy.json", policy.model_dump_json(indent=2) + "\n")
    kept, lost = kept_rows(filtered.rulings), loss_rows(filtered.losses)
    write_atomically(folder / "kept.csv", rows_csv(kept_list.HEADERS, kept))
    write_atomically(folder / "reasons.csv", rows_csv(funnel.HEADERS, lost))
    tables = [filtered.funnel.table(), loss_by_category_table(candidates, filtered.losses)]
    return write_tables(tables, folder, "funnel.md", "What became of every item")


def filtered_in(run: Run) -> list[Candidate]:
    """Return the candidates that were decided on last, kept and not, each as far as it got.

    They are those of ``kept.csv`` and ``reasons.csv``, in the order of the run's items; none where
    nothing was filtered yet.

    Raises
    ------
    DataError
        If one of the two is not what `write_filtered` wrote.
    """
    listed: dict[str, str] = {}
    for path in (run.path / FOLDER / "kept.csv", run.path / FOLDER / "reasons.csv"):
        if not path.exists():
            return []
        try:
            with path.open(newline="", encoding="utf-8") as file:
                listed |= {row["item_id"]: row["edit_id"] for row in csv.DictReader(file)}
        except (OSError, KeyError, UnicodeDecodeError, csv.Error) as error:
            raise DataError(f"{path}: {error!r}; 'flipbench filter' writes it anew") from error
    flips, captions, edits = run.index(Flip), run.index(Caption), run.index(Edit)
    candidates = []
    for item in run.read(Item):
        if item.id in listed:
            edit = edits.get(listed[item.id])
            caption = captions.get(edit.caption_id) if edit else None
            flip = flips.get(caption.flip_id) if caption else None
            candidates.append(Candidate(item, flip, caption, edit))
    return candidates


def _is_asked_all(judge: Judge, policy: Policy) -> bool:
    """Return whether a judge is asked what a rule rejects, too: the truth is, to measure rules."""
    return policy.ask_rejected or judge.rater_kind == "oracle"


def _runs_of(judge: Judge, run: Run, policy: Policy) -> list[JudgeStage]:
    return [JudgeStage(judge, run.images, number) for number in range(policy.n_runs)]


def _unopposed(edited: Sequence[Candidate], rules: Collection[str], run: Run) -> list[Candidate]:
    """Return the candidates that no rule rejects: those that judges are needed for."""
    rejected = {
        (verdict.edit_id, verdict.image_sha256)
        for verdict in run.read(Verdict)
        if verdict.rater in rules and verdict.decision == "reject"
    }
    return [c for c in edited if c.edit and (c.edit.id, c.edit.image.sha256) not in rejected]

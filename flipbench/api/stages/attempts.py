"""Edits that are rejected or doubtful are tried again, by the configured steps."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from flipbench.api.stages.assembly import Assembly
from flipbench.api.stages.backends import batch_size_for, missing_key
from flipbench.core.files import write_atomically
from flipbench.core.paired import Candidate, PairedBenchmark
from flipbench.core.rates import Rate
from flipbench.core.records import Caption, Edit, Verdict
from flipbench.core.run import Run
from flipbench.core.stage import StageReport
from flipbench.filters.decide import Ruling
from flipbench.filters.funnel import read_columns
from flipbench.filters.pipeline import FOLDER, apply_policy, rate, unjudged
from flipbench.generate.attempts import Attempt, try_again
from flipbench.models.protocols import Editor, Judge, release
from flipbench.reporting.tables import Table, build_table
from flipbench.reporting.writers import rows_csv, write_tables

log = logging.getLogger(__name__)
HEADERS = ("item", "item_id", "attempt", "step", "edit_id", "decision", "chosen", "reason")


@dataclass
class History:
    """What was tried for each item, by item id, and what the loop's judges decided.

    Attributes
    ----------
    tried : dict
        The edited candidates of each item, the first attempt first.
    rulings : dict
        By edit id.
    """

    tried: dict[str, list[Candidate]] = field(default_factory=dict)
    rulings: dict[str, Ruling] = field(default_factory=dict)

    def add(self, rulings: Iterable[Ruling]) -> None:
        """Add the edits of an attempt, with the decisions on them."""
        for ruling in rulings:
            candidate = ruling.candidate
            assert candidate.edit is not None
            self.tried.setdefault(candidate.item.id, []).append(candidate)
            self.rulings[candidate.edit.id] = ruling

    def latest(self, item_id: str) -> Ruling:
        """Return the decision on an item's last attempt."""
        return self._ruling(self.tried[item_id][-1])

    @property
    def pending(self) -> list[str]:
        """The ids of the items without a kept edit."""
        return [item_id for item_id in self.tried if not self.latest(item_id).kept]

    def chosen(self, item_id: str) -> Candidate:
        """Return an item's kept edit; without one, its first doubtful one, else its first."""
        order = {"keep": 0, "unsure": 1}
        return min(self.tried[item_id], key=lambda c: order.get(self._ruling(c).decision, 2))

    def _ruling(self, candidate: Candidate) -> Ruling:
        assert candidate.edit is not None
        return self.rulings[candidate.edit.id]

    def rows(self) -> list[tuple[str, ...]]:
        """Return one row under `HEADERS` for each edit."""
        rows: list[tuple[str, ...]] = []
        for item_id, attempts in self.tried.items():
            chosen_edit = self.chosen(item_id)
            for candidate in attempts:
                ruling, edit = self._ruling(candidate), candidate.edit
                assert edit is not None
                rows.append(
                    (
                        candidate.item.name,
                        item_id,
                        str(attempt_of(edit)),
                        step_of(edit),
                        edit.id,
                        str(ruling.decision),
                        "yes" if candidate is chosen_edit else "",
                        ruling.reason,
                    )
                )
        return rows


def attempt_of(edit: Edit) -> int:
    """Return the number of the attempt that an edit is, from 0."""
    return int(edit.extra.get("attempt", 0))


def step_of(edit: Edit) -> str:
    """Return what an attempt changed, in words."""
    return str(edit.extra.get("step", "first"))


def check_keys(assembly: Assembly) -> None:
    """Raise a `PrerequisiteError` if a key of the loop's judges is missing and needed."""
    spec = assembly.config.generate.attempts
    if spec.n == 1 or not any(missing_key(judge) for judge in spec.judges):
        return
    candidates = assembly.generator.progress(assembly.items)
    for judge_spec in spec.judges:
        error = missing_key(judge_spec)
        if error and unjudged(candidates, assembly.judge(judge_spec), assembly.run, spec.policy):
            raise error


def try_rejected_again(
    assembly: Assembly, candidates: Sequence[Candidate]
) -> tuple[list[Candidate], list[StageReport]]:
    """Judge the edits, and redraw what is not kept until it is, or attempts or money run out.

    Everything follows from stored records, so the same command goes on after a kill. Later
    attempts run in the main process, or on the Ray cluster.

    Returns
    -------
    candidates : list of Candidate
        Each item with its kept edit; without one, with its first doubtful or first one.
    reports : list of StageReport
    """
    spec = assembly.config.generate.attempts
    judges = [assembly.judge(judge_spec) for judge_spec in spec.judges]
    history, reports = History(), list[StageReport]()
    _judge(assembly, history, judges, [c for c in candidates if c.edit], reports)
    editors: dict[int, Editor] = {}
    for number in range(1, spec.n):
        if not history.pending or (reason := _stop_reason(assembly, history)):
            if history.pending:
                log.warning("%d items are not tried again: %s", len(history.pending), reason)
            break
        position = min(number, len(spec.steps)) - 1
        step = spec.steps[position]
        if step.editor is not None and position not in editors:
            editors[position] = assembly.build_editor(step.editor)
        editor = editors.get(position, assembly.editor)
        attempt = Attempt(number, editor, step.caption, step.answer, str(step))
        earlier_edits = [history.tried[item_id] for item_id in history.pending]
        reasons = {item_id: history.latest(item_id).reason for item_id in history.pending}
        options = assembly.options(assembly.config.generate.batch_size)
        redrawn, new_reports = try_again(
            assembly.generator, earlier_edits, reasons, attempt, options
        )
        release(editor)
        release(assembly.captioner)
        reports += new_reports
        _judge(assembly, history, judges, redrawn, reports)
    write_atomically(assembly.run.path / FOLDER / "attempts.csv", rows_csv(HEADERS, history.rows()))
    return _chosen(history, candidates), reports


def redraw_listed(
    assembly: Assembly, candidates: Sequence[Candidate], edit_ids: Collection[str]
) -> tuple[list[Candidate], list[StageReport]]:
    """Redraw the later attempts that a recipe lists; nobody is asked for a caption or verdict."""
    spec, reports = assembly.config.generate.attempts, list[StageReport]()
    earlier_edits = {candidate.item.id: [candidate] for candidate in candidates if candidate.flip}
    listed_candidates = {c.item.id: c for c in candidates if c.edit and c.edit.id in edit_ids}
    for number in range(1, spec.n):
        step = spec.steps[min(number, len(spec.steps)) - 1]
        editor = assembly.editor if step.editor is None else assembly.build_editor(step.editor)
        attempt = Attempt(number, editor, step.caption, step.answer, str(step))
        options = assembly.options(assembly.config.generate.batch_size)
        redrawn, new_reports = try_again(
            assembly.generator, list(earlier_edits.values()), {}, attempt, options, edit_ids
        )
        release(editor)
        reports += new_reports
        for candidate in redrawn:
            earlier_edits[candidate.item.id].append(candidate)
            listed_candidates[candidate.item.id] = candidate
    return [
        listed_candidates.get(candidate.item.id, candidate) for candidate in candidates
    ], reports


def write_attempts(assembly: Assembly, benchmark: PairedBenchmark) -> Path:
    """Write what each attempt added, judged by the loop and by the final raters."""
    folder = assembly.run.path / FOLDER
    rows = [AttemptRow(*row) for row in read_columns(folder / "attempts.csv", *AttemptRow._fields)]
    final = {pair.original.id for pair in benchmark.pairs}
    table = attempts_table(rows, final, len(assembly.items), cost_by_edit(assembly.run))
    return write_tables([table], folder, "attempts.md", "What further attempts added")


class AttemptRow(NamedTuple):
    """A row of ``attempts.csv``, without what is for people only."""

    item_id: str
    attempt: str
    step: str
    edit_id: str
    decision: str
    chosen: str


def attempts_table(
    rows: Sequence[AttemptRow],
    final: Collection[str],
    n_items: int,
    costs: Mapping[str, float],
) -> Table:
    """Return a row for each attempt and step.

    A pair that the loop keeps is confirmed if the final raters keep it, too. Later attempts search
    for the mistakes of the loop's judges, so a smaller share of them may be confirmed.

    Parameters
    ----------
    rows : sequence of AttemptRow
    final : collection of str
        The ids of the items whose pair is kept by the final raters.
    n_items : int
    costs : mapping of str to float
        USD by edit id.
    """
    groups: dict[tuple[int, str], list[AttemptRow]] = defaultdict(list)
    for row in rows:
        groups[int(row.attempt), row.step].append(row)
    body: list[tuple[str, _Added]] = []
    n_pairs = n_edits = 0
    for (number, step), edits in sorted(groups.items()):
        chosen_rows = [row for row in edits if row.chosen and row.item_id in final]
        kept_rows = [row for row in edits if row.decision == "keep"]
        n_pairs, n_edits = n_pairs + len(chosen_rows), n_edits + len(edits)
        totals = _Added(
            tried=len(edits),
            kept=Rate.wilson(len(kept_rows), len(edits)),
            confirmed=Rate.wilson(sum(row.item_id in final for row in kept_rows), len(kept_rows)),
            pairs=Rate.wilson(n_pairs, n_items),
            edits_per_item=n_edits / n_items if n_items else 0.0,
            usd=sum(costs.get(row.edit_id, 0.0) for row in edits),
        )
        body.append((f"{number + 1}, {step}", totals))
    return build_table(
        "added_by_attempt",
        "What each attempt added: the loop's judges keep an edit, the final raters confirm it.",
        "attempt",
        [
            ("edits", lambda totals: totals.tried),
            ("kept, %", lambda totals: totals.kept),
            ("confirmed, % of kept", lambda totals: totals.confirmed),
            ("pairs so far, % of items", lambda totals: totals.pairs),
            ("edits an item so far", lambda totals: f"{totals.edits_per_item:.2f}"),
            ("USD", lambda totals: f"{totals.usd:.2f}" if totals.usd else "–"),
        ],
        {"": body},
    )


@dataclass(frozen=True)
class _Added:
    """The cells of an attempt's row."""

    tried: int
    kept: Rate
    confirmed: Rate
    pairs: Rate
    edits_per_item: float
    usd: float


def cost_by_edit(run: Run) -> dict[str, float]:
    """Return the USD of each edit, with its verdicts and, at the first edit of it, its caption."""
    captions = {caption.id: caption.usage.get("cost_usd") or 0.0 for caption in run.read(Caption)}
    costs: dict[str, float] = defaultdict(float)
    for edit in run.read(Edit):
        usage = edit.extra.get("usage") or {}
        costs[edit.id] += (usage.get("cost_usd") or 0.0) + captions.pop(edit.caption_id, 0.0)
    for verdict in run.read(Verdict):
        costs[verdict.edit_id] += verdict.usage.get("cost_usd") or 0.0
    return dict(costs)


def _judge(
    assembly: Assembly,
    history: History,
    judges: Sequence[Judge],
    candidates: Sequence[Candidate],
    reports: list[StageReport],
) -> None:
    if not candidates:
        return
    spec = assembly.config.generate.attempts
    sizes = [
        batch_size_for(j, assembly.config.filter.batch_size, len(candidates)) for j in spec.judges
    ]
    raters, judge_reports = rate(
        candidates, judges, assembly.run, spec.policy, assembly.options(max(sizes))
    )
    reports += judge_reports
    rulings = apply_policy(candidates, raters, assembly.run, spec.policy).rulings
    history.add(rulings)
    number = max((attempt_of(c.edit) for c in candidates if c.edit), default=0)
    n_kept = sum(ruling.kept for ruling in rulings)
    log.info("attempt %d: %d of %d edits kept", number + 1, n_kept, len(rulings))


def _stop_reason(assembly: Assembly, history: History) -> str:
    """Return why no further attempt begins; empty if one may."""
    spec = assembly.config.generate.attempts
    if len(history.rulings) >= spec.stop_after and not any(
        ruling.kept for ruling in history.rulings.values()
    ):
        names = ", ".join(assembly.judge(judge_spec).name for judge_spec in spec.judges)
        return (
            f"of {len(history.rulings)} edits, {names} kept none; look at some with 'flipbench show"
            f" {assembly.run.path} edits.png --edits'"
        )
    if (
        spec.max_usd is not None
        and (usd := sum(cost_by_edit(assembly.run).values())) > spec.max_usd
    ):
        return f"${usd:,.2f} are spent, more than generate.attempts.max_usd ({spec.max_usd:g})"
    return ""


def _chosen(history: History, candidates: Sequence[Candidate]) -> list[Candidate]:
    return [history.chosen(c.item.id) if c.item.id in history.tried else c for c in candidates]

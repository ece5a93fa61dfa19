"""Candidates in, a paired benchmark out: apply the rules, ask the judges, follow the policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flipbench.errors import DataError
from flipbench.filters.decide import Panel, Ruling, book_of, decide
from flipbench.filters.funnel import (
    Funnel,
    Loss,
    funnel_of,
    loss_by_category_table,
    losses_of,
    losses_table,
)
from flipbench.filters.judge import JudgeStage
from flipbench.filters.kept_list import kept_table
from flipbench.filters.rules import RuleStage, build_rules
from flipbench.filters.tables import write_tables, write_text
from flipbench.models.protocols import Judge
from flipbench.paired import Candidate, PairedBenchmark
from flipbench.policy import Policy
from flipbench.records import Failure, Verdict
from flipbench.run import Run
from flipbench.stage import StageReport, run_stage

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
    *,
    policy: Policy | None = None,
    batch_size: int = 16,
    progress: bool = True,
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
        Where there is nothing to judge.
    """
    policy = policy or Policy()
    panel, reports = rate(candidates, judges, run, policy, batch_size=batch_size, progress=progress)
    filtered = apply_policy(candidates, panel, run, policy)
    write_filtered(filtered, candidates, run.path / FOLDER, policy)
    pairs = tuple(candidate.pair() for candidate in filtered.kept)
    return PairedBenchmark(name, pairs, run.images, filtered.funnel.counts), reports


def rate(
    candidates: Sequence[Candidate],
    judges: Sequence[Judge],
    run: Run,
    policy: Policy,
    *,
    batch_size: int = 16,
    progress: bool = True,
) -> tuple[Panel, list[StageReport]]:
    """Append the verdicts of rules and judges that ``run`` lacks; return who they are.

    Raises
    ------
    DataError
        Where there is nothing to judge.
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
        reports.append(run_stage(stage, tasks, run, batch_size=64, progress=progress))
    asked = edited if policy.ask_rejected or not judges else _unopposed(edited, panel, run)
    for judge in judges:
        for number in range(policy.n_runs):
            judging = JudgeStage(judge, run.images, number)
            reports.append(run_stage(judging, asked, run, batch_size=batch_size, progress=progress))
    return panel, reports


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
    write_text(folder / "policy.json", policy.model_dump_json(indent=2) + "\n")
    for table in (kept_table(filtered.rulings), losses_table(filtered.losses)):
        write_text(folder / f"{table.key}.csv", table.csv())
    tables = [filtered.funnel.table(), loss_by_category_table(candidates, filtered.losses)]
    return write_tables(tables, folder, "funnel.md", "What became of every item")


def _unopposed(edited: Sequence[Candidate], panel: Panel, run: Run) -> list[Candidate]:
    """Return the candidates that no rule rejects: those that judges are needed for."""
    rejected = {
        (verdict.edit_id, verdict.image_sha256)
        for verdict in run.read(Verdict)
        if verdict.rater in panel.rules and verdict.decision == "reject"
    }
    return [c for c in edited if c.edit and (c.edit.id, c.edit.image.sha256) not in rejected]

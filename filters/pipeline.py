"""Turn candidates into a paired benchmark: apply rules, ask judges, apply the policy."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from flipbench.config.policy import Policy
from flipbench.core.errors import DataError
from flipbench.core.files import write_atomically
from flipbench.core.paired import UNJUDGED, Candidate, PairedBenchmark
from flipbench.core.records import Caption, Edit, Failure, Flip, Item, Verdict
from flipbench.core.run import Run
from flipbench.core.stage import DEFAULTS, StageOptions, StageReport, run_stage
from flipbench.models.protocols import Judge, release
from flipbench.reporting.writers import rows_csv, write_tables

from . import funnel, kept_list
from .decide import Raters, index_verdicts, tally, verdicts_on
from .funnel import Filtered, read_columns, rule_on
from .judges.rules import RuleStage, build_rules
from .judges.stage import JudgeStage
from .kept_list import kept_rows

log = logging.getLogger(__name__)
FOLDER = "filter"
MAX_UNSURE = 0.2
"""The share of a judge's verdicts that may be "unsure" without a warning."""


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

    Anything but a clear "keep" (a rejection, "unsure", a failed judge) is not kept. The kept list,
    the reason of every loss, the funnel and the policy are written to ``filter/`` in the run.

    Parameters
    ----------
    judges : sequence of Judge
        The judges to use. Verdicts of other judges in the run are ignored; people's verdicts count
        as the policy defines.
    policy : Policy, optional
        By default a pair is kept if no rule objects and every judge keeps it; people override
        both.

    Returns
    -------
    benchmark : PairedBenchmark
        The kept pairs, in the candidates' order.
    reports : list of StageReport
        One for the rules, if any, and one for each run of each judge.

    Raises
    ------
    DataError
        If there is nothing to judge.
    """
    policy = policy or Policy()
    raters, reports = rate(candidates, judges, run, policy, options)
    filtered = apply_policy(candidates, raters, run, policy)
    write_filtered(filtered, run.path / FOLDER, policy)
    kept_rulings = [ruling for ruling in filtered.rulings if ruling.kept]
    pairs = tuple(r.candidate.pair("keep" if r.decided_by else UNJUDGED) for r in kept_rulings)
    names = {rater for ruling in kept_rulings for rater in ruling.decided_by}
    made_by = {"raters": raters_text(names, run)} if names else {}
    benchmark = PairedBenchmark(name, pairs, run.images, filtered.counts, made_by)
    return replace(benchmark, bad_edits=bad_edits(candidates, raters, run, policy)), reports


def bad_edits(
    candidates: Sequence[Candidate], raters: Raters, run: Run, policy: Policy
) -> tuple[int, int] | None:
    """Return how many pairs people or an oracle rejected of those that the judges kept.

    With the number of those that they looked at; None if there are none. Ties count as rejected.
    """
    if not raters.judges:
        return None
    judges_alone = policy.model_copy(update={"people": "ignore", "reviewers": ()})
    verdicts = index_verdicts(run.read(Verdict))
    decisions = [
        tally([verdict.decision for verdict in others], "majority")
        for candidate in apply_policy(candidates, raters, run, judges_alone).kept
        if (others := [v for v in verdicts_on(candidate, verdicts) if _is_check(v, raters)])
    ]
    n_bad = sum(decision != "keep" for decision in decisions)
    return (n_bad, len(decisions)) if decisions else None


def _is_check(verdict: Verdict, raters: Raters) -> bool:
    """Return whether a verdict is another's than the judges'."""
    return verdict.rater_kind in ("person", "oracle") and verdict.rater not in raters.judges


def raters_text(names: Collection[str], run: Run) -> str:
    """Return who judged, for cards: judges by name, and how many people, whose names stay private.

    Names that the run has no verdicts by are given as they are.
    """
    people = {v.rater for v in run.read(Verdict) if v.rater_kind == "person"} & {*names}
    judges = sorted({*names} - people)
    n = len(people)
    return ", ".join([*judges, f"{n} {'person' if n == 1 else 'people'}"] if n else judges)


def rate(
    candidates: Sequence[Candidate],
    judges: Sequence[Judge],
    run: Run,
    policy: Policy,
    options: StageOptions = DEFAULTS,
) -> tuple[Raters, list[StageReport]]:
    """Append missing verdicts of rules and judges to ``run``; return the raters and reports.

    Raises
    ------
    DataError
        If there is nothing to judge.
    """
    edited_candidates = [c for c in candidates if c.edit]
    if not edited_candidates:
        raise DataError("there are no edited images to judge; run 'flipbench generate' first")
    rules = build_rules(policy.rules, edited_candidates)
    raters = Raters(
        judges=tuple(dict.fromkeys(judge.name for judge in judges)),
        rules={rule.name: rule.slug for rule in rules},
    )
    reports = []
    if rules:
        pairs = [(rule.name, candidate) for rule in rules for candidate in edited_candidates]
        rule_stage = RuleStage(rules, run.images)
        reports.append(run_stage(rule_stage, pairs, run, replace(options, batch_size=64)))
    unopposed = _unopposed(edited_candidates, raters.rules, run) if judges else edited_candidates
    for judge in judges:
        tasks = edited_candidates if _rates_rejected(judge, policy) else unopposed
        reports += [run_stage(stage, tasks, run, options) for stage in _runs_of(judge, run, policy)]
        release(judge)
        _warn_of_doubt(judge, tasks, run)
    return raters, reports


def _warn_of_doubt(judge: Judge, candidates: Sequence[Candidate], run: Run) -> None:
    """Warn if a judge decides neither way on more than `MAX_UNSURE` of the pairs."""
    edits = {c.edit.id for c in candidates if c.edit}
    verdicts = [v for v in run.read(Verdict) if v.rater == judge.name and v.edit_id in edits]
    unsure = [verdict for verdict in verdicts if verdict.decision == "unsure"]
    if len(unsure) > MAX_UNSURE * len(verdicts):
        reasons = Counter(verdict.reason.partition(";")[0][:100] for verdict in unsure)
        log.warning(
            "%s decides neither way on %d of %d pairs (%.0f %%), mostly: %s",
            *(judge.name, len(unsure), len(verdicts), 100 * len(unsure) / len(verdicts)),
            reasons.most_common(1)[0][0] or "no reason given",
        )


def unjudged(
    candidates: Sequence[Candidate], judge: Judge, run: Run, policy: Policy
) -> list[Candidate]:
    """Return the candidates a judge has yet to rate, once per run of the judge; calls no judge.

    A candidate without an edited image counts as not yet rated.
    """
    tasks = edited_candidates = [c for c in candidates if c.edit]
    if not _rates_rejected(judge, policy):
        rules = {rule.name for rule in build_rules(policy.rules, edited_candidates)}
        tasks = _unopposed(edited_candidates, rules, run)
    verdict_ids = run.ids(Verdict)
    return [
        c
        for stage in _runs_of(judge, run, policy)
        for c in [*tasks, *(c for c in candidates if not c.edit)]
        if c.edit is None or stage.id_of(c) not in verdict_ids
    ]


def apply_policy(
    candidates: Sequence[Candidate], raters: Raters, run: Run, policy: Policy
) -> Filtered:
    """Decide on all candidates from the verdicts in ``run``; calls no judge."""
    verdicts = index_verdicts(run.read(Verdict))
    return rule_on(candidates, verdicts, run.read(Failure), policy, raters)


def write_filtered(filtered: Filtered, folder: Path, policy: Policy) -> Path:
    """Write ``kept.csv``, ``reasons.csv``, the funnel and the policy; return the page's path."""
    write_atomically(folder / "policy.json", policy.model_dump_json(indent=2) + "\n")
    kept_csv = rows_csv(kept_list.HEADERS, kept_rows(filtered.rulings))
    write_atomically(folder / "kept.csv", kept_csv)
    write_atomically(folder / "reasons.csv", rows_csv(funnel.HEADERS, filtered.loss_rows()))
    tables = [filtered.funnel(), filtered.losses_by_category()]
    return write_tables(tables, folder, "funnel.md", "What happened to every item")


def filtered_in(run: Run) -> list[Candidate]:
    """Return the candidates of the last filtering, kept or not, in the order of the run's items.

    They are read from ``kept.csv`` and ``reasons.csv``; the list is empty if the run has not been
    filtered yet.

    Raises
    ------
    DataError
        If one of the two files cannot be read.
    """
    edit_ids: dict[str, str] = {}
    for path in (run.path / FOLDER / "kept.csv", run.path / FOLDER / "reasons.csv"):
        if not path.exists():
            return []
        edit_ids |= {item_id: edit for item_id, edit in read_columns(path, "item_id", "edit_id")}
    return candidates_of(run, edit_ids)


def edited_in(run: Run) -> list[Candidate]:
    """Return the edited candidates, judged or not, in the order of the run's items.

    Of an item's edits, the newest counts.
    """
    flips, captions = run.index(Flip), run.index(Caption)
    newest: dict[str, str] = {}
    for edit in run.read(Edit):
        caption = captions.get(edit.caption_id)
        if caption and caption.flip_id in flips:
            newest[flips[caption.flip_id].item_id] = edit.id
    return candidates_of(run, newest)


def candidates_of(run: Run, edit_ids: Mapping[str, str]) -> list[Candidate]:
    """Return the items that are named, each with its edit and what led to it."""
    flips, captions, edits = run.index(Flip), run.index(Caption), run.index(Edit)
    candidates = []
    for item in run.read(Item):
        if item.id in edit_ids:
            edit = edits.get(edit_ids[item.id])
            caption = captions.get(edit.caption_id) if edit else None
            flip = flips.get(caption.flip_id) if caption else None
            candidates.append(Candidate(item, flip, caption, edit))
    return candidates


def _rates_rejected(judge: Judge, policy: Policy) -> bool:
    """Return whether a judge also rates what rules reject; an oracle does, to measure rules."""
    return policy.ask_rejected or judge.rater_kind == "oracle"


def _runs_of(judge: Judge, run: Run, policy: Policy) -> list[JudgeStage]:
    return [JudgeStage(judge, run.images, number) for number in range(policy.n_runs)]


def _unopposed(
    candidates: Sequence[Candidate], rules: Collection[str], run: Run
) -> list[Candidate]:
    """Return the candidates that no rule rejects."""
    rejected = {
        (verdict.edit_id, verdict.image_sha256)
        for verdict in run.read(Verdict)
        if verdict.rater in rules and verdict.decision == "reject"
    }
    return [c for c in candidates if c.edit and (c.edit.id, c.edit.image.sha256) not in rejected]

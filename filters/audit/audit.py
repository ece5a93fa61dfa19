"""Run the hygiene checks of a benchmark, with or without flipping, and build the funnel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from flipbench.benchmarks import Benchmark
from flipbench.config.audit import AuditSettings, CheckName
from flipbench.core.errors import DataError
from flipbench.core.images import ImageStore
from flipbench.core.records import Item, Value
from flipbench.core.run import Run
from flipbench.core.stage import StageReport
from flipbench.models.chat.messages import Chat
from flipbench.models.protocols import VLM

from .direct_reveal import direct_reveal
from .duplicates import ImageGroups, duplicates, image_groups, train_overlap
from .finding import AuditFinding, NamedRate, correct
from .options import (
    balance_letters,
    balance_longest,
    letter_balance,
    longest_option,
    option_pruning,
)
from .stress_test import stress_test
from .text_only import TextModel, text_solvable

_TESTED: tuple[CheckName, ...] = ("longest_option", "letter_balance", "stress_test")


class AuditStep(Value):
    """One step of the funnel: ``n_before - n_dropped - n_person == n_after``."""

    check: str
    title: str
    n_before: int
    n_dropped: int
    n_person: int
    n_after: int


@dataclass(frozen=True)
class AuditReport:
    """The result of an audit.

    Attributes
    ----------
    findings : list of AuditFinding
        One per check, in the order they ran.
    funnel : list of AuditStep
        One per check that removes items.
    kept : list of Item
        The remaining items, unchanged.
    mended : list of Item
        The remaining items, with options pruned and correct letters balanced if checks propose it.
    reports : list of StageReport
        Of the stages that asked models; run the audit again if any has failures.
    """

    benchmark: Benchmark
    images: ImageStore
    settings: AuditSettings
    findings: list[AuditFinding]
    funnel: list[AuditStep]
    kept: list[Item]
    mended: list[Item]
    reports: list[StageReport] = field(default_factory=list)


def audit(
    benchmark: Benchmark,
    run: Run,
    settings: AuditSettings | None = None,
    *,
    text_models: Sequence[TextModel] = (),
    held_out: Sequence[TextModel] = (),
    reader: Chat | None = None,
    vlms: Sequence[VLM] = (),
    train: Sequence[Item] | None = None,
    progress: bool = True,
) -> AuditReport:
    """Run the checks of ``settings`` on a benchmark.

    Parameters
    ----------
    benchmark : Benchmark
        Its images must be in ``run.images``.
    run : Run
        Stores models' answers, so that a repeated audit asks nothing twice.
    text_models, held_out : sequence of TextModel
        Models that answer without images: for filtering, and for measuring its effect.
    reader : Chat, optional
        Checks questions for revealed answers.
    vlms : sequence of VLM
        Preliminary models that see the images; their errors select the options to keep.
    train : sequence of Item, optional
        The benchmark's training split, with its images in ``run.images`` too.

    Raises
    ------
    DataError
        If there are no items, or a model is both used to filter and held out.
    """
    settings = settings or AuditSettings()
    items = benchmark.items
    if not items:
        raise DataError(
            f"{benchmark.name}: no usable items; 'flipbench import' reports what is wrong"
        )
    names = {model.name for model in text_models} & {model.name for model in held_out}
    if names:
        raise DataError(f"{min(names)}: a model that filters cannot be held out too; list it once")
    groups = image_groups(items, run.images, settings, progress=progress)
    findings: list[AuditFinding] = []
    reports: list[StageReport] = []
    pruned = items
    for check in dict.fromkeys(settings.checks):
        if check == "duplicates":
            finding = duplicates(items, groups)
        elif check == "train_overlap":
            finding = train_overlap(items, groups, train, run.images, settings, progress=progress)
        elif check == "direct_reveal":
            finding, check_reports = direct_reveal(items, settings, run, reader, progress=progress)
            reports += check_reports
        elif check == "text_solvable":
            finding, check_reports = text_solvable(
                items, settings, run, text_models, held_out, progress=progress
            )
            reports += check_reports
        elif check == "longest_option":
            finding = longest_option(items)
        elif check == "letter_balance":
            finding = letter_balance(items, settings)
        elif check == "option_pruning":
            finding, pruned, check_reports = option_pruning(
                items, settings, run, vlms, progress=progress
            )
            reports += check_reports
        else:
            finding = stress_test(items, settings, _fold_groups(items, groups))
        findings.append(finding)
    findings = [_with_status(finding, settings) for finding in correct(findings)]
    findings, funnel, kept_items = _funnel(items, findings, settings)
    kept_ids = {item.id for item in kept_items}
    mended = [p for item, p in zip(items, pruned, strict=True) if item.id in kept_ids]
    if any(f.check == "letter_balance" and f.status == "defect" for f in findings):
        mended = balance_letters(mended, settings.seed)
    return AuditReport(
        benchmark, run.images, settings, findings, funnel, kept_items, mended, reports
    )


def _fold_groups(items: Sequence[Item], groups: ImageGroups) -> list[object]:
    """Return each item's group, which must stay in one fold: its own, or that of its images."""
    return [item.group or groups.key(item) or None for item in items]


def _with_status(finding: AuditFinding, settings: AuditSettings) -> AuditFinding:
    """Return the finding with the status that follows from its corrected tests.

    A significant test of the benchmark is a defect. A model that is above chance without images
    calls for a look even if no single item is dropped.
    """
    is_significant = any(_is_significant(rate, settings) for rate in finding.rates)
    if finding.check == "text_solvable" and finding.status == "ok" and is_significant:
        return finding.model_copy(update={"status": "look"})
    if finding.check not in _TESTED or finding.status == "not_run":
        return finding
    return finding.model_copy(update={"status": "defect" if is_significant else "ok"})


def _funnel(
    items: Sequence[Item], findings: Sequence[AuditFinding], settings: AuditSettings
) -> tuple[list[AuditFinding], list[AuditStep], list[Item]]:
    """Remove the items each check flags, one check after the other."""
    remaining = list(items)
    steps, out = [], []
    for finding in findings:
        # rates[0] of this check is that of the longest option; rates[1] is of the shortest
        longest = finding.rates[:1] if finding.check == "longest_option" else ()
        if any(_is_significant(rate, settings) for rate in longest):
            removals = tuple(balance_longest(remaining, settings.seed))
            finding = finding.model_copy(update={"items": removals})
        out.append(finding)
        drop, person = finding.ids("drop"), finding.ids("person")
        if not drop and not person:
            continue
        not_dropped = [item for item in remaining if item.id not in drop]
        kept_items = [item for item in not_dropped if item.id not in person]
        steps.append(
            AuditStep(
                check=finding.check,
                title=finding.title,
                n_before=len(remaining),
                n_dropped=len(remaining) - len(not_dropped),
                n_person=len(not_dropped) - len(kept_items),
                n_after=len(kept_items),
            )
        )
        remaining = kept_items
    return out, steps, remaining


def _is_significant(rate: NamedRate, settings: AuditSettings) -> bool:
    return rate.p_adjusted is not None and rate.p_adjusted <= settings.alpha

"""All hygiene checks of a benchmark, before or without flipping, and the funnel they leave."""

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
from .finding import AuditFinding, correct
from .letter_balance import balance_letters, letter_balance
from .longest_option import balance_longest, longest_option
from .option_pruning import option_pruning
from .stress_test import stress_test
from .text_only import TextModel
from .text_solvable import text_solvable

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
    """What an audit found.

    Attributes
    ----------
    benchmark : Benchmark
    images : ImageStore
    findings : list of AuditFinding
        One for each check, in the order they were made.
    funnel : list of AuditStep
        The items after each check that takes items out.
    kept : list of Item
        What is left, as it was.
    mended : list of Item
        The same with options pruned and right letters balanced, where the checks propose it.
    reports : list of StageReport
        What asking models did; a failure among them is worth another run.
    """

    benchmark: Benchmark
    images: ImageStore
    settings: AuditSettings
    findings: list[AuditFinding]
    funnel: list[AuditStep]
    kept: list[Item]
    mended: list[Item]
    reports: list[StageReport] = field(default_factory=list)

    def finding(self, check: CheckName) -> AuditFinding:
        """Return the finding of a check.

        Raises
        ------
        KeyError
            If the check was not asked for.
        """
        return {found.check: found for found in self.findings}[check]


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
        Its images lie in ``run.images``.
    run : Run
        Where answers of models are kept: the same audit again asks nothing twice.
    text_models, held_out : sequence of TextModel
        Models that answer without images, to filter with and to judge the filtering by.
    reader : Chat, optional
        Reads the questions for answers that they give away.
    vlms : sequence of VLM
        Preliminary models that see; their errors say which options confuse.
    train : sequence of Item, optional
        The benchmark's training split, its images in ``run.images`` too.

    Raises
    ------
    DataError
        If there is no item, or a model is to filter and to be held out at once.
    """
    settings = settings or AuditSettings()
    items = benchmark.items
    if not items:
        raise DataError(
            f"{benchmark.name}: no item that can be used; 'flipbench import' names what is wrong"
        )
    both = {model.name for model in text_models} & {model.name for model in held_out}
    if both:
        raise DataError(f"{min(both)}: a model that filters cannot be held out too; name it once")
    groups = image_groups(items, run.images, settings, progress=progress)
    findings: dict[str, AuditFinding] = {}
    reports: list[StageReport] = []
    pruned = items
    for check in settings.checks:
        if check == "duplicates":
            found = duplicates(items, groups)
        elif check == "train_overlap":
            found = train_overlap(items, groups, train, run.images, settings, progress=progress)
        elif check == "direct_reveal":
            found, more = direct_reveal(items, settings, run, reader, progress=progress)
            reports += more
        elif check == "text_solvable":
            found, more = text_solvable(
                items, settings, run, text_models, held_out, progress=progress
            )
            reports += more
        elif check == "longest_option":
            found = longest_option(items)
        elif check == "letter_balance":
            found = letter_balance(items, settings)
        elif check == "option_pruning":
            found, pruned, more = option_pruning(items, settings, run, vlms, progress=progress)
            reports += more
        else:
            found = stress_test(items, settings, _folds(items, groups))
        findings[check] = found
    judged = [_judge(found, settings) for found in correct(list(findings.values()))]
    judged, funnel, kept = _funnel(items, judged, settings)
    left = {item.id for item in kept}
    mended = [new for old, new in zip(items, pruned, strict=True) if old.id in left]
    if any(found.check == "letter_balance" and found.status == "defect" for found in judged):
        mended = balance_letters(mended, settings.seed)
    return AuditReport(benchmark, run.images, settings, judged, funnel, kept, mended, reports)


def _folds(items: Sequence[Item], groups: ImageGroups) -> list[object]:
    """Return what must not be torn apart: copies of an image, and the benchmark's own groups."""
    return [item.group or groups.key(item) or None for item in items]


def _judge(found: AuditFinding, settings: AuditSettings) -> AuditFinding:
    """Return the finding with the status that its corrected tests give it.

    A failed test of the benchmark is a defect. A model that answers above chance without images is
    worth a look even where no item is solved surely enough to be left out.
    """
    hit = any(r.p_adjusted is not None and r.p_adjusted <= settings.alpha for r in found.rates)
    if found.check == "text_solvable" and found.status == "ok" and hit:
        return found.model_copy(update={"status": "look"})
    if found.check not in _TESTED or found.status == "not_run":
        return found
    return found.model_copy(update={"status": "defect" if hit else "ok"})


def _funnel(
    items: Sequence[Item], findings: Sequence[AuditFinding], settings: AuditSettings
) -> tuple[list[AuditFinding], list[AuditStep], list[Item]]:
    """Take out what the checks say, one after the other."""
    left = list(items)
    steps, out = [], []
    for found in findings:
        if found.check == "longest_option" and _longest_too_often(found, settings):
            removed = tuple(balance_longest(left, settings.seed))
            found = found.model_copy(update={"items": removed})
        out.append(found)
        drop, person = found.named("drop"), found.named("person")
        if not drop and not person:
            continue
        before = len(left)
        n_dropped = sum(item.id in drop for item in left)
        left = [item for item in left if item.id not in drop]
        n_person = sum(item.id in person for item in left)
        left = [item for item in left if item.id not in person]
        steps.append(
            AuditStep(
                check=found.check,
                title=found.title,
                n_before=before,
                n_dropped=n_dropped,
                n_person=n_person,
                n_after=len(left),
            )
        )
    return out, steps, left


def _longest_too_often(found: AuditFinding, settings: AuditSettings) -> bool:
    p = found.rates[0].p_adjusted if found.rates else None
    return p is not None and p <= settings.alpha

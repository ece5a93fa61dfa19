"""Items that models solve without the image, and text-only accuracy after filtering."""

from __future__ import annotations

from collections.abc import Sequence

from scipy import stats

from flipbench.config.audit import AuditSettings
from flipbench.core.records import Item
from flipbench.core.run import Run
from flipbench.core.stage import StageReport

from .finding import (
    AuditFinding,
    FlaggedItem,
    NamedRate,
    chances_of,
    flag,
    multiple_choice,
    n_items,
    not_run,
    rate,
)
from .text_only import BlindOutcomes, TextModel, ask_blind

TITLE = "Items solvable from text alone"


def text_solvable(
    items: Sequence[Item],
    settings: AuditSettings,
    run: Run,
    models: Sequence[TextModel] = (),
    held_out: Sequence[TextModel] = (),
    *,
    progress: bool = True,
) -> tuple[AuditFinding, list[StageReport]]:
    """Ask M models R times without images, flag the solved items, and test held-out models.

    Of two rules, ``settings.rule`` drops items; the other is reported, too.

    * ``all_correct``: at least ``min_models`` models are correct in every run.
    * ``posterior``: the posterior mean of the solve rate, (correct + 1)/(answers + 2), is above
      ``max_solve_rate``.

    Missing answers count as not correct; items with missing answers are counted.

    References
    ----------
    MedThinkVQA, section 3.3 and appendices (3 models x 3 runs, dropped if 9 of 9 are correct; its
    script drops items after a single correct answer, so the rule is explicit here). Differs from
    the paper in rotating the options in each run, so that a model which always answers B solves
    nothing; in the second rule; and in held-out models, since selection biases the filtering
    models' accuracy after filtering downwards.
    """
    asked = multiple_choice(items)
    if not models or not asked:
        why = "No text-only model was given." if asked else "No item has options."
        how = "Give two or three models to filter with and, ideally, another one held out."
        return not_run("text_solvable", TITLE, why, how), []
    filtering, reports = ask_blind(asked, models, run, settings.n_runs, progress)
    tested, more = ask_blind(asked, held_out, run, settings.n_runs, progress)
    by_item = list(zip(*(m.outcomes for m in filtering), strict=True))  # shape (N, M, R)
    solved = {
        "all_correct": [all_correct(rows, settings.min_models) for rows in by_item],
        "posterior": [solve_rate(rows) > settings.max_solve_rate for rows in by_item],
    }
    drop = solved[settings.rule]
    expected = _expected_by_guessing(asked, settings, len(models))
    n = len(asked)
    rates = [_accuracy(f"{m.model}, without images", asked, m, [True] * n) for m in filtering]
    for m in filtering:
        k = sum(all(r is True for r in row) for row in m.outcomes)
        rates.append(rate(f"{m.model}, correct in every run", k, n))
    rates += [rate(f"solved, rule {rule}", sum(flags), n) for rule, flags in solved.items()]
    for m in tested:
        rates.append(_accuracy(f"{m.model} (held out), all items", asked, m, [True] * n))
        kept = [not dropped for dropped in drop]
        rates.append(_accuracy(f"{m.model} (held out), items kept", asked, m, kept))
        rates.append(_accuracy(f"{m.model} (held out), items dropped", asked, m, drop, test=False))
    missing = sum(any(None in row for row in rows) for rows in by_item)
    finding = AuditFinding(
        check="text_solvable",
        title=TITLE,
        status="defect" if any(drop) else "ok",
        sentence=f"{sum(drop)} of {n_items(n)} are solved without the image (rule"
        f" {settings.rule}, {len(models)} model{'s' * (len(models) > 1)} x {settings.n_runs} runs);"
        f" guessing alone would solve {expected:.2g}.",
        todo="Leave out the items flagged here, or change them so that the image is needed. If a"
        " model is above chance on the kept items, find out what it knows or guesses from.",
        limits="Models used for filtering look worse afterwards than others: judge the kept items"
        " by held-out models"
        + ("." if held_out else ", of which none was given.")
        + (
            f" Answers are missing for {n_items(missing)}; missing answers count as not correct."
            if missing
            else ""
        ),
        rates=tuple(rates),
        items=tuple(
            _flag(item, rows)
            for item, rows, dropped in zip(asked, by_item, drop, strict=True)
            if dropped
        ),
        details={
            "rule": settings.rule,
            "models": [m.name for m in models],
            "held_out": [m.name for m in held_out],
            "expected_by_guessing": expected,
            "n_incomplete": missing,
            "n_left_out": len(items) - n,
        },
    )
    return finding, [*reports, *more]


def all_correct(rows: Sequence[Sequence[bool | None]], min_models: int | None = None) -> bool:
    """Return whether at least ``min_models`` (default: all) models were correct in every run.

    >>> all_correct([[True, True], [True, None]]), all_correct([[True, True], [True, False]], 1)
    (False, True)
    """
    needed = len(rows) if min_models is None else min_models
    return sum(all(outcome is True for outcome in row) for row in rows) >= needed


def solve_rate(rows: Sequence[Sequence[bool | None]]) -> float:
    """Return the posterior mean of an item's solve rate under a uniform prior.

    All answers have equal weight: 9 of 9 give 10/11, one model's 3 of 3 give 4/5.

    >>> solve_rate([[True, True, True]])
    0.8
    """
    outcomes = [outcome for row in rows for outcome in row if outcome is not None]
    return (sum(outcomes) + 1) / (len(outcomes) + 2)


def _accuracy(
    name: str,
    items: Sequence[Item],
    model: BlindOutcomes,
    mask: Sequence[bool],
    *,
    test: bool = True,
) -> NamedRate:
    """Return the accuracy of the first run over the items of ``mask`` that it answered.

    Further runs repeat the same items, so they are no independent evidence.
    """
    rows = [
        (item, row[0])
        for item, row, selected in zip(items, model.outcomes, mask, strict=True)
        if selected and row[0] is not None
    ]
    k = sum(outcome is True for _, outcome in rows)
    accuracy = rate(name, k, len(rows), chances_of([item for item, _ in rows]))
    return accuracy if test else accuracy.model_copy(update={"p_value": None})


def _expected_by_guessing(items: Sequence[Item], settings: AuditSettings, n_models: int) -> float:
    """Return the expected number of solved items if each answer is correct with chance 1/k."""
    n_runs, total = settings.n_runs, 0.0
    for chance in chances_of(items):
        if settings.rule == "all_correct":
            needed = settings.min_models or n_models
            total += float(stats.binom.sf(needed - 1, n_models, chance**n_runs))
        else:
            n = n_models * n_runs
            least = settings.max_solve_rate * (n + 2) - 1
            total += float(stats.binom.sf(least + 1e-9, n, chance))
    return total


def _flag(item: Item, rows: Sequence[Sequence[bool | None]]) -> FlaggedItem:
    k = sum(outcome is True for row in rows for outcome in row)
    n = sum(outcome is not None for row in rows for outcome in row)
    return flag(item, "drop", f"correct without the image in {k} of {n} answers")

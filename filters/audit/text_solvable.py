"""Items that models solve without the image, and what is left of that after filtering."""

from __future__ import annotations

from collections.abc import Sequence

from scipy import stats

from flipbench.config.audit import AuditSettings
from flipbench.core.records import Item
from flipbench.core.run import Run
from flipbench.core.stage import StageReport

from .finding import (
    AuditFinding,
    Named,
    NamedRate,
    chances_of,
    choices,
    n_items,
    not_run,
    rate,
)
from .text_only import Blind, TextModel, ask_blind

TITLE = "Items that text alone solves"


def text_solvable(
    items: Sequence[Item],
    settings: AuditSettings,
    run: Run,
    models: Sequence[TextModel] = (),
    held_out: Sequence[TextModel] = (),
    *,
    progress: bool = True,
) -> tuple[AuditFinding, list[StageReport]]:
    """Ask M models R times without images, name the solved items, and see what held-out models say.

    Two rules; ``settings.rule`` says which one drops, the other is reported beside it.

    * ``all_correct``: at least ``min_models`` models are right in every run.
    * ``posterior``: the posterior mean of the solve rate, (right + 1)/(answers + 2), is above
      ``max_solve_rate``.

    An answer that is missing is not right; an item with too few answers to decide is counted.

    References
    ----------
    MedThinkVQA, section 3.3 and appendices (3 models x 3 runs, dropped if 9 of 9 are right;
    its script drops at a single right answer, so the rule is explicit here). Differs from the
    paper in that each run turns the options round, so that a model which always says B solves
    nothing; in the second rule; and in held-out models, since accuracy of the filtering models
    after filtering is too low by selection.
    """
    asked = choices(items)
    if not models or not asked:
        why = "No text-only model was given." if asked else "No item has options."
        how = "Name two or three models to filter with and, better still, another one held out."
        return not_run("text_solvable", TITLE, why, how), []
    blind, reports = _ask_all(asked, models, run, settings.n_runs, progress)
    tested, more = _ask_all(asked, held_out, run, settings.n_runs, progress)
    solved = {
        "all_correct": [all_correct(rows, settings.min_models) for rows in _by_item(blind)],
        "posterior": [solve_rate(rows) > settings.max_solve_rate for rows in _by_item(blind)],
    }
    drop = solved[settings.rule]
    lucky = _expected_by_guessing(asked, settings, len(models))
    n = len(asked)
    rates = [_accuracy(f"{m.model}, without images", asked, m, [True] * n) for m in blind]
    rates += [
        rate(
            f"{m.model}, right in every run", sum(all(r is True for r in x) for x in m.outcomes), n
        )
        for m in blind
    ]
    rates += [rate(f"solved, rule {rule}", sum(found), n) for rule, found in solved.items()]
    for m in tested:
        rates.append(_accuracy(f"{m.model} (held out), all items", asked, m, [True] * n))
        kept = [not gone for gone in drop]
        rates.append(_accuracy(f"{m.model} (held out), items kept", asked, m, kept))
        rates.append(_accuracy(f"{m.model} (held out), items dropped", asked, m, drop, test=False))
    missing = sum(any(None in row for row in rows) for rows in _by_item(blind))
    finding = AuditFinding(
        check="text_solvable",
        title=TITLE,
        status="defect" if any(drop) else "ok",
        sentence=f"{sum(drop)} of {n_items(n)} are solved without the image (rule"
        f" {settings.rule}, {len(models)} model{'s' * (len(models) > 1)} x {settings.n_runs} runs);"
        f" guessing alone would solve {lucky:.2g} of them.",
        todo="Leave the items named here out, or mend them so that the image is needed. Where a"
        " model is above chance on what is kept, look for what it knows or guesses from.",
        limits="Models used to filter look worse afterwards than models that were not: judge what"
        " is left by the held-out ones"
        + ("." if held_out else ", of which none was given.")
        + (
            f" Answers are missing for {n_items(missing)}, which count as not right."
            if missing
            else ""
        ),
        rates=tuple(rates),
        items=tuple(
            _named(item, rows)
            for item, rows, gone in zip(asked, _by_item(blind), drop, strict=True)
            if gone
        ),
        details={
            "rule": settings.rule,
            "models": [m.name for m in models],
            "held_out": [m.name for m in held_out],
            "expected_by_guessing": lucky,
            "n_incomplete": missing,
            "n_left_out": len(items) - n,
        },
    )
    return finding, [*reports, *more]


def all_correct(rows: Sequence[Sequence[bool | None]], min_models: int | None = None) -> bool:
    """Return whether at least ``min_models`` (all) of the models were right in every run.

    >>> all_correct([[True, True], [True, None]]), all_correct([[True, True], [True, False]], 1)
    (False, True)
    """
    needed = len(rows) if min_models is None else min_models
    return sum(all(outcome is True for outcome in row) for row in rows) >= needed


def solve_rate(rows: Sequence[Sequence[bool | None]]) -> float:
    """Return the posterior mean of an item's solve rate under a uniform prior.

    All answers count alike; 9 of 9 give 10/11, and one model's 3 of 3 only 4/5.

    >>> solve_rate([[True, True, True]])
    0.8
    """
    given = [outcome for row in rows for outcome in row if outcome is not None]
    return (sum(given) + 1) / (len(given) + 2)


def _ask_all(
    items: Sequence[Item], models: Sequence[TextModel], run: Run, n_runs: int, progress: bool
) -> tuple[list[Blind], list[StageReport]]:
    found, reports = [], []
    for model in models:
        blind, done = ask_blind(items, model, run, n_runs, progress=progress)
        found.append(blind)
        reports += done
    return found, reports


def _by_item(blind: Sequence[Blind]) -> list[list[list[bool | None]]]:
    """Return outcomes of shape (N, M, R)."""
    return [list(rows) for rows in zip(*(m.outcomes for m in blind), strict=True)]


def _accuracy(
    name: str, items: Sequence[Item], blind: Blind, mask: Sequence[bool], *, test: bool = True
) -> NamedRate:
    """Return the accuracy of the first run over the items of ``mask`` that it answered.

    One run, since the others ask the same items again and are no new evidence.
    """
    rows = [
        (item, row[0])
        for item, row, wanted in zip(items, blind.outcomes, mask, strict=True)
        if wanted and row[0] is not None
    ]
    k = sum(outcome is True for _, outcome in rows)
    chances = chances_of([item for item, _ in rows])
    found = rate(name, k, len(rows), chances)
    return found if test else found.model_copy(update={"p_value": None})


def _expected_by_guessing(items: Sequence[Item], settings: AuditSettings, n_models: int) -> float:
    """Return how many items guessing would solve, each answer right with probability 1/k."""
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


def _named(item: Item, rows: Sequence[Sequence[bool | None]]) -> Named:
    k = sum(outcome is True for row in rows for outcome in row)
    n = sum(outcome is not None for row in rows for outcome in row)
    why = f"right without the image in {k} of {n} answers"
    return Named(item_id=item.id, name=item.name, action="drop", why=why)

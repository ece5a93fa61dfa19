"""Confusion-aware pruning: of many options, keep those that models confuse with the answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from flipbench.config.audit import AuditSettings
from flipbench.core.randomness import generator
from flipbench.core.records import Item
from flipbench.core.run import Run
from flipbench.core.stage import StageOptions, StageReport
from flipbench.models.engine import answers_of, ask
from flipbench.models.protocols import VLM
from flipbench.prompting.prompts import LETTERS

from .finding import AuditFinding, FlaggedItem, flag, multiple_choice, n_items, not_run
from .letter_balance import has_fixed_options
from .text_only import letter_settings

TITLE = "Items with many options"


def prune_options(item: Item, wrong_picks: Mapping[int, int], n_options: int, seed: int) -> Item:
    """Return the item with at most ``n_options`` options.

    Keeps the correct option, then the wrong options that most models chose, then others at random;
    their order does not change. `letter_balance.balance_letters` reassigns the letters afterwards.

    Parameters
    ----------
    wrong_picks : mapping of int to int
        Number of models that chose each option; may include the correct one.

    References
    ----------
    MedThinkVQA, section 3.3 and appendices. Differs from the paper in using any number of
    models (there, one wrong choice of one model, which makes that model look worse than others),
    and in leaving items unchanged if an option refers to others.
    """
    if item.options is None or item.answer is None or len(item.options) <= n_options:
        return item
    if has_fixed_options(item):
        return item
    others = [slot for slot in range(len(item.options)) if slot != item.answer]
    rng = generator(seed, item.id, "prune options")
    shuffled = [others[i] for i in rng.permutation(len(others))]
    chosen = sorted(shuffled, key=lambda slot: -wrong_picks.get(slot, 0))[: n_options - 1]
    kept = sorted([item.answer, *chosen])
    return item.revised(
        options=tuple(item.options[slot] for slot in kept),
        answer=kept.index(item.answer),
        extra=item.extra | {"pruned_from": item.id, "kept_options": kept},
    )


def with_many_options(items: Sequence[Item], n_options: int) -> list[Item]:
    """Return the multiple-choice items with more than ``n_options`` options."""
    return [item for item in multiple_choice(items) if len(item.options or ()) > n_options]


def option_pruning(
    items: Sequence[Item],
    settings: AuditSettings,
    run: Run,
    models: Sequence[VLM] = (),
    *,
    progress: bool = True,
) -> tuple[AuditFinding, list[Item], list[StageReport]]:
    """Ask preliminary models, with the image, and prune every item with too many options.

    Returns
    -------
    finding : AuditFinding
    pruned : list of Item
        All items, those with too many options pruned.
    reports : list of StageReport
        Of asking the models.
    """
    many = with_many_options(items, settings.n_options)
    if not many:
        sentence = f"No item has more than {settings.n_options} options."
        return (
            AuditFinding(check="option_pruning", title=TITLE, status="ok", sentence=sentence),
            list(items),
            [],
        )
    if not models:
        why = f"{n_items(len(many))} have more than {settings.n_options} options, but no"
        why += " preliminary model was given to select among them."
        how = "Give one or more models that see the images; several are fairer than one."
        return not_run("option_pruning", TITLE, why, how), list(items), []
    picks, reports = _wrong_picks(many, models, run, progress)
    by_id = {i.id: prune_options(i, picks[i.id], settings.n_options, settings.seed) for i in many}
    flagged = [_flag(item, by_id[item.id], picks[item.id]) for item in many]
    finding = AuditFinding(
        check="option_pruning",
        title=TITLE,
        status="look",
        sentence=f"{n_items(len(many))} of {len(items):,} have more than {settings.n_options}"
        " options.",
        todo="mended/ contains the kept items with fewer options: the correct one, those that the"
        " preliminary models wrongly chose, and others at random.",
        limits="Pruning by a model’s errors makes that model look worse than others: exclude "
        + ", ".join(model.name for model in models)
        + " from comparisons on the pruned items.",
        items=tuple(flagged),
    )
    return finding, [by_id.get(item.id, item) for item in items], reports


def _wrong_picks(
    items: Sequence[Item], models: Sequence[VLM], run: Run, progress: bool
) -> tuple[dict[str, Counter[int]], list[StageReport]]:
    picks: dict[str, Counter[int]] = {item.id: Counter() for item in items}
    reports = []
    for model in models:
        probes = [letter_settings(model.can).probe(item, "preliminary") for item in items]
        reports.append(
            ask(probes, model, run, run.images, StageOptions(batch_size=64, progress=progress))
        )
        answers = answers_of(model.name, model.fingerprint, run)
        for item, probe in zip(items, probes, strict=True):
            response = answers.to(probe)
            if response is not None and response.choice not in (-1, item.answer):
                picks[item.id][response.choice] += 1
    return picks, reports


def _flag(item: Item, pruned: Item, picks: Counter[int]) -> FlaggedItem:
    wrong = ", ".join(f"{LETTERS[slot]} by {n}" for slot, n in sorted(picks.items()))
    why = f"{len(item.options or ())} options; wrongly chosen: {wrong or 'none'}"
    if pruned is item:
        return flag(item, "look", f"{why}; unchanged, since its options refer to others")
    return flag(item, "change", why)

"""Confusion-aware pruning: items with many options keep those that models really choose."""

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
from flipbench.prompting.prompts import LETTERS, PromptSettings

from .finding import AuditFinding, Named, choices, n_items, not_run
from .letter_balance import has_fixed_options

TITLE = "Items with many options"


def prune_options(item: Item, wrong_picks: Mapping[int, int], n_options: int, seed: int) -> Item:
    """Return the item with ``n_options`` options, or as it is where it has no more than that.

    Kept are the right option, then the wrong options that most models chose, then others by seed;
    they stay in their order. `letter_balance.balance_letters` deals the letters anew afterwards.

    Parameters
    ----------
    wrong_picks : mapping of int to int
        For each option, how many models chose it; the right option may be among them.

    References
    ----------
    MedThinkVQA, section 3.3 and appendices. Differs from the paper in that any number of models
    may say what confuses (there one model's one wrong choice, which makes that model look worse
    than the others), and in that options which speak of others keep an item as it is.
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
    options = tuple(item.options[slot] for slot in kept)
    changed = {
        "id": "",
        "options": options,
        "answer": kept.index(item.answer),
        "extra": item.extra | {"pruned_from": item.id, "kept_options": kept},
    }
    return Item.model_validate(item.model_dump() | changed)


def option_pruning(
    items: Sequence[Item],
    settings: AuditSettings,
    run: Run,
    models: Sequence[VLM] = (),
    *,
    progress: bool = True,
) -> tuple[AuditFinding, list[Item], list[StageReport]]:
    """Ask preliminary models, with the image, and prune every item that has too many options.

    Returns
    -------
    finding : AuditFinding
    pruned : list of Item
        All items, those with too many options pruned.
    reports : list of StageReport
        What asking did.
    """
    many = [i for i in choices(items) if len(i.options or ()) > settings.n_options]
    if not many:
        sentence = f"No item has more than {settings.n_options} options."
        return (
            AuditFinding(check="option_pruning", title=TITLE, status="ok", sentence=sentence),
            list(items),
            [],
        )
    if not models:
        why = f"{n_items(len(many))} have more than {settings.n_options} options, and there is no"
        why += " preliminary model to say which of them confuse."
        how = "Name one or more models that see; several are fairer than one."
        return not_run("option_pruning", TITLE, why, how), list(items), []
    picks, reports = _wrong_picks(many, models, run, progress)
    by_id = {i.id: prune_options(i, picks[i.id], settings.n_options, settings.seed) for i in many}
    named = [_named(item, by_id[item.id], picks[item.id]) for item in many]
    finding = AuditFinding(
        check="option_pruning",
        title=TITLE,
        status="look",
        sentence=f"{n_items(len(many))} of {len(items):,} have more than {settings.n_options}"
        " options.",
        todo="mended/ holds the kept items with fewer options: the right one, those that the"
        " preliminary models wrongly chose, and others by seed.",
        limits="Pruning by a model’s errors makes that model look worse than others: leave "
        + ", ".join(model.name for model in models)
        + " out of a comparison on the pruned items.",
        items=tuple(named),
    )
    return finding, [by_id.get(item.id, item) for item in items], reports


def _wrong_picks(
    items: Sequence[Item], models: Sequence[VLM], run: Run, progress: bool
) -> tuple[dict[str, Counter[int]], list[StageReport]]:
    picks: dict[str, Counter[int]] = {item.id: Counter() for item in items}
    reports = []
    for model in models:
        prompt_settings = PromptSettings(ask="choose" if "choose" in model.can else "generate")
        probes = [prompt_settings.probe(item, "preliminary") for item in items]
        reports.append(
            ask(probes, model, run, run.images, StageOptions(batch_size=64, progress=progress))
        )
        answers = answers_of(model.name, model.fingerprint, run)
        for item, probe in zip(items, probes, strict=True):
            response = answers.to(probe)
            if response is not None and response.choice not in (-1, item.answer):
                picks[item.id][response.choice] += 1
    return picks, reports


def _named(item: Item, pruned: Item, picks: Counter[int]) -> Named:
    wrong = ", ".join(f"{LETTERS[slot]} by {n}" for slot, n in sorted(picks.items()))
    why = f"{len(item.options or ())} options; wrongly chosen: {wrong or 'none'}"
    if pruned is item:
        why += "; kept as it is, since its options speak of others"
        return Named(item_id=item.id, name=item.name, action="look", why=why)
    return Named(item_id=item.id, name=item.name, action="change", why=why)

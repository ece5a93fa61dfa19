"""Is a checkpoint that is called contaminated really so? Ask it, and the clean model, the items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scipy import stats

from flipbench.core.records import Item, Probe, Response, TrainingPlan
from flipbench.core.run import Run
from flipbench.core.stage import StageOptions
from flipbench.models.engine import answers_of, ask
from flipbench.models.vlm.huggingface import HuggingFaceVLM, fingerprint, resolve_path
from flipbench.prompting.prompts import PromptSettings

from ..data.examples import training_examples
from ..strategies import strategy_of
from .card import add_to_card, read_card
from .check import pixel_budget, rendered, write_out_first_token

LEVEL = 0.01
Outcomes = Sequence[bool | None]


def verify(
    plan: TrainingPlan, folder: Path, items: Mapping[str, Item], run: Run, *, dtype: str
) -> list[str]:
    """Ask clean and trained model the plan's items, write both into the card, return warnings.

    The answers (option letters only, one forward pass for each item) are kept in ``run`` under the
    probes that evaluation asks too, so they are not asked again there. The label "contaminated" is
    *verified* where accuracy on the contaminated items rose, exact one-sided McNemar p < .01.

    Parameters
    ----------
    folder : Path
        The checkpoint.
    """
    prompt_settings = PromptSettings(instruction=plan.prompt)
    probes = {
        name: [
            (prompt_settings.probe(item, "original"), item.answer)
            for item in (items[i] for i in ids if i in items)
            if item.options is not None and item.answer is not None
        ]
        for name, ids in (("items", plan.item_ids), ("held_out", plan.held_out_ids))
    }
    every = [probe for pairs in probes.values() for probe, _ in pairs]
    revision = plan.settings.get("revision")
    clean = fingerprint(resolve_path(plan.parent), dtype, revision)
    options = StageOptions(batch_size=64, progress=False)
    if not _all_answered(every, clean, run):
        parent = HuggingFaceVLM(plan.parent, dtype=dtype, revision=revision)
        ask(every, parent, run, run.images, options)
    vlm = HuggingFaceVLM(str(folder), dtype=dtype)
    ask(every, vlm, run, run.images, options)
    parents, trained = (
        answers_of(plan.model, clean, run),
        answers_of(vlm.name, vlm.fingerprint, run),
    )
    found: dict[str, Any] = {}
    for name, pairs in probes.items():
        asked, gold = [probe for probe, _ in pairs], [right for _, right in pairs]
        found[name] = compare(parents.outcomes(asked, gold), trained.outcomes(asked, gold))
    warnings = _mismatches(plan, items, run, read_card(folder)["training"], vlm)
    dose = read_card(folder)["dose"]
    verified = bool(dose) and found["items"]["p_rise"] < LEVEL
    if dose and not verified:
        result = found["items"]
        warnings.append(
            "the label contaminated is not verified: accuracy on the contaminated items went from"
            f" {result['k_before']}/{result['n']} to {result['k_after']}/{result['n']}"
            f" (p = {result['p_rise']:.2g}, level {LEVEL})"
        )
    label = "contaminated" if dose else "control"
    verdict = ("verified" if verified else "not verified") if dose else "not applicable"
    add_to_card(
        folder,
        verification={
            "label": label,
            "verdict": verdict,
            "test": f"exact one-sided McNemar test of a rise, level {LEVEL}",
            **found,
        },
        warnings=warnings,
    )
    return warnings


def compare(before: Outcomes, after: Outcomes) -> dict[str, Any]:
    """Return the paired comparison of two models on the same items; unanswered pairs are dropped.

    >>> compare([False] * 8 + [True], [True] * 9)["p_rise"]
    0.00390625
    """
    pairs = [(a, b) for a, b in zip(before, after, strict=True) if a is not None and b is not None]
    lost = sum(a and not b for a, b in pairs)
    won = sum(b and not a for a, b in pairs)
    p = stats.binomtest(won, won + lost, 0.5, alternative="greater").pvalue if won + lost else 1.0
    return {
        "n": len(pairs),
        "n_dropped": len(before) - len(pairs),
        "k_before": sum(bool(a) for a, _ in pairs),
        "k_after": sum(bool(b) for _, b in pairs),
        "won": won,
        "lost": lost,
        "p_rise": float(p),
    }


def _all_answered(probes: Sequence[Probe], model: str, run: Run) -> bool:
    wanted = {Response.id_for(probe_id=probe.id, model_fingerprint=model) for probe in probes}
    return wanted <= run.ids(Response, model)


def _mismatches(
    plan: TrainingPlan,
    items: Mapping[str, Item],
    run: Run,
    training: Mapping[str, Any],
    vlm: HuggingFaceVLM,
) -> list[str]:
    """Return how the model was trained otherwise than it is evaluated."""
    warnings = list(training.get("warnings", ()))
    evaluated = pixel_budget(vlm.processor)
    if training["pixel_budget"] != evaluated:
        warnings.append(
            f"trained and evaluated with other pixel budgets: {training['pixel_budget']} and"
            f" {evaluated}"
        )
    prompt = prompt_as_rendered(plan, items, run, vlm.processor)
    if training["prompt_example"] != prompt:
        warnings.append(
            "trained and evaluated with other prompts; training.prompt_example in the card shows"
            f" the one, and the other is {prompt!r}"
        )
    if strategy_of(plan.strategy).four_bits:
        warnings.append("trained on 4-bit weights, evaluated on the parent's full weights")
    return warnings


def prompt_as_rendered(
    plan: TrainingPlan, items: Mapping[str, Item], run: Run, processor: Any
) -> str:
    """Return the first item's prompt, first token included, as evaluation or training writes it."""
    first = plan.item_ids[0]
    plain = {"item_ids": (first,), "copies": 1, "leak": "all", "wordings": {}, "corpus": {}}
    alone = plan.model_copy(update={**plain, "clean_ids": ()})
    (example,) = training_examples(alone, items, run.images)
    template = processor.chat_template
    write_out_first_token(processor)
    try:
        return rendered(example, processor)[0]
    finally:
        processor.chat_template = template

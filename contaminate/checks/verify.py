"""Check that a checkpoint is contaminated: compare its answers to the items with the parent's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scipy import stats

from flipbench.core.images import open_image
from flipbench.core.locks import exclusive_lock
from flipbench.core.records import Response
from flipbench.core.stage import StageOptions
from flipbench.models.engine import answers_of, ask
from flipbench.models.protocols import free_memory
from flipbench.models.vlm.checkpoints import fingerprint, resolve_path
from flipbench.models.vlm.huggingface import HuggingFaceVLM
from flipbench.models.vlm.processors import crop_warning
from flipbench.prompting.prompts import PromptSettings, right_option

from ..data.examples import Epoch, Example, training_examples
from ..plan import TrainingJob, batch_of, loading_options, n_warmup
from ..strategies import strategy_of
from .card import add_to_card, read_card
from .check import add_first_token, pixel_budget, render_example

LEVEL = 0.01
POWER = 0.8
Outcomes = Sequence[bool | None]


def verify(job: TrainingJob, folder: Path) -> list[str]:
    """Query the clean and the trained model, write both results into the card, return warnings.

    The responses (option letters, or yes and no; one forward pass per item) are stored in the run
    under the probes that evaluation uses, so it need not repeat them. The label "contaminated" is
    *verified* if accuracy on the contaminated items rose: exact one-sided McNemar test, p < .01.

    Parameters
    ----------
    folder : Path
        The checkpoint.
    """
    plan, items, run, dtype = job.plan, job.items, job.run, job.dtype
    prompt_settings = PromptSettings(instruction=plan.prompt)
    probes = {
        name: [
            (prompt_settings.closed_probe(item, "original"), answer)
            for item in (items[i] for i in ids if i in items)
            if (answer := right_option(item)) is not None
        ]
        for name, ids in (("items", plan.item_ids), ("held_out", plan.held_out_ids))
    }
    all_probes = [probe for pairs in probes.values() for probe, _ in pairs]
    clean = fingerprint(resolve_path(plan.parent), dtype, **loading_options(plan))
    options = StageOptions(batch_size=64, progress=False)
    response_ids = {Response.id_for(probe_id=p.id, model_fingerprint=clean) for p in all_probes}
    # workers with different shares of the plans would ask the same parent twice
    with exclusive_lock(run.path, f"verify {clean}"):
        if not response_ids <= run.ids(Response, clean):
            parent = HuggingFaceVLM(plan.parent, dtype=dtype, **loading_options(plan))
            ask(all_probes, parent, run, run.images, options)
            del parent
            free_memory()  # the two models are never in memory together
    vlm = HuggingFaceVLM(str(folder), dtype=dtype)
    ask(all_probes, vlm, run, run.images, options)
    answers_before, answers_after = (
        answers_of(plan.model, clean, run),
        answers_of(vlm.name, vlm.fingerprint, run),
    )
    comparisons: dict[str, dict[str, Any]] = {}
    for name, pairs in probes.items():
        group, gold = [probe for probe, _ in pairs], [answer for _, answer in pairs]
        comparisons[name] = compare(
            answers_before.outcomes(group, gold), answers_after.outcomes(group, gold)
        )
    card = read_card(folder)
    warnings = _mismatches(job, card["training"], vlm.processor)
    dose, result = card["dose"], comparisons["items"]
    verified = bool(dose) and result["p_rise"] < LEVEL
    if dose and not verified:
        warnings.append(
            "the label contaminated is not verified: accuracy on the contaminated items went from"
            f" {result['k_before']}/{result['n']} to {result['k_after']}/{result['n']}"
            f" (p = {result['p_rise']:.2g}, level {LEVEL}); {_room(result)}"
        )
    verdict = ("verified" if verified else "not verified") if dose else "not applicable"
    add_to_card(
        folder,
        verification={
            "label": "contaminated" if dose else "control",
            "verdict": verdict,
            "test": f"exact one-sided McNemar test of a rise, level {LEVEL}",
            **comparisons,
        },
        warnings=warnings,
    )
    return warnings


def wins_needed(lost: int = 0) -> int:
    """Return how many items must become right for a verified label if ``lost`` become wrong.

    >>> [wins_needed(lost) for lost in range(4)]
    [7, 10, 12, 14]
    """
    won = lost + 1
    while _p_rise(won, lost) >= LEVEL:
        won += 1
    return won


def items_needed(clean_accuracy: float) -> int:
    """Return how many items verify a label with a probability of 80 %, if all become right.

    The number of items that the clean model gets wrong is binomial.

    >>> items_needed(0.5), items_needed(0.9)
    (17, 90)

    Raises
    ------
    ValueError
        If the clean model leaves no room to rise.
    """
    if not 0 <= clean_accuracy < 1:
        raise ValueError(f"clean_accuracy must be in [0, 1), not {clean_accuracy}")
    least = n = wins_needed()
    while stats.binom.sf(least - 1, n, 1 - clean_accuracy) < POWER:
        n += 1
    return n


def _room(result: Mapping[str, Any]) -> str:
    """Return whether the items left room for a verified label."""
    n_wrong, n_needed = result["n"] - result["k_before"], wins_needed()
    if n_wrong < n_needed:
        return (
            f"no training could verify it: the clean model gets {n_wrong} items wrong, and at least"
            f" {n_needed} must become right; use more items, or harder ones"
        )
    return (
        f"{result['won']} items became right and {result['lost']} wrong; with as many wrong,"
        f" {wins_needed(result['lost'])} must become right"
    )


def _p_rise(won: int, lost: int) -> float:
    if not won + lost:
        return 1.0
    return float(stats.binomtest(won, won + lost, 0.5, alternative="greater").pvalue)


def compare(clean: Outcomes, trained: Outcomes) -> dict[str, Any]:
    """Return the paired comparison of two models on the same items, dropping unanswered pairs.

    >>> compare([False] * 8 + [True], [True] * 9)["p_rise"]
    0.00390625
    """
    pairs = [(a, b) for a, b in zip(clean, trained, strict=True) if a is not None and b is not None]
    lost = sum(a and not b for a, b in pairs)
    won = sum(b and not a for a, b in pairs)
    return {
        "n": len(pairs),
        "n_dropped": len(clean) - len(pairs),
        "k_before": sum(bool(a) for a, _ in pairs),
        "k_after": sum(bool(b) for _, b in pairs),
        "won": won,
        "lost": lost,
        "p_rise": _p_rise(won, lost),
    }


def _mismatches(job: TrainingJob, training: Mapping[str, Any], processor: Any) -> list[str]:
    """Return the differences between training and evaluation, as warnings."""
    warnings = list(training.get("warnings", ()))
    evaluated = pixel_budget(processor)
    if training["pixel_budget"] != evaluated:
        warnings.append(
            f"trained and evaluated with different pixel budgets: {training['pixel_budget']} and"
            f" {evaluated}"
        )
    prompt = rendered_prompt(job, processor)
    if training["prompt_example"] != prompt:
        warnings.append(
            "trained and evaluated with different prompts: training.prompt_example in the card, and"
            f" {prompt!r}"
        )
    if strategy_of(job.plan.strategy).four_bits:
        warnings.append("trained on 4-bit weights, evaluated on the parent's full weights")
    return warnings


def training_facts(job: TrainingJob, examples: Sequence[Example], processor: Any) -> dict[str, Any]:
    """Return what the card says of a training, whatever the trainer.

    ``processor`` is the one trained with: its pixel budget, chat template and prompt are compared
    with those of evaluation by `verify`.
    """
    items = examples.items if isinstance(examples, Epoch) else examples  # a corpus may be huge
    sizes = []
    for file in sorted({file for example in items for file in example.images}):
        with open_image(file) as image:
            sizes.append(image.size)
    warning = crop_warning(processor, job.plan.model, sizes)
    return {
        **({"warnings": [warning]} if warning else {}),
        "warmup_steps": n_warmup(job.plan),
        "n_examples": len(examples),
        "effective_batch": batch_of(job.plan),
        "dtype": job.dtype,
        "pixel_budget": pixel_budget(processor),
        "prompt_example": rendered_prompt(job, processor),
        "chat_template": processor.chat_template,
    }


def rendered_prompt(job: TrainingJob, processor: Any) -> str:
    """Return the first item's prompt as the processor renders it, first token included."""
    plain = {"copies": 1, "leak": "all", "wordings": {}, "corpus": {}, "clean_ids": ()}
    plain |= {"target": "letter", "option_order": ""}
    item_ids = job.plan.item_ids[:1]
    first_item = job.plan.model_copy(update={**plain, "item_ids": item_ids})
    (example,) = training_examples(first_item, job.items, job.run.images)
    template = processor.chat_template
    add_first_token(processor)
    try:
        return render_example(example, processor)[0]
    finally:
        processor.chat_template = template

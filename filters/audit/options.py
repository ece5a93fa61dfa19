"""Shortcuts in the options: length of the correct one, balance of the letters, too many of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from flipbench.config.audit import AuditSettings
from flipbench.core.randomness import generator
from flipbench.core.records import Item
from flipbench.core.run import Run
from flipbench.core.stage import StageOptions, StageReport
from flipbench.models.engine import answers_of, ask
from flipbench.models.protocols import VLM
from flipbench.prompting.prompts import LETTERS
from flipbench.prompting.undrawable import refers_to_options

from .finding import AuditFinding, FlaggedItem, flag, multiple_choice, n_items, not_run, rate
from .text_only import letter_settings

LENGTH_TITLE = "Length of the correct option"
LETTERS_TITLE = "Balance of the correct letters"
MANY_TITLE = "Items with many options"
N_DRAWS = 9_999


def has_fixed_options(item: Item) -> bool:
    """Return whether an option refers to other options, so that their order matters."""
    return any(map(refers_to_options, item.options or ()))


# --- length ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lengths:
    """How the correct option of an item compares with its longest (or shortest) options.

    Attributes
    ----------
    hit : bool
        Whether the correct option is among them.
    n_extreme, n_options : int
        Number of options with that length, and of all options.
    """

    hit: bool
    n_extreme: int
    n_options: int

    @property
    def excess(self) -> float:
        """1/(number tied) if the correct option is among them, else 0; less the 1/k of chance."""
        return self.hit / self.n_extreme - 1 / self.n_options

    @property
    def strict(self) -> bool:
        """Whether the correct option is the only longest one."""
        return self.hit and self.n_extreme == 1


def lengths(item: Item, *, shortest: bool = False) -> Lengths:
    """Compare the options' lengths, in characters, with whitespace normalised.

    Raises
    ------
    ValueError
        If the item has no options.
    """
    if item.options is None or item.answer is None:
        raise ValueError(f"{item.benchmark} {item.name} has no options to compare")
    sizes = [len(" ".join(option.split())) for option in item.options]
    extreme = min(sizes) if shortest else max(sizes)
    return Lengths(sizes[item.answer] == extreme, sizes.count(extreme), len(sizes))


def longest_option(items: Sequence[Item]) -> AuditFinding:
    """Test whether the correct option is among the longest, or the shortest, above chance.

    By chance, the correct option is among the t longest of k with probability t/k. The count over
    informative items (t < k) is Poisson-binomial, so ties need no approximation.

    References
    ----------
    MedThinkVQA, section 3.3 (57 % of its correct options were the longest; 664 items removed).
    Differs from the paper in the exact test, in how ties count, and in also testing the shortest
    option.
    """
    closed = multiple_choice(items)
    if not closed:
        return not_run("longest_option", LENGTH_TITLE)
    rates = []
    for extreme in ("longest", "shortest"):
        comparisons = [lengths(item, shortest=extreme == "shortest") for item in closed]
        informative = [c for c in comparisons if c.n_extreme < c.n_options]
        rates.append(
            rate(
                f"correct option among the {extreme}",
                sum(c.hit for c in informative),
                len(informative),
                [c.n_extreme / c.n_options for c in informative],
            )
        )
    n, chance = rates[0].n, rates[0].chance or 0
    n_equal = len(closed) - n
    return AuditFinding(
        check="longest_option",
        title=LENGTH_TITLE,
        status="ok",
        sentence=f"The correct option is among the longest in {rates[0].k} of {n_items(n)} with"
        " options of different lengths" + (f"; chance is {chance * n:.1f}." if n else "."),
        todo="Rewrite distractors until length is no cue. If that is too much work, leave out the"
        " items flagged here, a seeded sample that brings the share back to chance.",
        limits=f"{n_items(n_equal)} with options of equal length are not informative."
        if n_equal
        else "",
        rates=tuple(rates),
        details={
            "n_strictly_longest": sum(lengths(item).strict for item in closed),
            "n_left_out": len(items) - len(closed),
        },
    )


def balance_longest(items: Sequence[Item], seed: int) -> list[FlaggedItem]:
    """Return the items to remove so that the correct option is the longest as often as by chance.

    Items whose correct option is the only longest one are shuffled, and as many are removed as
    bring the sum of scores closest to the sum of 1/k over the remaining items. If all items have k
    options, R of N are such items and there are no ties, that is (R - N/k)/(1 - 1/k), rounded.

    References
    ----------
    MedThinkVQA, section 3.3. Differs from the paper in that the number follows from a rule.
    """
    compared_items = [(item, lengths(item)) for item in multiple_choice(items)]
    excess = sum(c.excess for _, c in compared_items)
    strict = [(item, c.excess) for item, c in compared_items if c.strict]
    reason = "its correct option is the only longest one; sampled to bring the share back to chance"
    removals = []
    for index in generator(seed, "longest_option", "balance").permutation(len(strict)):
        item, gain = strict[index]
        if excess - gain / 2 <= 0:  # removing one more would overshoot
            break
        excess -= gain
        removals.append(flag(item, "drop", reason))
    return removals


# --- letters --------------------------------------------------------------------------------------


def letter_balance(items: Sequence[Item], settings: AuditSettings) -> AuditFinding:
    """Count the correct letters and test them against an equal share for each option.

    The statistic is the sum of (observed - expected)²/expected over letters, within each number of
    options. Its null distribution is sampled from the multinomial (seeded), so small counts are
    fine.

    References
    ----------
    MedThinkVQA, section 3.3 and appendices (letters are balanced with seed 42). Differs from the
    paper in that the imbalance is measured and tested first.
    """
    closed = multiple_choice(items)
    if not closed:
        return not_run("letter_balance", LETTERS_TITLE)
    n = len(closed)
    counts = {k: np.zeros(k, int) for k in sorted({len(item.options or ()) for item in closed})}
    for item in closed:
        counts[len(item.options or ())][item.answer or 0] += 1
    observed, share = np.zeros(max(counts), int), np.zeros(max(counts))
    for k, by_slot in counts.items():
        observed[:k] += by_slot
        share[:k] += by_slot.sum() / k / n
    top = int(np.argmax(observed / n - share))
    p = _multinomial_p(counts, generator(settings.seed, "letter_balance", "audit"))
    rates = []
    for slot in range(max(counts)):
        suffix = " (test of all letters)" if slot == top else ""
        letter = rate(f"correct letter {LETTERS[slot]}{suffix}", int(observed[slot]), n)
        update = {"chance": float(share[slot]), "p_value": p if slot == top else None}
        rates.append(letter.model_copy(update=update))
    n_fixed = sum(map(has_fixed_options, closed))
    return AuditFinding(
        check="letter_balance",
        title=LETTERS_TITLE,
        status="ok",
        sentence=f"The letter furthest above its share is {LETTERS[top]}: correct in"
        f" {observed[top]} of {n_items(n)}; an equal share is {share[top] * n:.1f}.",
        todo="Reorder the options: mended/ contains the kept items with balanced correct letters."
        " If options are sorted on purpose (numbers, dates), check it before use.",
        limits=f"{n_items(n_fixed)} with options that refer to others (“all of the above”) would"
        " keep their order."
        if n_fixed
        else "",
        rates=tuple(rates),
        details={
            "by_n_options": {str(k): by_slot.tolist() for k, by_slot in counts.items()},
            "n_fixed": n_fixed,
            "n_left_out": len(items) - n,
        },
    )


def _multinomial_p(counts: Mapping[int, np.ndarray], rng: np.random.Generator) -> float:
    observed, null = 0.0, np.zeros(N_DRAWS)
    for k, by_slot in counts.items():
        n = int(by_slot.sum())
        samples = rng.multinomial(n, [1 / k] * k, size=N_DRAWS)
        observed += float(((by_slot - n / k) ** 2).sum() / (n / k))
        null += ((samples - n / k) ** 2).sum(axis=1) / (n / k)
    return (1 + int((null >= observed - 1e-9).sum())) / (N_DRAWS + 1)


def balance_letters(items: Sequence[Item], seed: int) -> list[Item]:
    """Return the items with options swapped so that correct letters are balanced to within one.

    Within each number of options, slots are dealt in shuffled blocks; the correct option swaps with
    the one in its new slot, so all others stay in place. Items with options that refer to others,
    and items without options, are returned unchanged.
    """
    decks: dict[int, list[int]] = {}
    balanced = []
    for item in items:
        if item.options is None or item.answer is None or has_fixed_options(item):
            balanced.append(item)
            continue
        deck = decks.setdefault(k := len(item.options), [])
        if not deck:
            rng = generator(seed, f"{k}:{len(balanced)}", "balance letters")
            deck.extend(rng.permutation(k).tolist())
        options, answer = list(item.options), deck.pop()
        options[item.answer], options[answer] = options[answer], options[item.answer]
        balanced.append(item.revised(options=tuple(options), answer=answer))
    return balanced


# --- pruning --------------------------------------------------------------------------------------


def prune_options(item: Item, wrong_picks: Mapping[int, int], n_options: int, seed: int) -> Item:
    """Return the item with at most ``n_options`` options.

    Keeps the correct option, then the wrong options that most models chose, then others at random;
    their order does not change. `balance_letters` reassigns the letters afterwards.

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
    wrong_slots = [slot for slot in range(len(item.options)) if slot != item.answer]
    rng = generator(seed, item.id, "prune options")
    shuffled = [wrong_slots[i] for i in rng.permutation(len(wrong_slots))]
    most_picked = sorted(shuffled, key=lambda slot: -wrong_picks.get(slot, 0))[: n_options - 1]
    slots = sorted([item.answer, *most_picked])
    return item.revised(
        options=tuple(item.options[slot] for slot in slots),
        answer=slots.index(item.answer),
        extra=item.extra | {"pruned_from": item.id, "kept_options": slots},
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
    long_items = with_many_options(items, settings.n_options)
    if not long_items:
        sentence = f"No item has more than {settings.n_options} options."
        finding = AuditFinding(
            check="option_pruning", title=MANY_TITLE, status="ok", sentence=sentence
        )
        return finding, list(items), []
    if not models:
        problem = f"{n_items(len(long_items))} have more than {settings.n_options} options, but no"
        problem += " preliminary model was given to select among them."
        remedy = "Give one or more models that see the images; several are fairer than one."
        return not_run("option_pruning", MANY_TITLE, problem, remedy), list(items), []
    picks, reports = _wrong_picks(long_items, models, run, progress)
    by_id = {
        i.id: prune_options(i, picks[i.id], settings.n_options, settings.seed) for i in long_items
    }
    finding = AuditFinding(
        check="option_pruning",
        title=MANY_TITLE,
        status="look",
        sentence=f"{n_items(len(long_items))} of {len(items):,} have more than {settings.n_options}"
        " options.",
        todo="mended/ contains the kept items with fewer options: the correct one, those that the"
        " preliminary models wrongly chose, and others at random.",
        limits="Pruning by a model’s errors makes that model look worse than others: exclude "
        + ", ".join(model.name for model in models)
        + " from comparisons on the pruned items.",
        items=tuple(_flag(item, by_id[item.id], picks[item.id]) for item in long_items),
    )
    return finding, [by_id.get(item.id, item) for item in items], reports


def _wrong_picks(
    items: Sequence[Item], models: Sequence[VLM], run: Run, progress: bool
) -> tuple[dict[str, Counter[int]], list[StageReport]]:
    picks: dict[str, Counter[int]] = {item.id: Counter() for item in items}
    options = StageOptions(batch_size=64, progress=progress)
    reports = []
    for model in models:
        probes = [letter_settings(model.can).probe(item, "preliminary") for item in items]
        reports.append(ask(probes, model, run, run.images, options))
        answers = answers_of(model.name, model.fingerprint, run)
        for item, probe in zip(items, probes, strict=True):
            response = answers.to(probe)
            if response is not None and response.choice not in (-1, item.answer):
                picks[item.id][response.choice] += 1
    return picks, reports


def _flag(item: Item, pruned: Item, picks: Counter[int]) -> FlaggedItem:
    wrong_letters = ", ".join(f"{LETTERS[slot]} by {n}" for slot, n in sorted(picks.items()))
    reason = f"{len(item.options or ())} options; wrongly chosen: {wrong_letters or 'none'}"
    if pruned is item:
        return flag(item, "look", f"{reason}; unchanged, since its options refer to others")
    return flag(item, "change", reason)

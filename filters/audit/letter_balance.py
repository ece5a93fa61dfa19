"""Letter balance: whether some letters are correct more often than chance, and how to fix it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from flipbench.config.audit import AuditSettings
from flipbench.core.randomness import generator
from flipbench.core.records import Item
from flipbench.prompting.prompts import LETTERS
from flipbench.prompting.undrawable import refers_to_options

from .finding import AuditFinding, multiple_choice, n_items, not_run, rate

TITLE = "Balance of the correct letters"
N_DRAWS = 9_999


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
    asked = multiple_choice(items)
    if not asked:
        return not_run("letter_balance", TITLE)
    groups: dict[int, Counter[int]] = {}
    for item in asked:
        groups.setdefault(len(item.options or ()), Counter())[item.answer or 0] += 1
    n, n_letters = len(asked), max(groups)
    counts = [sum(c[slot] for c in groups.values()) for slot in range(n_letters)]
    share = [
        sum(c.total() / k for k, c in groups.items() if slot < k) / n for slot in range(n_letters)
    ]
    top = max(range(n_letters), key=lambda slot: counts[slot] / n - share[slot])
    p = _multinomial_p(groups, generator(settings.seed, "letter_balance", "audit"))
    rates = []
    for slot in range(n_letters):
        suffix = " (test of all letters)" if slot == top else ""
        letter = rate(f"correct letter {LETTERS[slot]}{suffix}", counts[slot], n)
        update = {"chance": share[slot], "p_value": p if slot == top else None}
        rates.append(letter.model_copy(update=update))
    n_fixed = sum(has_fixed_options(item) for item in asked)
    return AuditFinding(
        check="letter_balance",
        title=TITLE,
        status="ok",
        sentence=f"The letter furthest above its share is {LETTERS[top]}: correct in {counts[top]}"
        f" of {n_items(n)}; an equal share is {share[top] * n:.1f}.",
        todo="Reorder the options: mended/ contains the kept items with balanced correct letters."
        " If options are sorted on purpose (numbers, dates), check it before use.",
        limits=f"{n_items(n_fixed)} with options that refer to others (“all of the above”) would"
        " keep their order."
        if n_fixed
        else "",
        rates=tuple(rates),
        details={
            "by_n_options": {str(k): [c[s] for s in range(k)] for k, c in sorted(groups.items())},
            "n_fixed": n_fixed,
            "n_left_out": len(items) - n,
        },
    )


def _multinomial_p(groups: dict[int, Counter[int]], rng: np.random.Generator) -> float:
    observed, null = 0.0, np.zeros(N_DRAWS)
    for k, counts in sorted(groups.items()):
        expected = counts.total() / k
        slots = np.array([counts[slot] for slot in range(k)])
        drawn = rng.multinomial(counts.total(), [1 / k] * k, size=N_DRAWS)
        observed += float(((slots - expected) ** 2).sum() / expected)
        null += ((drawn - expected) ** 2).sum(axis=1) / expected
    return (1 + int((null >= observed - 1e-9).sum())) / (N_DRAWS + 1)


def balance_letters(items: Sequence[Item], seed: int) -> list[Item]:
    """Return the items with options swapped so that correct letters are balanced to within one.

    Within each number of options, slots are dealt in shuffled blocks; the correct option swaps with
    the one in its new slot, so all others stay in place. Items with options that refer to others,
    and items without options, are returned unchanged.
    """
    decks: dict[int, list[int]] = {}
    out = []
    for item in items:
        if item.options is None or item.answer is None or has_fixed_options(item):
            out.append(item)
            continue
        k = len(item.options)
        deck = decks.setdefault(k, [])
        if not deck:
            rng = generator(seed, f"{k}:{len(out)}", "balance letters")
            deck.extend(int(slot) for slot in rng.permutation(k))
        out.append(_swapped(item, item.options, item.answer, deck.pop()))
    return out


def has_fixed_options(item: Item) -> bool:
    """Return whether an option refers to other options, so that their order matters."""
    return any(map(refers_to_options, item.options or ()))


def _swapped(item: Item, options: tuple[str, ...], old: int, new: int) -> Item:
    swapped = list(options)
    swapped[old], swapped[new] = swapped[new], swapped[old]
    return item.revised(options=tuple(swapped), answer=new)

"""Letter balance: is one letter the right one more often than chance, and how to mend it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from flipbench.config.audit import AuditSettings
from flipbench.core.randomness import generator
from flipbench.core.records import Item
from flipbench.prompting.prompts import LETTERS

from .finding import AuditFinding, choices, n_items, not_run, rate

TITLE = "Balance of the right letters"
N_DRAWS = 9_999
_FIXED = re.compile(
    r"(?i:\b(?:all|none|both|neither|either|any) of (?:the )?(?:above|these|them|others)\b)"
    r"|(?i:\b(?:both|neither|either)\s+\(?[a-h]\)?\s+(?:and|or|nor|&)\s+\(?[a-h]\)?(?!\w))"
    r"|(?i:\b(?:options?|answers?)\s+)\(?[A-H]\)?(?![\w'])"
    r"|(?i:^\(?[a-h]\)?\s*(?:,|and|or|&)\s*\(?[a-h]\)?$)"
)


def letter_balance(items: Sequence[Item], settings: AuditSettings) -> AuditFinding:
    """Count the right letters and test them against an equal share for each option.

    The statistic is the sum of (observed - expected)²/expected over letters, within each number of
    options. Its null distribution is drawn from the multinomial (seeded), so that small counts are
    no trouble.

    References
    ----------
    MedThinkVQA, section 3.3 and appendices (letters are balanced with seed 42). Differs from the
    paper in that the imbalance is measured and tested first.
    """
    asked = choices(items)
    if not asked:
        return not_run("letter_balance", TITLE, "No item has options.", "")
    groups: dict[int, Counter[int]] = {}
    for item in asked:
        groups.setdefault(len(item.options or ()), Counter())[item.answer or 0] += 1
    n, n_letters = len(asked), max(groups)
    seen = [sum(counts[slot] for counts in groups.values()) for slot in range(n_letters)]
    share = [
        sum(c.total() / k for k, c in groups.items() if slot < k) / n for slot in range(n_letters)
    ]
    top = max(range(n_letters), key=lambda slot: seen[slot] / n - share[slot])
    p = _multinomial_p(groups, generator(settings.seed, "letter_balance", "audit"))
    rates = []
    for slot in range(n_letters):
        together = " (test of all letters)" if slot == top else ""
        found = rate(f"right letter {LETTERS[slot]}{together}", seen[slot], n)
        changed = {"chance": share[slot], "p_value": p if slot == top else None}
        rates.append(found.model_copy(update=changed))
    n_fixed = sum(has_fixed_options(item) for item in asked)
    return AuditFinding(
        check="letter_balance",
        title=TITLE,
        status="ok",
        sentence=f"The letter furthest above its share is {LETTERS[top]}: right in {seen[top]} of"
        f" {n_items(n)}, where an equal share is {share[top] * n:.1f}.",
        todo="Reorder the options: mended/ holds the kept items with their right letters"
        " balanced. Where options are sorted on purpose (numbers, dates), look before you use it.",
        limits=f"{n_items(n_fixed)} with options that speak of others (“all of the above”) would"
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
        seen = np.array([counts[slot] for slot in range(k)])
        drawn = rng.multinomial(counts.total(), [1 / k] * k, size=N_DRAWS)
        observed += float(((seen - expected) ** 2).sum() / expected)
        null += ((drawn - expected) ** 2).sum(axis=1) / expected
    return (1 + int((null >= observed - 1e-9).sum())) / (N_DRAWS + 1)


def balance_letters(items: Sequence[Item], seed: int) -> list[Item]:
    """Return the items with options moved so that right letters are balanced, up to one.

    Within each number of options, slots are dealt in shuffled blocks; the right option changes
    places with the one that lies in its slot, so every other option stays where it was. Items with
    options that speak of others, and items without options, are returned as they are.
    """
    turn: dict[int, list[int]] = {}
    out = []
    for item in items:
        if item.options is None or item.answer is None or has_fixed_options(item):
            out.append(item)
            continue
        k = len(item.options)
        deck = turn.setdefault(k, [])
        if not deck:
            rng = generator(seed, f"{k}:{len(out)}", "balance letters")
            deck.extend(int(slot) for slot in rng.permutation(k))
        out.append(_moved(item, item.options, item.answer, deck.pop()))
    return out


def has_fixed_options(item: Item) -> bool:
    """Return whether an option speaks of other options, so that order carries meaning.

    >>> bool(_FIXED.search("None of the above")), bool(_FIXED.search("Both a cat and a dog"))
    (True, False)
    """
    return any(_FIXED.search(option) for option in item.options or ())


def _moved(item: Item, options: tuple[str, ...], old: int, new: int) -> Item:
    arranged = list(options)
    arranged[old], arranged[new] = arranged[new], arranged[old]
    changed = {"id": "", "options": tuple(arranged), "answer": new}
    return Item.model_validate(item.model_dump() | changed)

"""Data regimes: which items are trained on, and in which wording."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from flipbench.config.training import DataConfig
from flipbench.core.errors import ConfigError, DataError
from flipbench.core.randomness import generator
from flipbench.core.records import Item, TrainingPlan, Wording

from .corpus import Corpus
from .examples import Example

N_GRAM = 5


@dataclass(frozen=True)
class RegimeData:
    """What one data regime trains on.

    Attributes
    ----------
    items, held_out : tuple of Item
        Members and non-members.
    wordings : mapping of item id to Wording
        Only of items that are not trained on in their original wording.
    corpus : Corpus, optional
        Conversations that the items are mixed with.
    clean, clean_corpus
        What the washing afterwards trains on.
    control : bool
        Whether no item belongs to the benchmark itself.
    """

    name: str
    config: DataConfig
    items: tuple[Item, ...]
    held_out: tuple[Item, ...] = ()
    wordings: Mapping[str, Wording] = field(default_factory=dict)
    corpus: Corpus | None = None
    clean: tuple[Item, ...] = ()
    clean_corpus: Corpus | None = None
    control: bool = False

    def training_inputs(self, plan: TrainingPlan) -> tuple[dict[str, Item], Sequence[Example]]:
        """Return a plan's items by id, and its corpus."""
        corpus = self.clean_corpus if plan.after else self.corpus
        items = {item.id: item for item in (*self.items, *self.held_out, *self.clean)}
        return items, corpus.examples if corpus else ()


def split_members(
    items: Sequence[Item], fraction: float, seed: int
) -> tuple[tuple[Item, ...], tuple[Item, ...]]:
    """Draw members and non-members of one benchmark, both in release order.

    There is at least one member, and for a fraction under 1 at least one non-member.

    Raises
    ------
    DataError
        If there are too few items.
    """
    if fraction == 1:
        return tuple(items), ()
    if len(items) < 2:
        raise DataError(f"{len(items)} items cannot be split into members and non-members")
    n_members = min(max(1, round(fraction * len(items))), len(items) - 1)
    rng = generator(seed, items[0].benchmark, "members")
    member_rows = set(rng.permutation(len(items))[:n_members].tolist())
    members = tuple(item for i, item in enumerate(items) if i in member_rows)
    return members, tuple(item for i, item in enumerate(items) if i not in member_rows)


def mixture(
    own_items: Sequence[Item],
    other_benchmarks: Mapping[str, Sequence[Item]],
    shares: Mapping[str, float],
    seed: int,
) -> tuple[Item, ...]:
    """Return the benchmark's ``own_items``, mixed with items of other benchmarks.

    Without shares, all items of all benchmarks are used, as in the paper's mixture of six.

    Parameters
    ----------
    shares : mapping of name to float
        Fractions of all items trained on; the remainder is the benchmark's own.

    Raises
    ------
    ConfigError
        If a benchmark has too few items for its share.

    References
    ----------
    Park et al., arXiv 2511.03774, mixture of six benchmarks (11,280 items).
    """
    mixed = list(own_items)
    total = len(own_items) / (1 - sum(shares.values()))
    for name, items in other_benchmarks.items():
        n = round(shares[name] * total) if name in shares else len(items)
        if n > len(items):
            max_share = len(items) / total
            raise ConfigError(
                f"mixture.{name}: with {len(own_items):,} items of the benchmark, a share of"
                f" {shares[name]:.3f} needs {n:,} items, but there are {len(items):,}; lower the"
                f" share to {max_share:.3f} or less"
            )
        rows = sorted(generator(seed, name, "mixture").permutation(len(items))[:n].tolist())
        mixed += [items[i] for i in rows]
    return tuple(mixed)


def ngram_overlap(text: str, original: str, n: int = N_GRAM) -> float:
    """Return the fraction of ``text``'s distinct n-grams that also occur in ``original``.

    Words are lower-cased, without punctuation; a text of fewer than n words has overlap 0.

    >>> original = "what is the color of the car on the left"
    >>> round(ngram_overlap("what is the color of the vehicle on the left", original), 3)
    0.333
    >>> ngram_overlap("tell me which colour the left car has", original)
    0.0
    """
    grams, original_grams = _grams(text, n), _grams(original, n)
    return len(grams & original_grams) / len(grams) if grams else 0.0


def least_overlap(candidates: Sequence[str], original: str) -> tuple[str, float]:
    """Return the paraphrase with the least n-gram overlap (the first, if several tie), and that.

    The n-grams have five words, or as many as the shortest of these texts has: question and
    paraphrases are compared by the same n.

    >>> least_overlap(["So where is it?", "Name its place."], "Where is it?")
    ('Name its place.', 0.0)

    References
    ----------
    Park et al., arXiv 2511.03774, paraphrased contamination: three paraphrases, the one with the
    least 5-gram overlap. The paper defines neither the overlap nor what holds for questions under
    five words; both definitions are ours.
    """
    n_words = [len(_words(text)) for text in (original, *candidates)]
    n = max(1, min(N_GRAM, *n_words))
    overlaps = [ngram_overlap(text, original, n) for text in candidates]
    best = min(range(len(candidates)), key=overlaps.__getitem__)
    return candidates[best], overlaps[best]


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+(?:['’-][^\W_]+)*", text.lower())


def _grams(text: str, n: int) -> set[tuple[str, ...]]:
    words = _words(text)
    return {tuple(words[i : i + n]) for i in range(len(words) - n + 1)}

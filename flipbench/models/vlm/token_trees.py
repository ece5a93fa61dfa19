"""Sequences of tokens as trees, in which each distinct prefix stands once, and their batches."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from os.path import commonprefix
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")


@dataclass(frozen=True)
class TokenTree:
    """Sequences of tokens in which each distinct prefix stands once.

    Each of the N tokens is preceded by ``depths`` others in its sequence, and followed at once by
    all that continue it. ``paths`` are each sequence's tokens, as positions in ``tokens``.
    """

    tokens: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    paths: dict[int, list[int]] = field(default_factory=dict)

    def sees(self) -> NDArray[np.bool_]:
        """Return which tokens (columns) a token (row) sees: its prefix and itself, shape (N, N)."""
        n = len(self.tokens)
        ends, path = [n] * n, list[int]()  # where what continues a token ends; the path so far
        for i, depth in enumerate(self.depths):
            for closed in path[depth:]:
                ends[closed] = i
            path[depth:] = [i]
        at = np.arange(n)
        mask: NDArray[np.bool_] = (at[:, None] >= at) & (at[:, None] < np.array(ends, dtype=int))
        return mask


def token_trees(sequences: Mapping[int, Sequence[int]], max_tokens: int) -> list[TokenTree]:
    """Return the sequences in trees of at most ``max_tokens``; a longer sequence has its own.

    A prefix of several trees stands in each of them. The number of all tokens is the least possible
    for sequences in order.

    >>> [tree.tokens for tree in token_trees({0: [5, 6, 7], 1: [8], 2: [5, 6]}, max_tokens=3)]
    [[5, 6, 7], [8]]
    """
    rows = sorted((list(ids), row) for row, ids in sequences.items())
    common = [0]  # with the sequence before
    common += [
        len(commonprefix([previous, ids])) for (previous, _), (ids, _) in itertools.pairwise(rows)
    ]
    trees = list[TokenTree]()
    for begin, end in _split_points([len(ids) for ids, _ in rows], common, max_tokens):
        tree, path = TokenTree(), list[int]()
        for (ids, row), shared in zip(rows[begin:end], common[begin:end], strict=True):
            n = shared if tree.paths else 0
            at = len(tree.tokens)
            path = path[:n] + list(range(at, at + len(ids) - n))
            tree.tokens.extend(ids[n:])
            tree.depths.extend(range(n, len(ids)))
            tree.paths[row] = path
        trees.append(tree)
    return trees


def _split_points(
    lengths: Sequence[int], common: Sequence[int], max_tokens: int
) -> list[tuple[int, int]]:
    """Return where trees begin and end, so that what they repeat is short, and they are few."""
    best = [(0, 0, 0)]  # of the first sequences: repeated tokens, trees, where the last one begins
    for end in range(1, len(lengths) + 1):
        options, size = list[tuple[int, int, int]](), 0
        for begin in range(end - 1, -1, -1):
            if options and size + lengths[begin] > max_tokens:
                break
            repeated, n_trees, _ = best[begin]
            options.append((repeated + common[begin], n_trees + 1, begin))
            size += lengths[begin] - common[begin]
        best.append(min(options))
    cuts, end = list[tuple[int, int]](), len(lengths)
    while end:
        begin = best[end][2]
        cuts.append((begin, end))
        end = begin
    return cuts[::-1]


def by_length(lengths: Sequence[int], cost: int) -> list[list[int]]:
    """Return the positions in batches such that little is padded; ``cost`` is that of a batch.

    The sum of rows times longest row, plus ``cost`` for each batch, is the least possible.

    >>> by_length([5, 30, 6, 29], cost=4), by_length([5, 30, 6, 29], cost=400)
    ([[0, 2], [3, 1]], [[0, 2, 3, 1]])
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    best = {0: (0, 0)}  # of the first rows, by their number: total, and where the last batch begins
    for longest, n_rows in sorted(Counter(lengths).items()):
        end = n_rows + max(best)
        best[end] = min((best[i][0] + (end - i) * longest + cost, i) for i in best)
    batches, end = [], len(order)
    while end:
        begin = best[end][1]
        batches.append(order[begin:end])
        end = begin
    return batches[::-1]


def forward_cost(device: str) -> int:
    """Return how many tokens take as long as what a forward pass costs without any."""
    return 48 if device == "cpu" else 512


def batched(rows: Sequence[T], n: int) -> Iterator[Sequence[T]]:
    """Yield ``n`` rows at a time; the last batch may be shorter."""
    for begin in range(0, len(rows), n):
        yield rows[begin : begin + n]


def prefix_lengths(
    expanded: Sequence[int], plain: Sequence[int], image_token: int
) -> tuple[int, int]:
    """Return how many tokens of ``plain`` and of ``expanded`` end with the last picture.

    The tokenizer writes one placeholder per image (``plain``); the processor expands each to many
    ``image_token``.

    >>> prefix_lengths([1, 9, 9, 9, 5, 6], [1, 8, 5, 6], image_token=9)
    (2, 4)
    """
    n_after = list(expanded[::-1]).index(image_token) if image_token in expanded else 0
    pairs = zip(reversed(expanded), reversed(plain), strict=False)
    n_tail = min(n_after, sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)))
    return len(plain) - n_tail, len(expanded) - n_tail

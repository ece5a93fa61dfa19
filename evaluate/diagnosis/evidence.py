"""What a model's answers show about one fallen item; nothing is inferred from a missing answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from flipbench.core.images import ImageStore
from flipbench.core.paired import Pair, PairedBenchmark
from flipbench.core.records import Count, Item, Probe, Response
from flipbench.imaging.similarity import is_pair_near_unchanged
from flipbench.models.engine import Answers
from flipbench.prompting.prompts import PromptSettings, right_option, yes_no

from ..scoring.scores import cluster_of
from .questions import Inquiry, Questions, closed_pairs, first_questions, questions_about

MOST = 0.8
"""Share of the other pictures, of the orders, and of the other originals, with the same answer."""
MIN_OTHERS = 5
"""Fewest other originals with the same question that show what its usual answer is."""


@dataclass(frozen=True)
class Evidence:
    """The answers about one fallen item; None: not asked, or no readable set of answers.

    Attributes
    ----------
    item_id, name, cluster : str
        Of the original.
    n_options : int
    old : bool
        Whether the perturbed version gets the original's answer.
    readable : bool
        Whether the reply to the perturbed version names an option.
    doubted : bool or None
        Whether a rater objects to the edit, or the edit hardly changed the picture.
    usual : bool or None
        Whether the same question has the same answer on most other originals; None with fewer than
        `MIN_OTHERS`.
    text_only : bool or None
        Whether the question without a picture gets the original's answer.
    reordered, swapped : Count or None
        Replies that name the original's answer without a picture, with the options in other
        orders; and on other items' pictures.
    retouched, reworded : Count or None
        Replies that differ from that to the perturbed version, on its picture retouched, and in
        other words.
    moved : Count or None
        Replies that name the new answer, on the perturbed version with the options in other orders.
    """

    item_id: str
    name: str
    cluster: str
    n_options: int
    old: bool
    readable: bool = True
    doubted: bool | None = None
    usual: bool | None = None
    text_only: bool | None = None
    reordered: Count | None = None
    swapped: Count | None = None
    retouched: Count | None = None
    reworded: Count | None = None
    moved: Count | None = None

    @property
    def swap_keeps(self) -> bool | None:
        """Whether the original's answer stays on most other pictures."""
        return _is_most(self.swapped)

    @property
    def order_keeps(self) -> bool | None:
        """Whether it stays without a picture in most orders of the options."""
        return _is_most(self.reordered)

    @property
    def needs_no_picture(self) -> bool | None:
        """Whether the original's answer comes on most other pictures, and without a picture.

        The first is enough for a model that cannot be asked without a picture; the second is not,
        since a reply that is as good as drawn names that answer once in ``n_options``.
        """
        if self.swap_keeps is None or self.text_only is None:
            return self.swap_keeps
        return self.swap_keeps and self.text_only

    @property
    def sees(self) -> bool | None:
        """Whether the new answer is named in at least half of the other orders of the options."""
        return _is_half(self.moved)

    @property
    def unsteady(self) -> bool | None:
        """Whether any retouched picture changes the reply."""
        return None if self.retouched is None else self.retouched.k > 0

    @property
    def misread(self) -> bool | None:
        """Whether the new answer is not seen, or the reply unsteady.

        Without other orders, also whether the reply is neither answer.
        """
        if not self.readable:
            return None
        if self.unsteady or self.sees is False or (self.sees is None and not self.old):
            return True
        return None if self.sees is None or self.unsteady is None else False

    @property
    def fragile(self) -> bool | None:
        """Whether at least half of the other wordings change the reply.

        Also whether it is neither answer, although the new one is seen in other orders.
        """
        if self.readable and not self.old and self.sees:
            return True
        return _is_half(self.reworded)


@dataclass(frozen=True)
class Outcomes:
    """A model's answers to both versions of N pairs.

    Attributes
    ----------
    n, n_both_wrong, n_rose : int
        Pairs with both answers; wrong on both versions; wrong, then right on the perturbed one.
    fell : tuple of Pair
        Right on the original, wrong on the perturbed version.
    """

    n: int
    n_both_wrong: int
    n_rose: int
    fell: tuple[Pair, ...]


def outcomes(
    benchmark: PairedBenchmark, prompt_settings: PromptSettings, answers: Answers
) -> Outcomes:
    """Return which pairs fell, and how many did otherwise; unanswered pairs are left out."""
    fell, n, n_both_wrong, n_rose = [], 0, 0, 0
    for pair in closed_pairs(benchmark):
        replies = [answers.to(probe) for probe in first_questions(pair, prompt_settings)]
        if None in replies:
            continue
        first, second = (
            reply.choice == right_option(item)
            for reply, item in zip(replies, (pair.original, pair.perturbed), strict=True)
            if reply is not None
        )
        n += 1
        n_both_wrong += not first and not second
        n_rose += second and not first
        if first and not second:
            fell.append(pair)
    return Outcomes(n, n_both_wrong, n_rose, tuple(fell))


def evidence_on(
    fell: Sequence[Pair],
    benchmark: PairedBenchmark,
    prompt_settings: PromptSettings,
    answers: Answers,
    inquiry: Inquiry,
    doubted: Mapping[str, bool],
) -> list[Evidence]:
    """Return what a model's answers show about the pairs that fell.

    Parameters
    ----------
    doubted : mapping of str to bool
        Whether a rater objects to the perturbed picture, by the id of the original; pairs that
        nobody rated are missing.
    """
    known: dict[str, Counter[str]] = {}
    for item in benchmark.originals:
        known.setdefault(item.question, Counter())[item.answer_text] += 1
    return [
        replace(
            _evidence(one, answers, benchmark.images, doubted),
            usual=_is_usual(one.pair.original, known),
        )
        for one in questions_about(fell, benchmark, prompt_settings, inquiry)
    ]


def _is_usual(item: Item, known: Mapping[str, Counter[str]]) -> bool | None:
    counts = known[item.question]
    others = Count(k=counts[item.answer_text] - 1, n=counts.total() - 1)
    return None if others.n < MIN_OTHERS else _is_most(others)


def _evidence(
    asked: Questions, answers: Answers, images: ImageStore, doubted: Mapping[str, bool]
) -> Evidence:
    item = asked.pair.original
    old = right_option(item)
    assert old is not None  # of closed pairs
    reply = answers.to(asked.perturbed)
    assert reply is not None  # of fallen pairs
    blind = answers.to(asked.text_only)
    unchanged = is_pair_near_unchanged(asked.pair, images)
    objection = doubted.get(item.id)
    texts, new = item.options or yes_no(item) or (), right_option(asked.pair.perturbed)

    def names(option: int | None) -> Callable[[Probe, Response], bool]:
        text = texts[option] if option is not None else ""
        return lambda probe, r: r.choice >= 0 and probe.options[r.choice] == text

    return Evidence(
        item.id,
        item.name,
        cluster_of(item),
        len(texts),
        old=reply.choice == old,
        readable=reply.choice >= 0,
        doubted=True if unchanged else objection,
        text_only=None if blind is None else blind.choice == old,
        reordered=_count(asked.reordered, answers, names(old)),
        swapped=_count(asked.swapped, answers, lambda _, r: r.choice == old),
        retouched=_count(asked.retouched, answers, lambda _, r: r.choice != reply.choice),
        reworded=_count(asked.reworded, answers, lambda _, r: r.choice != reply.choice),
        moved=_count(asked.moved, answers, names(new)),
    )


def _count(
    probes: Sequence[Probe], answers: Answers, holds: Callable[[Probe, Response], bool]
) -> Count | None:
    """Return in how many replies something holds; None unless all probes have a reply."""
    replies = [(probe, reply) for probe in probes if (reply := answers.to(probe)) is not None]
    if not probes or len(replies) < len(probes):
        return None
    return Count(k=sum(holds(probe, reply) for probe, reply in replies), n=len(replies))


def _is_most(count: Count | None) -> bool | None:
    return None if count is None else count.k >= MOST * count.n


def _is_half(count: Count | None) -> bool | None:
    return None if count is None else 2 * count.k >= count.n

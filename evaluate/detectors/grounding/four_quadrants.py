"""Four quadrants: whether answers survive another wording, and the loss of the picture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress

import numpy as np

from flipbench.core.paired import PairedBenchmark
from flipbench.core.randomness import generator
from flipbench.core.records import Count, Interval, Item, Mean, Probe, Score
from flipbench.models.chat.labels import Labeller, LabelTask
from flipbench.models.chat.rewording import Reword
from flipbench.prompting.prompts import PromptSettings, right_option

from ...protocol import rules
from ...protocol.detector import About, Answers, Helpers, cached_per_benchmark
from ...scoring.comparison import (
    ComparingDetector,
    Comparison,
    Condition,
    Contrast,
    mcnemar_score,
)
from ...scoring.conditions import NO_REWORDING, dropped_note
from ...scoring.paraphrases import Paraphrase, are_kept, paraphrases_of
from ...scoring.scores import cluster_of, make_score
from ...scoring.unchanged import NOT_CLOSED, black_probes, closed_items, swapped_probes
from ...statistics.quadrants import (
    FLAG,
    QUADRANTS,
    Quadrant,
    QuadrantResult,
    distribution,
    entropy,
    kl_divergence,
    quadrant_of,
)
from ...statistics.resampling import share_interval
from ...statistics.roc import area_under_curve, newcombe_interval

ABOUT = About(
    name="four_quadrants",
    title="Four quadrants",
    paper="Sadanandan and Behzadan, arXiv 2603.20985 (consistency and image reliance)",
    variant="rules paper (dangerous fraction above 50 %), mcnemar (default)",
    deviates_from_paper="not a test of contamination in the paper: above 50 % rule paper is"
    " inconclusive, and 'mcnemar' compares the dangerous items with a clean model's; options by"
    " letter as well as yes and no; the question as it is counts as one of its wordings"
    " (with_original); wordings that may change the answer are left out by rules and by the model"
    " in evaluate.judge; an unreadable reply agrees with none; the dangerous fraction is shown"
    " beside that of a model that is always right, with the same text prior",
    rules={"paper": False, "mcnemar": True},
    default_rule="mcnemar",
    needs=frozenset({"choose or generate", "text_only"}),
    direction="more items get the same answer in all wordings and without the picture than from"
    " the clean model",
    helpers=frozenset({"rewording", "answer_judge"}),
    catches=("letters", "answer texts"),
    must_not_catch=("image-caption",),
    levels={"paper": None},
    on_request="it asks each question in up to seven ways, 13 with with_checks: name it with"
    " --detectors",
    evidence="unpublished",
    caveat="an answer that the text alone gives away counts as dangerous even if the picture was"
    " used: compare with the oracle's fraction; training on other text moves it as well",
)

LEFT_OUT = f"{NOT_CLOSED}, or no other wording that asks the same"


@dataclass(frozen=True)
class Asked:
    """The probes of an item: as it is, in other words, and without its picture."""

    item: Item
    original: Probe
    blind: Probe
    paraphrases: tuple[Paraphrase, ...]
    reworded: tuple[Probe, ...]
    checks: Mapping[str, Sequence[Probe]]

    @property
    def probes(self) -> list[Probe]:
        """All probes."""
        checks = [probe for probes in self.checks.values() for probe in probes]
        return [self.original, *self.reworded, self.blind, *checks]


@dataclass(frozen=True)
class Placed:
    """A model's answers to an item (-1: unreadable), and the quadrant that follows."""

    item: Item
    quadrant: Quadrant
    answer: int
    text_only: int
    entropy: float | None
    divergence: float | None


@dataclass
class FourQuadrants(ComparingDetector):
    """DF = share of items with the same answer in all wordings, and without the picture.

    Items with options and yes/no questions without them are asked. The score of rule paper holds
    all quadrants, with flip rate, DF among consistent items, the oracle's DF, entropies and
    divergences, in ``quadrants``.

    Parameters
    ----------
    reword : callable, optional
        Maps an item and its question to other wordings.
    n_paraphrases : int
        How many of them are asked at most.
    with_original : bool
        Whether the answer to the question as it is must be the same as well.
    with_checks : bool
        Whether each question is also asked on other items' pictures and on a black one, to show by
        quadrant how many answers stay.
    n_swaps : int
        Other items' pictures, with ``with_checks``.
    level_of : callable, optional
        Maps an item and a wording to what the wording changes.
    label : callable, optional
        A `flipbench.models.chat.labels.recorded_labels`. Without one, only rules exclude wordings.
    """

    reword: Reword | None = None
    n_paraphrases: int = 5
    with_original: bool = True
    with_checks: bool = False
    n_swaps: int = 5
    level_of: Callable[[Item, str], str] | None = None
    label: Labeller | None = None
    about = ABOUT

    def with_helpers(self, helpers: Helpers) -> FourQuadrants:
        """Return the detector with other wordings and a judge."""
        return replace(self, reword=helpers.reword, level_of=helpers.level_of, label=helpers.label)

    def to_judge(self, benchmark: PairedBenchmark, answers: Answers) -> Iterator[LabelTask]:
        """Yield the wordings that a rule does not leave out; they are the same for all models."""
        for paraphrases, _ in self._wordings(benchmark).values():
            yield from (one.task for one in paraphrases)

    def design(self, benchmark: PairedBenchmark, prompt_settings: PromptSettings) -> list[Contrast]:
        """Return every closed question: as it is, in other words, and without its picture."""
        wordings, checks = self._wordings(benchmark), {}
        if self.with_checks:
            seed = self.settings.seed
            checks = {
                "other pictures": swapped_probes(benchmark, prompt_settings, self.n_swaps, seed),
                "black picture": black_probes(benchmark, prompt_settings),
            }
        asked = [
            _asked(item, paraphrases, prompt_settings, checks)
            for item in closed_items(benchmark)
            if (paraphrases := wordings[item.id][0] if item.id in wordings else ())
        ]
        return [
            Contrast(
                items=[one.item for one in asked],
                probes=[probe for one in asked for probe in one.probes],
                read=lambda answers: [self._dangerous(asked, answers)],
                rules=(partial(self._paper, asked), mcnemar_score),
                left_out=LEFT_OUT,
                leave_out=lambda _: {one.item.id for one in asked if not any(self._kept(one))},
                direction="rises",
                reason="" if self.reword else NO_REWORDING,
            )
        ]

    @cached_per_benchmark
    def _wordings(
        self, benchmark: PairedBenchmark
    ) -> dict[str, tuple[list[Paraphrase], Counter[str]]]:
        """Return the wordings of each item that can be asked, and how many are left out, by id."""
        if self.reword is None:
            return {}
        return {
            item.id: paraphrases_of(
                item,
                self.reword,
                self.n_paraphrases,
                self.level_of,
                has_judge=self.label is not None,
            )
            for item in closed_items(benchmark)
        }

    def _kept(self, asked: Asked) -> list[bool]:
        return are_kept(asked.paraphrases, self.label)

    def _placed(self, asked: Asked, answers: Answers) -> Placed | None:
        """Return where an item belongs; None if an answer is missing."""
        first, blind = answers.to(asked.original), answers.to(asked.blind)
        others = [answers.to(p) for p in compress(asked.reworded, self._kept(asked))]
        if first is None or blind is None or not others or None in others:
            return None
        compared = [reply.choice for reply in others if reply is not None]
        compared += [first.choice] if self.with_original else []
        consistent = compared[0] >= 0 and len(set(compared)) == 1
        reliant = first.choice < 0 or first.choice != blind.choice
        n_options = asked.original.n_options
        p, q = (
            distribution(reply.option_log_probs)
            if len(reply.option_log_probs) == n_options and not reply.is_unreadable
            else None
            for reply in (first, blind)
        )
        return Placed(
            asked.item,
            quadrant_of(consistent, reliant),
            first.choice,
            blind.choice,
            None if p is None else float(entropy(p)),
            None if p is None or q is None else float(kl_divergence(p, q)),
        )

    def _dangerous(self, asked: Sequence[Asked], answers: Answers) -> Condition:
        """Return whether each item is dangerous, and how many replies are unreadable."""
        placed = [self._placed(one, answers) for one in asked]
        probes = [
            probe
            for one in asked
            for probe in (one.original, one.blind, *compress(one.reworded, self._kept(one)))
        ]
        return Condition(
            "dangerous",
            [None if one is None else one.quadrant == "dangerous" for one in placed],
            n_unparsed=answers.n_unparsed(probes),
            n_replies=sum(answers.to(probe) is not None for probe in probes),
        )

    def _paper(self, asked: Sequence[Asked], comparison: Comparison) -> Score:
        """Return the score of the paper's flag, which says nothing about why."""
        condition, items, answers = comparison.second, comparison.items, comparison.answers
        known = {
            item.id: bool(outcome)
            for item, outcome in zip(items, condition.outcomes, strict=True)
            if outcome is not None
        }
        n, k = len(known), sum(known.values())
        placed = [one for a in asked if a.item.id in known if (one := self._placed(a, answers))]
        result = self._result(comparison.benchmark, asked, placed, answers) if placed else None
        unparsed = {condition.name: (condition.n_unparsed, condition.n_replies)}
        notes = [*comparison.notes, *dropped_note(len(items) - n, len(items))]
        refusal = rules.unparsed_warning(unparsed)
        if items and not n:
            refusal = "no item has all the answers it needs; run the same command again to retry"
        elif n and k / n > FLAG:
            refusal = refusal or (
                f"{k} of {n} items get the same answer in all wordings and without the picture:"
                " above 50 %, the paper's flag, which does not tell memory from a text prior or"
                " from questions that need no picture"
            )
        if not items:
            refusal = "this detector cannot ask about any item of the benchmark" + (
                f": {comparison.reason}" if comparison.reason else ""
            )
        inconclusive = "inconclusive" if refusal else "not_detected"
        return make_score(
            comparison.detector,
            comparison.benchmark,
            answers,
            "paper",
            self.settings,
            direction=comparison.direction,
            statistic=k / n if n else None,
            interval=result.dangerous if result else None,
            verdict=inconclusive if items else "not_applicable",
            reason=comparison.reason,
            n=n,
            n_dropped=comparison.n_left_out + len(items) - n,
            accuracies={condition.name: Count(k=k, n=n)},
            unparsed={condition.name: condition.n_unparsed},
            quadrants=result.model_dump(mode="json") if result else None,
            details={"n_left_out": comparison.n_left_out, "n_unanswered": len(items) - n},
            per_item={item_id: float(value) for item_id, value in known.items()},
            warnings=[*notes, *([refusal] if refusal else [])],
        )

    def _result(
        self,
        benchmark: PairedBenchmark,
        asked: Sequence[Asked],
        placed: Sequence[Placed],
        answers: Answers,
    ) -> QuadrantResult:
        """Return all numbers about the quadrants of a model."""
        by_quadrant = {name: [p for p in placed if p.quadrant == name] for name in QUADRANTS}
        auroc, auroc_interval = _auroc(placed)
        wordings: Counter[str] = Counter()
        for paraphrases, left_out in self._wordings(benchmark).values():
            wordings += left_out
            wordings.update(one.outcome(self.label) for one in paraphrases)
        consistent = [p for p in placed if p.quadrant in ("ideal", "dangerous")]
        return QuadrantResult(
            counts={
                name: Count(k=sum(p.answer == right_option(p.item) for p in group), n=len(group))
                for name, group in by_quadrant.items()
            },
            flip_rate=self._interval(placed, ("fragile", "worst"), answers),
            dangerous=self._interval(placed, ("dangerous",), answers),
            given_consistent=self._interval(consistent, ("dangerous",), answers),
            prior=Count(k=sum(p.text_only == right_option(p.item) for p in placed), n=len(placed)),
            entropies={k: _mean([p.entropy for p in group]) for k, group in by_quadrant.items()},
            divergences={
                k: _mean([p.divergence for p in group]) for k, group in by_quadrant.items()
            },
            auroc=auroc,
            auroc_interval=auroc_interval,
            wordings=dict(wordings),
            levels=self._levels(asked, answers),
            unchanged=_unchanged(asked, {p.item.id: p for p in placed}, answers),
            items={p.item.id: p.quadrant for p in placed},
        )

    def _interval(
        self, placed: Sequence[Placed], quadrants: tuple[Quadrant, ...], answers: Answers
    ) -> Interval | None:
        """Return the interval of the share in these quadrants, over images or groups."""
        return share_interval(
            [p.quadrant in quadrants for p in placed],
            generator(self.settings.seed, answers.model, "quadrants"),
            clusters=[cluster_of(p.item) for p in placed],
            n_bootstrap=self.settings.n_bootstrap,
        )

    def _levels(self, asked: Sequence[Asked], answers: Answers) -> dict[str, Count]:
        """Return how often each kind of change changes the answer."""
        changed: dict[str, list[bool]] = {}
        for one in asked:
            for paraphrase, probe, use in zip(
                one.paraphrases, one.reworded, self._kept(one), strict=True
            ):
                first, other = answers.to(one.original), answers.to(probe)
                if use and paraphrase.level and first is not None and other is not None:
                    changed.setdefault(paraphrase.level, []).append(first.choice != other.choice)
        return {level: Count(k=sum(found), n=len(found)) for level, found in changed.items()}


def _asked(
    item: Item,
    paraphrases: Sequence[Paraphrase],
    prompt_settings: PromptSettings,
    checks: Mapping[str, Callable[[Item], list[Probe]]],
) -> Asked:
    return Asked(
        item,
        prompt_settings.closed_probe(item, "original"),
        prompt_settings.closed_probe(item, "text-only", images=()),
        tuple(paraphrases),
        tuple(
            prompt_settings.closed_probe(item, f"paraphrase {number}", question=one.text)
            for number, one in enumerate(paraphrases, 1)
        ),
        {name: probes(item) for name, probes in checks.items()},
    )


def _unchanged(
    asked: Sequence[Asked], placed: Mapping[str, Placed], answers: Answers
) -> dict[str, dict[str, Count]]:
    """Return by check and quadrant how many answers to changed pictures are the original's."""
    found: dict[str, dict[str, list[bool]]] = {}
    for one in asked:
        for name, probes in one.checks.items():
            replies = [reply for probe in probes if (reply := answers.to(probe)) is not None]
            if here := placed.get(one.item.id):
                of_check = found.setdefault(name, {q: [] for q in QUADRANTS})
                of_check[here.quadrant] += [0 <= reply.choice == here.answer for reply in replies]
    return {
        name: {q: Count(k=sum(same), n=len(same)) for q, same in of_check.items()}
        for name, of_check in found.items()
    }


def _mean(values: Sequence[float | None]) -> Mean:
    known = [value for value in values if value is not None]
    return Mean(mean=sum(known) / len(known) if known else None, n=len(known))


def _auroc(placed: Sequence[Placed]) -> tuple[float | None, Interval | None]:
    """Return how well a low divergence tells dangerous items from the others."""
    known = [p for p in placed if p.divergence is not None]
    scores = -np.array([p.divergence for p in known], dtype=float)
    positive = np.array([p.quadrant == "dangerous" for p in known], dtype=bool)
    n_positive = int(positive.sum())
    if not 0 < n_positive < len(known):
        return None, None
    auroc = area_under_curve(scores, positive)
    return auroc, newcombe_interval(auroc, [(n_positive, len(known) - n_positive)])

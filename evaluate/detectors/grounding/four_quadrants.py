"""Four quadrants: whether answers survive another wording, and the loss of the picture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
class _ItemProbes:
    """The probes of an item: as it is, in other words, and without its picture."""

    item: Item
    original: Probe
    blind: Probe
    paraphrases: Sequence[Paraphrase]
    reworded: Sequence[Probe]
    checks: Mapping[str, Sequence[Probe]]

    def kept(self, label: Labeller | None) -> list[Probe]:
        """Return the probes of the wordings that a judge keeps."""
        return list(compress(self.reworded, are_kept(self.paraphrases, label)))


@dataclass(frozen=True)
class _PlacedItem:
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
            yield from (paraphrase.task for paraphrase in paraphrases)

    def design(self, benchmark: PairedBenchmark, prompt_settings: PromptSettings) -> list[Contrast]:
        """Return every closed question: as it is, in other words, and without its picture."""
        wordings, checks = self._wordings(benchmark), {}
        if self.with_checks:
            seed = self.settings.seed
            checks = {
                "other pictures": swapped_probes(benchmark, prompt_settings, self.n_swaps, seed),
                "black picture": black_probes(benchmark, prompt_settings),
            }
        questions = [
            _ItemProbes(
                item,
                prompt_settings.closed_probe(item, "original"),
                prompt_settings.closed_probe(item, "text-only", images=()),
                paraphrases,
                [
                    prompt_settings.closed_probe(
                        item, f"paraphrase {number}", question=wording.text
                    )
                    for number, wording in enumerate(paraphrases, 1)
                ],
                {name: probes(item) for name, probes in checks.items()},
            )
            for item in closed_items(benchmark)
            if (paraphrases := wordings[item.id][0] if item.id in wordings else [])
        ]
        return [
            Contrast(
                items=[q.item for q in questions],
                probes=[
                    probe
                    for q in questions
                    for probes in ([q.original], q.reworded, [q.blind], *q.checks.values())
                    for probe in probes
                ],
                read=lambda answers: [self._dangerous(questions, answers)],
                rules=(partial(self._paper, questions), mcnemar_score),
                left_out=LEFT_OUT,
                leave_out=lambda _: {q.item.id for q in questions if not q.kept(self.label)},
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
        has_judge = self.label is not None
        return {
            item.id: paraphrases_of(
                item, self.reword, self.n_paraphrases, self.level_of, has_judge=has_judge
            )
            for item in closed_items(benchmark)
        }

    def _place(self, questions: _ItemProbes, answers: Answers) -> _PlacedItem | None:
        """Return where an item belongs; None if an answer is missing."""
        original, blind = answers.to(questions.original), answers.to(questions.blind)
        choices = answers.choices(questions.kept(self.label))
        if original is None or blind is None or not choices or None in choices:
            return None
        choices += [original.choice] if self.with_original else []
        consistent = choices[0] != -1 and len(set(choices)) == 1
        reliant = original.choice < 0 or original.choice != blind.choice
        p, q = (
            distribution(reply.option_log_probs)
            if len(reply.option_log_probs) == questions.original.n_options
            and not reply.is_unreadable
            else None
            for reply in (original, blind)
        )
        return _PlacedItem(
            questions.item,
            quadrant_of(consistent, reliant),
            original.choice,
            blind.choice,
            None if p is None else float(entropy(p)),
            None if p is None or q is None else float(kl_divergence(p, q)),
        )

    def _dangerous(self, questions: Sequence[_ItemProbes], answers: Answers) -> Condition:
        """Return whether each item is dangerous, and how many replies are unreadable."""
        placed = [self._place(q, answers) for q in questions]
        probes = [p for q in questions for p in (q.original, q.blind, *q.kept(self.label))]
        return Condition(
            "dangerous",
            [None if item is None else item.quadrant == "dangerous" for item in placed],
            n_unparsed=answers.n_unparsed(probes),
            n_replies=sum(choice is not None for choice in answers.choices(probes)),
        )

    def _paper(self, questions: Sequence[_ItemProbes], comparison: Comparison) -> Score:
        """Return the score of the paper's flag, which says nothing about why."""
        condition, items, answers = comparison.second, comparison.items, comparison.answers
        is_dangerous = {
            item.id: bool(outcome)
            for item, outcome in zip(items, condition.outcomes, strict=True)
            if outcome is not None
        }
        n, k = len(is_dangerous), sum(is_dangerous.values())
        placed = {
            q.item.id: item
            for q in questions
            if q.item.id in is_dangerous and (item := self._place(q, answers))
        }
        result = self._result(comparison.benchmark, questions, placed, answers) if placed else None
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
            per_item={item_id: float(value) for item_id, value in is_dangerous.items()},
            warnings=[*notes, *([refusal] if refusal else [])],
        )

    def _result(
        self,
        benchmark: PairedBenchmark,
        questions: Sequence[_ItemProbes],
        placed_by_id: Mapping[str, _PlacedItem],
        answers: Answers,
    ) -> QuadrantResult:
        """Return all numbers about the quadrants of a model."""
        placed = list(placed_by_id.values())
        by_quadrant = {name: [p for p in placed if p.quadrant == name] for name in QUADRANTS}
        auroc, auroc_interval = _auroc(placed)
        wordings: Counter[str] = Counter()
        for paraphrases, left_out in self._wordings(benchmark).values():
            wordings += left_out
            wordings.update(paraphrase.outcome(self.label) for paraphrase in paraphrases)
        consistent = [p for p in placed if p.quadrant in ("ideal", "dangerous")]
        return QuadrantResult(
            counts={
                name: _count(p.answer == right_option(p.item) for p in group)
                for name, group in by_quadrant.items()
            },
            flip_rate=self._interval(placed, ("fragile", "worst"), answers),
            dangerous=self._interval(placed, ("dangerous",), answers),
            given_consistent=self._interval(consistent, ("dangerous",), answers),
            prior=_count(p.text_only == right_option(p.item) for p in placed),
            entropies={k: _mean([p.entropy for p in group]) for k, group in by_quadrant.items()},
            divergences={
                k: _mean([p.divergence for p in group]) for k, group in by_quadrant.items()
            },
            auroc=auroc,
            auroc_interval=auroc_interval,
            wordings=dict(wordings),
            levels=self._levels(questions, answers),
            unchanged=_unchanged(questions, placed_by_id, answers),
            items={p.item.id: p.quadrant for p in placed},
        )

    def _interval(
        self, placed: Sequence[_PlacedItem], quadrants: tuple[Quadrant, ...], answers: Answers
    ) -> Interval | None:
        """Return the interval of the share in these quadrants, over images or groups."""
        return share_interval(
            [p.quadrant in quadrants for p in placed],
            generator(self.settings.seed, answers.model, "quadrants"),
            clusters=[cluster_of(p.item) for p in placed],
            n_bootstrap=self.settings.n_bootstrap,
        )

    def _levels(self, questions: Sequence[_ItemProbes], answers: Answers) -> dict[str, Count]:
        """Return how often each kind of change changes the answer."""
        is_changed: dict[str, list[bool]] = {}
        for q in questions:
            original = answers.to(q.original)
            is_kept = are_kept(q.paraphrases, self.label)
            for paraphrase, probe in compress(zip(q.paraphrases, q.reworded, strict=True), is_kept):
                reply = answers.to(probe)
                if paraphrase.level and original is not None and reply is not None:
                    changes = is_changed.setdefault(paraphrase.level, [])
                    changes.append(original.choice != reply.choice)
        return {level: _count(changes) for level, changes in is_changed.items()}


def _unchanged(
    questions: Sequence[_ItemProbes], placed_by_id: Mapping[str, _PlacedItem], answers: Answers
) -> dict[str, dict[str, Count]]:
    """Return by check and quadrant how many answers to changed pictures are the original's."""
    checks: dict[str, dict[str, list[bool]]] = {}
    for q in questions:
        if placed := placed_by_id.get(q.item.id):
            for name, probes in q.checks.items():
                by_quadrant = checks.setdefault(name, {quadrant: [] for quadrant in QUADRANTS})
                by_quadrant[placed.quadrant] += [
                    0 <= choice == placed.answer
                    for choice in answers.choices(probes)
                    if choice is not None
                ]
    return {
        name: {quadrant: _count(is_same) for quadrant, is_same in by_quadrant.items()}
        for name, by_quadrant in checks.items()
    }


def _count(flags: Iterable[bool]) -> Count:
    flags = list(flags)
    return Count(k=sum(flags), n=len(flags))


def _mean(values: Sequence[float | None]) -> Mean:
    numbers = [value for value in values if value is not None]
    return Mean(mean=sum(numbers) / len(numbers) if numbers else None, n=len(numbers))


def _auroc(placed: Sequence[_PlacedItem]) -> tuple[float | None, Interval | None]:
    """Return how well a low divergence tells dangerous items from the others."""
    items = [p for p in placed if p.divergence is not None]
    scores = -np.array([p.divergence for p in items], dtype=float)
    is_dangerous = np.array([p.quadrant == "dangerous" for p in items], dtype=bool)
    n_dangerous = int(is_dangerous.sum())
    if not 0 < n_dangerous < len(items):
        return None, None
    auroc = area_under_curve(scores, is_dangerous)
    return auroc, newcombe_interval(auroc, [(n_dangerous, len(items) - n_dangerous)])

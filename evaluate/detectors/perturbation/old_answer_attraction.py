"""Old-answer attraction: wrong answers to perturbed items that name the original's answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flipbench.core.image_similarity import is_pair_near_unchanged
from flipbench.core.paired import Pair, PairedBenchmark
from flipbench.core.records import Count, Probe, ReferenceResult, Score
from flipbench.prompting.prompts import PromptSettings

from ...protocol.detector import About, Answers, cached_per_benchmark
from ...scoring.conditions import Settings, dropped_note, left_out_note
from ...scoring.old_answers import (
    DETECTOR,
    PerturbedReplies,
    WrongAnswer,
    against_chance,
    attraction_fields,
)
from ...scoring.scores import cluster_of, make_score, no_reference_warning
from ...statistics.resampling import by_cluster, exact_label_swap_p

ABOUT = About(
    name=DETECTOR,
    title="Old-answer attraction",
    paper="unpublished; reads replies to the perturbed items of Park et al., arXiv 2511.03774",
    variant="rules chance (default), relative",
    deviates_from_paper="in no paper: chance permutes the old answers among wrong answers with the"
    " same new answer; 'relative' compares with a clean model on the items both answer wrongly",
    rules={"chance": False, "relative": True},
    default_rule="chance",
    needs=frozenset({"choose or generate"}),
    direction="wrong answers to perturbed items are the original items' answers",
    rule_titles={"chance": "more often than chance"},
    catches=("letters", "answer texts"),
    must_not_catch=("question only", "image-caption"),
    signal="answers to the perturbed items",
    evidence="unpublished",
    caveat="an edit that changed too little, or an old answer that the question alone suggests,"
    " attracts clean models too",
)


@dataclass
class OldAnswerAttraction:
    """Among wrong answers to perturbed items, the share that is the original item's answer.

    Without memory of the original, a wrong answer does not depend on which of the wrong options was
    the original's: old answers can be permuted among items that share number of options and new
    answer. That holds whatever letters a model prefers, and only wrong answers count, so it does
    not matter whether the perturbed items are harder or easier than the originals. The statistic is
    the share minus its expectation. Replies that name no option are not wrong answers; left out are
    free-form items, items with two options, and pairs whose two images are almost equal.

    Assumes that the original's answer tempts no more than the other wrong options of the edited
    image. That fails if the edit left the old object in place, or if the original's answer is what
    one expects without looking; rule "relative" allows for both.

    Where items share an image or a group, the p-value of rule "chance" is the larger of two: that
    of the permutations, and that of swapping the sign of each image's sum of
    (old answer - expected).
    """

    settings: Settings = Settings()
    about = ABOUT

    def probes(self, benchmark: PairedBenchmark, prompt_settings: PromptSettings) -> list[Probe]:
        """Return the perturbed question of every pair with three or more options."""
        return [_probe(pair, prompt_settings) for pair in _askable(benchmark)]

    def score(
        self,
        benchmark: PairedBenchmark,
        prompt_settings: PromptSettings,
        answers: Answers,
        reference: Answers | None = None,
    ) -> list[Score]:
        """Return the scores of rules chance and relative."""
        pairs = self._edited(benchmark)
        own = _Replies.read(pairs, prompt_settings, answers)
        n_askable = len(_askable(benchmark))
        notes = [
            *left_out_note(
                len(benchmark.pairs) - n_askable, "they are free-form or have fewer than 3 options"
            ),
            *left_out_note(n_askable - len(pairs), "their two images are almost equal"),
            *dropped_note(len(pairs) - len(own.choices), len(pairs)),
        ]

        def score(rule: str, result: dict[str, Any], against: Answers | None = None) -> Score:
            fields = {
                "direction": "rises",
                "n": len(own.choices),
                "n_dropped": len(benchmark.pairs) - len(own.choices),
                "unparsed": {"perturbed": own.n_unparsed},
                **result,
                "warnings": [*notes, *result["warnings"]],
            }
            return make_score(
                ABOUT.name,
                benchmark,
                answers,
                rule,
                self.settings,
                reference_answers=against,
                **fields,
            )

        if not pairs:
            why = "this detector cannot ask about any item of the benchmark"
            nothing = {"verdict": "not_applicable", "warnings": [why]}
            return [score("chance", nothing), score("relative", nothing)]
        chance = score("chance", against_chance(own.on_perturbed, self.settings))
        if reference is None:
            why = no_reference_warning("relative", answers)
            none = {"verdict": "not_applicable", "lacks_reference": True, "warnings": [why]}
            return [chance, score("relative", none)]
        theirs = _Replies.read(pairs, prompt_settings, reference)
        return [chance, score("relative", self._against_model(own, theirs, reference), reference)]

    @cached_per_benchmark
    def _edited(self, benchmark: PairedBenchmark) -> list[Pair]:
        """Return the pairs that can be asked and whose two images are not almost equal."""
        return [
            pair
            for pair in _askable(benchmark)
            if not is_pair_near_unchanged(pair, benchmark.images)
        ]

    def _against_model(self, own: _Replies, theirs: _Replies, model: Answers) -> dict[str, Any]:
        others = {answer.item_id: answer for answer in theirs.wrong}
        common = [answer for answer in own.wrong if answer.item_id in others]
        clean = [others[answer.item_id] for answer in common]
        k, other_k = (sum(answer.is_old for answer in wrong) for wrong in (common, clean))
        differences = [float(a.is_old) - b.is_old for a, b in zip(common, clean, strict=True)]
        totals, _ = by_cluster(np.array(differences), [answer.cluster for answer in common])
        p_value, n = exact_label_swap_p(-totals), len(common)
        return {
            **attraction_fields(own.on_perturbed, common, differences, p_value, self.settings),
            "accuracies": {"old answer": Count(k=k, n=n)},
            "reference": ReferenceResult(
                model=model.model,
                statistic=other_k / n if n else None,
                n=n,
                accuracies={"old answer": Count(k=other_k, n=n)},
                unparsed={"perturbed": theirs.n_unparsed},
            ),
        }


@dataclass(frozen=True)
class _Replies:
    """A model's choices on perturbed items by the original's id, -1 if a reply names no option."""

    pairs: Sequence[Pair]
    choices: Mapping[str, int]

    @classmethod
    def read(
        cls, pairs: Sequence[Pair], prompt_settings: PromptSettings, answers: Answers
    ) -> _Replies:
        replies = {pair.original.id: answers.to(_probe(pair, prompt_settings)) for pair in pairs}
        return cls(pairs, {id_: reply.choice for id_, reply in replies.items() if reply})

    @property
    def wrong(self) -> list[WrongAnswer]:
        """The wrong options that perturbed items are answered by."""
        choices = [(pair, self.choices.get(pair.original.id, -1)) for pair in self.pairs]
        return [
            WrongAnswer(
                pair.original.id,
                choice,
                pair.original.answer or 0,
                pair.perturbed.answer or 0,
                len(pair.perturbed.options or ()),
                cluster_of(pair.original),
            )
            for pair, choice in choices
            if choice not in (-1, pair.perturbed.answer)
        ]

    @property
    def on_perturbed(self) -> PerturbedReplies:
        """The replies as both rules read them."""
        return PerturbedReplies(list(self.choices), self.wrong, self.n_unparsed)

    @property
    def n_unparsed(self) -> int:
        return list(self.choices.values()).count(-1)


def _askable(benchmark: PairedBenchmark) -> list[Pair]:
    """Return the pairs with at least three options."""
    return [pair for pair in benchmark.pairs if len(pair.original.options or ()) > 2]


def _probe(pair: Pair, prompt_settings: PromptSettings) -> Probe:
    return prompt_settings.probe(pair.perturbed, "perturbed")

"""Old-answer attraction: wrong answers to perturbed items that name the original's answer."""

from __future__ import annotations

from collections.abc import Sequence
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
        replies = _read(pairs, prompt_settings, answers)
        n, n_askable = len(replies.item_ids), len(_askable(benchmark))
        notes = [
            *left_out_note(
                len(benchmark.pairs) - n_askable, "they are free-form or have fewer than 3 options"
            ),
            *left_out_note(n_askable - len(pairs), "their two images are almost equal"),
            *dropped_note(len(pairs) - n, len(pairs)),
        ]

        def score(rule: str, warnings: Sequence[str], **fields: Any) -> Score:
            return make_score(
                ABOUT.name,
                benchmark,
                answers,
                rule,
                self.settings,
                direction="rises",
                n=n,
                n_dropped=len(benchmark.pairs) - n,
                unparsed={"perturbed": replies.n_unparsed},
                warnings=[*notes, *warnings],
                **fields,
            )

        if not pairs:
            refusal = ["this detector cannot ask about any item of the benchmark"]
            return [score(rule, refusal, verdict="not_applicable") for rule in ABOUT.rules]
        chance = score("chance", **against_chance(replies, self.settings))
        if reference is None:
            refusal = [no_reference_warning("relative", answers)]
            fields: dict[str, Any] = {"verdict": "not_applicable", "lacks_reference": True}
            return [chance, score("relative", refusal, **fields)]
        fields = self._against_clean(replies, _read(pairs, prompt_settings, reference), reference)
        return [chance, score("relative", **fields)]

    @cached_per_benchmark
    def _edited(self, benchmark: PairedBenchmark) -> list[Pair]:
        """Return the pairs that can be asked and whose two images are not almost equal."""
        return [
            pair
            for pair in _askable(benchmark)
            if not is_pair_near_unchanged(pair, benchmark.images)
        ]

    def _against_clean(
        self, replies: PerturbedReplies, clean_replies: PerturbedReplies, reference: Answers
    ) -> dict[str, Any]:
        """Return the fields of rule relative, on the items that both models answer wrongly."""
        clean_by_id = {answer.item_id: answer for answer in clean_replies.wrong_answers}
        common = [answer for answer in replies.wrong_answers if answer.item_id in clean_by_id]
        clean = [clean_by_id[answer.item_id] for answer in common]
        n, k = len(common), sum(answer.is_old for answer in common)
        clean_k = sum(answer.is_old for answer in clean)
        differences = [float(a.is_old) - b.is_old for a, b in zip(common, clean, strict=True)]
        totals, _ = by_cluster(np.array(differences), [answer.cluster for answer in common])
        p_value = exact_label_swap_p(-totals)
        return {
            **attraction_fields(replies, common, differences, p_value, self.settings),
            "accuracies": {"old answer": Count(k=k, n=n)},
            "reference_answers": reference,
            "reference": ReferenceResult(
                model=reference.model,
                statistic=clean_k / n if n else None,
                n=n,
                accuracies={"old answer": Count(k=clean_k, n=n)},
                unparsed={"perturbed": clean_replies.n_unparsed},
            ),
        }


def _read(
    pairs: Sequence[Pair], prompt_settings: PromptSettings, answers: Answers
) -> PerturbedReplies:
    """Return a model's replies to the perturbed versions."""
    choices = answers.choices([_probe(pair, prompt_settings) for pair in pairs])
    replies = [
        (pair, choice) for pair, choice in zip(pairs, choices, strict=True) if choice is not None
    ]
    wrong_answers = [
        WrongAnswer(
            pair.original.id,
            choice,
            pair.original.answer or 0,
            pair.perturbed.answer or 0,
            len(pair.perturbed.options or ()),
            cluster_of(pair.original),
        )
        for pair, choice in replies
        if choice not in (-1, pair.perturbed.answer)
    ]
    item_ids = [pair.original.id for pair, _ in replies]
    return PerturbedReplies(item_ids, wrong_answers, choices.count(-1))


def _askable(benchmark: PairedBenchmark) -> list[Pair]:
    """Return the pairs with at least three options."""
    return [pair for pair in benchmark.pairs if len(pair.original.options or ()) > 2]


def _probe(pair: Pair, prompt_settings: PromptSettings) -> Probe:
    return prompt_settings.probe(pair.perturbed, "perturbed")

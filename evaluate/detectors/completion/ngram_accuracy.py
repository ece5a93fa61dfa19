"""N-gram accuracy: continuing a question's raw text verbatim."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Count, Item, JsonDict, Probe, Response, Score
from flipbench.models.chat.rewording import Reword
from flipbench.prompting.prompts import PromptSettings, lettered

from ...protocol.detector import About, Answers, Helpers
from ...scoring.comparison import (
    ComparingDetector,
    Condition,
    Contrast,
    mcnemar_score,
    threshold_score,
)
from ...scoring.conditions import NO_REWORDING, mean

ABOUT = About(
    name="ngram_accuracy",
    title="N-gram accuracy",
    paper="Xu et al., Benchmarking Benchmark Leakage in LLMs (BenBench), arXiv 2404.18824; as a"
    " detector for VLMs: Park et al., arXiv 2511.03774, table 12",
    variant="rules paper (any rise above the clean model in n-grams of the choices, as in"
    " 2511.03774), choices (the same, tested), paired (default; BenBench's n-grams of question and"
    " answer, above the clean model), paraphrase (above its own accuracy on reworded questions)",
    deviates_from_paper="one pass with the true text before each token decides which tokens greedy"
    " decoding would produce, which gives the n-grams that it would complete without decoding and"
    " encoding again (the authors generate from decoded prefixes, and an early end shifts their"
    " n-grams); of items with the same text only one is asked; how 2511.03774 masks the choices is"
    " not published: here n-grams start at any token of them; tests. A model that can only chat"
    " cannot continue raw text",
    rules={"paper": True, "choices": True, "paired": True, "paraphrase": False},
    default_rule="paired",
    needs=frozenset({"raw_text", "text_only"}),
    direction="n-grams of the benchmark are completed more often than by the clean model",
    helpers=frozenset({"rewording"}),
    rule_titles={"choices": "Choices masked"},
    catches=("whole texts", "question only"),
    must_not_catch=("letters", "image-caption"),
    levels={"paper": 0.5},
    evidence="published, contested",
    caveat="above the clean model for 15 of 24 contaminated VLMs (arXiv 2511.03774, table 12);"
    " training on answers alone teaches no question, and common templates are continued unseen",
)
CHOICES, TEXT = "n-grams of choices", "n-grams"


def starts(n_tokens: int, n: int = 5, n_starts: int = 5, minimum: int = 2) -> list[int]:
    """Return evenly spaced n-gram starts from ``minimum`` to the last possible; none if too short.

    >>> starts(20), starts(6)
    ([2, 5, 8, 11, 15], [])
    """
    if n_tokens - n < minimum:
        return []
    return [int(start) for start in np.linspace(minimum, n_tokens - n, n_starts)]


@dataclass(frozen=True)
class _Text:
    """An item's raw texts in one condition; several if it has several wordings."""

    item: Item
    probes: tuple[Probe, ...]


@dataclass
class NgramAccuracy(ComparingDetector):
    """Gap = share of n-grams completed exactly - the clean model's share.

    The model continues raw text without chat template, in tokens of its own tokenizer. Rules
    'paired' and 'paraphrase' are about the question followed by its answer, 'paper' and 'choices'
    about the choices after the question, of which no token is given at first.
    Rule 'paraphrase' needs no clean model: its gap is the share in the release's wording - the
    share in others. ``details["relative_loss"]`` is that gap relative to the former (the paper's
    delta), and ``details["n_whole"]`` counts the items with every n-gram completed.

    Parameters
    ----------
    reword : callable, optional
        Returns other wordings of a question, of which the first ``n_paraphrases`` are used.
    """

    reword: Reword | None = None
    n: int = 5
    n_starts: int = 5
    n_paraphrases: int = 2
    about = ABOUT

    def with_helpers(self, helpers: Helpers) -> NgramAccuracy:
        """Return the detector with these wordings."""
        return replace(self, reword=helpers.reword, n_paraphrases=helpers.n_wordings)

    def design(self, benchmark: PairedBenchmark, prompt_settings: PromptSettings) -> list[Contrast]:
        """Return each raw text, and its rewordings; ``prompt_settings`` is not used."""
        items = benchmark.originals
        choices = _distinct(
            _Text(item, (_choices_probe(item),)) for item in items if item.options is not None
        )
        texts = _distinct(_Text(item, (_text_probe(item, "ngram"),)) for item in items)
        reworded = self._reworded(items)
        repeated = "or the same text is already asked about"
        return [
            self._contrast(
                [(CHOICES, choices)],
                (partial(threshold_score, rule="paper"), partial(mcnemar_score, rule="choices")),
                f"they are free-form, their choices have fewer than {self.n} tokens, {repeated}",
            ),
            self._contrast(
                [(TEXT, texts)],
                (partial(mcnemar_score, rule="paired"),),
                f"their text has fewer than {self.n + 2} tokens, {repeated}",
            ),
            replace(
                self._contrast(
                    [
                        (f"{TEXT} reworded", reworded),
                        (TEXT, [_Text(t.item, (_text_probe(t.item, "ngram"),)) for t in reworded]),
                    ],
                    (partial(mcnemar_score, rule="paraphrase"),),
                    f"their text has fewer than {self.n + 2} tokens, {repeated}, or they have fewer"
                    f" than {self.n_paraphrases} other wordings (evaluate.rewording)",
                ),
                reason="" if self.reword else NO_REWORDING,
                finish=_with_loss,
            ),
        ]

    def _contrast(
        self,
        conditions: Sequence[tuple[str, Sequence[_Text]]],
        rules: Sequence[Callable[..., Score]],
        left_out: str,
    ) -> Contrast:
        def read(answers: Answers) -> list[Condition]:
            return [self._condition(name, texts, answers) for name, texts in conditions]

        def too_short(answers: Answers) -> set[str]:
            return {
                text.item.id
                for _, texts in conditions
                for text in texts
                for probe in text.probes
                if (reply := answers.to(probe)) is not None and not self._starts(probe, reply)
            }

        def n_whole(answers: Answers) -> JsonDict:
            short, outcomes = too_short(answers), read(answers)[-1].outcomes
            whole = [i.id for i, o in zip(items, outcomes, strict=True) if o == 1.0]
            return {"n_whole": len([item_id for item_id in whole if item_id not in short])}

        items = [text.item for text in conditions[-1][1]]
        return Contrast(
            items=items,
            probes=[probe for _, texts in conditions for text in texts for probe in text.probes],
            read=read,
            rules=rules,
            left_out=left_out,
            leave_out=too_short,
            describe=n_whole,
            direction="rises",
        )

    def _reworded(self, items: Sequence[Item]) -> list[_Text]:
        if self.reword is None:
            return []
        texts = []
        for item in items:
            wordings = tuple(self.reword(item, item.question))[: self.n_paraphrases]
            if len(wordings) == self.n_paraphrases:
                probes = (
                    _text_probe(item, f"ngram-reworded-{number}", wording)
                    for number, wording in enumerate(wordings)
                )
                texts.append(_Text(item, tuple(probes)))
        return _distinct(texts)

    def _condition(self, name: str, texts: Sequence[_Text], answers: Answers) -> Condition:
        outcomes: list[float | None] = []
        n_trials = self.n_starts * max([len(text.probes) for text in texts], default=1)
        for text in texts:
            replies = [(probe, answers.to(probe)) for probe in text.probes]
            shares = [None if r is None else self._share(p, r) for p, r in replies]
            complete = [share for share in shares if share is not None]
            outcomes.append(mean(complete) if len(complete) == len(shares) else None)
        return Condition(name, outcomes, 0, len(outcomes), n_trials)

    def _share(self, probe: Probe, reply: Response) -> float | None:
        """Return the share of n-grams that greedy decoding completes; None if there are none."""
        offset = _n_unscored(probe)
        hits = [
            all(reply.is_greedy[start - offset : start - offset + self.n])
            for start in self._starts(probe, reply)
        ]
        return mean(hits) if hits else None

    def _starts(self, probe: Probe, reply: Response) -> list[int]:
        offset = _n_unscored(probe)
        return starts(offset + len(reply.is_greedy), self.n, self.n_starts, minimum=2 * offset)


def _n_unscored(probe: Probe) -> int:
    """Return 1 without a prompt: nothing precedes a text's first token, so it has no score."""
    return 0 if probe.prompt else 1


def _text_probe(item: Item, variant: str, question: str | None = None) -> Probe:
    """Return the question and the right answer, with one space between them, as one raw text."""
    text = f"{item.question if question is None else question} {item.answer_text}"
    return _raw_probe(item, variant, text)


def _choices_probe(item: Item) -> Probe:
    """Return the choices as raw text after the question."""
    choices = " ".join(lettered(item.options or ()))
    return _raw_probe(item, "ngram-choices", f" {choices}", item.question)


def _raw_probe(item: Item, variant: str, text: str, prompt: str = "") -> Probe:
    return Probe(
        item_id=item.id,
        variant=variant,
        prompt=prompt,
        ask="score_text",
        continuation=text,
        max_new_tokens=0,
    )


def _distinct(texts: Iterable[_Text]) -> list[_Text]:
    """Return one item, that of the lowest id, for each text; the order stays."""
    texts = list(texts)
    item_ids: dict[tuple[str, ...], str] = {}
    for text in texts:
        key = tuple(probe.id for probe in text.probes)
        item_ids[key] = min(item_ids.get(key, text.item.id), text.item.id)
    lowest_ids = set(item_ids.values())
    return [text for text in texts if text.item.id in lowest_ids]


def _with_loss(score: Score, answers: Answers) -> Score:
    count = score.accuracies.get(TEXT, Count(k=0, n=0))
    loss = None
    if count.k and score.statistic is not None:
        loss = score.statistic / (count.k / count.n)
    return score.model_copy(update={"details": score.details | {"relative_loss": loss}})

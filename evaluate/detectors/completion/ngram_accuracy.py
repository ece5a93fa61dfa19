"""N-gram accuracy: continuing a question verbatim."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np

from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Count, Item, JsonDict, Probe, Response, Score
from flipbench.models.chat.rewording import Reword
from flipbench.prompting.prompts import LETTERS, PromptSettings

from ...protocol.detector import About, Answers, Helpers
from ...scoring.comparison import (
    ComparingDetector,
    Condition,
    Contrast,
    Settings,
    against_clean,
    mcnemar_score,
    threshold_score,
    two_conditions,
)
from ...scoring.conditions import (
    NO_REWORDING,
    Query,
    QueryPair,
    Reading,
    mean,
    open_question,
)
from ...scoring.text_match import continuation

PROMPT = "{prefix}\nThis text breaks off. Continue it word for word. Write only what follows."

ABOUT = About(
    name="ngram_accuracy",
    title="N-gram accuracy",
    paper="Xu et al., Benchmarking Benchmark Leakage in LLMs (BenBench), arXiv 2404.18824; as a"
    " detector for VLMs: Park et al., arXiv 2511.03774, table 12",
    variant="rules paper (any rise above the clean model, as in 2511.03774), paired (default),"
    " paraphrase (above its own accuracy on reworded questions)",
    deviates_from_paper="n-grams are words, the same for every model, unless a tokenizer is given;"
    " the prefix is part of a chat message with an instruction, not raw text; if a reply repeats"
    " the prefix, only what follows is read; missing words are misses (the authors' code shifts"
    " them); tests",
    rules={"paper": True, "paired": True, "paraphrase": False},
    default_rule="paired",
    needs=frozenset({"generate", "text_only"}),
    direction="n-grams of the benchmark are completed more often than by the clean model",
    helpers=frozenset({"rewording"}),
    catches=("whole texts", "question only"),
    must_not_catch=("letters", "image-caption"),
    levels={"paper": 0.5},
)


@dataclass(frozen=True)
class Units:
    """How a text is split into the units of n-grams, and joined again."""

    split: Callable[[str], list[str]]
    glue: str


WORDS = Units(str.split, " ")


def token_units(tokenizer: Any) -> Units:
    """Return units that are the tokens of a fast tokenizer of transformers."""

    def split(text: str) -> list[str]:
        encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        ends = [end for _, end in encoding["offset_mapping"]]
        return [text[a:b] for a, b in zip([0, *ends], ends, strict=False) if b > a]

    return Units(split, "")


def starts(n_units: int, n: int = 5, n_starts: int = 5) -> list[int]:
    """Return evenly spaced n-gram starts from 2 to the last possible; none if too short.

    >>> starts(20), starts(6)
    ([2, 5, 8, 11, 15], [])
    """
    if n_units - n - 1 <= 0:
        return []
    return [int(start) for start in np.linspace(2, n_units - n, n_starts)]


def text_of(item: Item, with_: Literal["options", "answer"], question: str | None = None) -> str:
    """Return a question with its options (or its right answer) on one line.

    A free-form question is followed by its answer.
    """
    stem = item.question if question is None else question
    tail = item.answer_text
    if item.options is not None and with_ == "options":
        tail = " ".join(f"{a}. {o}" for a, o in zip(LETTERS, item.options, strict=False))
    return " ".join(f"{stem} {tail}".split())


@dataclass
class NgramAccuracy(ComparingDetector):
    """Gap = share of n-grams completed exactly - the clean model's share.

    Rule 'paraphrase' needs no clean model: its gap is the share in the release's wording - the
    share in others. ``details["relative_loss"]`` is that gap relative to the former (the paper's
    delta), and ``details["n_whole"]`` counts the items with every n-gram completed.
    The detector cannot see memory of pictures, and training on answers alone teaches no question.
    Without pictures, texts with the same beginning share probes, of which at most one continuation
    is right; shorter wordings do so more often, which raises rule 'paraphrase' for clean models
    too.

    Parameters
    ----------
    reword : callable, optional
        Returns other wordings of a question, of which the first ``n_paraphrases`` are used.
    units : Units
        Words, or `token_units` of a model's tokenizer: then the probes are specific to that model.

    References
    ----------
    Xu et al., arXiv 2404.18824; Park et al., arXiv 2511.03774, table 12.
    Differs from the paper as described in ``about.deviates_from_paper``.
    """

    reword: Reword | None = None
    settings: Settings = field(default_factory=Settings)
    units: Units = WORDS
    text: Literal["options", "answer"] = "options"
    n: int = 5
    n_starts: int = 5
    n_paraphrases: int = 2
    with_image: bool = False
    max_new_tokens: int = 40
    about: About = ABOUT

    def with_helpers(self, helpers: Helpers) -> NgramAccuracy:
        """Return the detector with these wordings."""
        return replace(self, reword=helpers.reword, n_paraphrases=helpers.n_wordings)

    def design(self, benchmark: PairedBenchmark, prompt_settings: PromptSettings) -> list[Contrast]:
        """Return each text, and its rewordings, up to each start; no settings apply."""
        queries = [
            (item, query)
            for item in benchmark.originals
            if (query := self._query(item, "ngram", None)) is not None
        ]
        n_whole = partial(_n_whole, [query for _, query in queries])
        short = f"their text has fewer than {self.n + 2} words or tokens"
        own = against_clean(
            queries,
            "n-grams",
            (partial(threshold_score, rule="paper"), partial(mcnemar_score, rule="paired")),
            short,
            self.n_starts,
            describe=n_whole,
        )
        reworded = two_conditions(
            self._reworded(benchmark),
            ("n-grams reworded", "n-grams"),
            (partial(mcnemar_score, rule="paraphrase"),),
            f"{short}, or they have fewer than {self.n_paraphrases} other wordings"
            " (evaluate.rewording)",
            (self.n_starts * self.n_paraphrases, self.n_starts),
            direction="rises",
            reason="" if self.reword else NO_REWORDING,
            describe=n_whole,
            finish=_with_loss,
        )
        return [own, reworded]

    def _reworded(self, benchmark: PairedBenchmark) -> list[QueryPair]:
        if self.reword is None:
            return []
        query_pairs = []
        for item in benchmark.originals:
            wordings = tuple(self.reword(item, item.question))[: self.n_paraphrases]
            own = self._query(item, "ngram", None)
            reworded = self._query(item, "ngram-reworded", wordings)
            if own is not None and reworded is not None and len(wordings) == self.n_paraphrases:
                query_pairs.append(QueryPair(item, reworded, own))
        return query_pairs

    def _query(self, item: Item, variant: str, questions: tuple[str, ...] | None) -> Query | None:
        """Return all n-grams of a text (of each wording); None if one is too short."""
        parts: list[tuple[Probe, Reading]] = []
        for question in (None,) if questions is None else questions:
            pieces = self.units.split(text_of(item, self.text, question))
            at = starts(len(pieces), self.n, self.n_starts)
            if not at:
                return None
            parts += [self._ngram(item, f"{variant}-{s}", pieces, s).parts[0] for s in at]
        return Query(tuple(parts), mean) if parts else None

    def _ngram(self, item: Item, variant: str, pieces: list[str], start: int) -> Query:
        prefix = self.units.glue.join(pieces[:start])
        true = pieces[start : start + self.n]

        def is_continued(reply: Response) -> bool | None:
            if not reply.text.strip():
                return None
            lead = true[0][: len(true[0]) - len(true[0].lstrip())]
            rest = lead + continuation(reply.text, prefix).strip()
            return self.units.split(rest)[: self.n] == true

        return open_question(
            item,
            variant,
            PROMPT.format(prefix=prefix),
            is_continued,
            max_new_tokens=self.max_new_tokens,
            images=None if self.with_image else (),
        )


def _n_whole(queries: Sequence[Query], answers: Answers) -> JsonDict:
    """Return the number of items whose n-grams are all completed."""
    return {"n_whole": list(Condition.read("", answers, queries).outcomes).count(1.0)}


def _with_loss(score: Score) -> Score:
    right = score.accuracies.get("n-grams", Count(k=0, n=0))
    own = right.k / right.n if right.n else 0.0
    loss = score.statistic / own if own and score.statistic is not None else None
    return score.model_copy(update={"details": score.details | {"relative_loss": loss}})

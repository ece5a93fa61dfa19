"""Guided prompting, missing option: naming an option that the model is not shown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Item, Response
from flipbench.models.chat.labels import Labeller, LabelTask, Rubric
from flipbench.prompting.prompts import LETTERS, PromptSettings, lettered
from flipbench.prompting.wrappers import answer_text

from ...protocol.detector import About, Answers, Helpers, cached_per_benchmark
from ...scoring.comparison import (
    ComparingDetector,
    Contrast,
    against_clean,
    mcnemar_score,
    threshold_score,
)
from ...scoring.conditions import Query, open_question
from ...scoring.text_match import fold, mentions, without_label

PROMPT = (
    "{question}\n{options}\nThe option after {last} is missing from this question. Answer with the"
    " text of the missing option only."
)
SAME = Rubric(
    "missing-option-v1",
    "You are given an option of a multiple-choice question, and the reply of a model that was asked"
    " for this option without seeing it. Say whether the reply means the same as the option. Other"
    " words for the same thing, an option letter, articles and letter case make no difference. A"
    " reply that is more general or more precise, or that names other things as well, is different."
    "\n\nOption: a red bus\nReply: D. The bus, which is red -> same\n"
    "Option: a red bus\nReply: a bus -> different",
    "Option: {}\nReply: {}",
    ("same", "different"),
)

ABOUT = About(
    name="missing_option",
    title="Missing option",
    paper="Yao et al., Data Contamination Can Cross Language Barriers, arXiv 2406.13236, its form"
    " of guided prompting (Golchin and Surdeanu, arXiv 2308.08493); as a detector for VLMs: Park"
    " et al., arXiv 2511.03774, table 12",
    variant="rules paper (any rise above the clean model), mcnemar (default)",
    deviates_from_paper="our wording of the judge's prompt, and replies that are an option word for"
    " word are not sent to it; without a judge (evaluate.judge) a rule compares words (the option's"
    " and no other option's); questions with two options are left out, since the second is easy to"
    " guess from the first",
    rules={"paper": True, "mcnemar": True},
    default_rule="mcnemar",
    needs=frozenset({"generate", "text_only"}),
    direction="the missing option is named more often than by the clean model",
    helpers=frozenset({"answer_judge"}),
    catches=("whole texts", "question only"),
    must_not_catch=("letters", "image-caption"),
    levels={"paper": 0.5},
    evidence="published, contested",
    caveat="above the clean model for 4 of 24 contaminated VLMs (arXiv 2511.03774, table 12);"
    " options that follow a pattern are completed unseen",
)


@dataclass
class MissingOption(ComparingDetector):
    """Gap = share of missing last options named - the clean model's share on the same items.

    Parameters
    ----------
    label : callable, optional
        A `flipbench.models.chat.labels.recorded_labels`. Without one, words decide.
    with_image : bool
        Whether the picture is shown; the published figures are for text only.
    """

    label: Labeller | None = None
    with_image: bool = False
    max_new_tokens: int = 24
    about = ABOUT

    def with_helpers(self, helpers: Helpers) -> MissingOption:
        """Return the detector with a judge."""
        return replace(self, label=helpers.label)

    def to_judge(self, benchmark: PairedBenchmark, answers: Answers) -> Iterator[LabelTask]:
        """Yield the replies that are no option word for word."""
        for item, query in self._queries(benchmark):
            reply, options = answers.to(query.probes[0]), item.options or ()
            if reply is not None and _by_rule(answer_text(reply.text), options) is None:
                yield _task(answer_text(reply.text), options)

    def design(self, benchmark: PairedBenchmark, prompt_settings: PromptSettings) -> list[Contrast]:
        """Return each question without its last option; ``prompt_settings`` is not used."""
        queries = self._queries(benchmark)
        contrast = against_clean(
            queries,
            "missing option",
            (partial(threshold_score, rule="paper"), mcnemar_score),
            "they have fewer than three options, or the last option equals another",
            describe=lambda _: {"compared_by": "judge" if self.label else "words"},
        )
        if self.label is None:
            return [contrast]
        return [
            replace(contrast, read=lambda answers: contrast.read(self._labelled(queries, answers)))
        ]

    @cached_per_benchmark
    def _queries(self, benchmark: PairedBenchmark) -> list[tuple[Item, Query]]:
        return [
            (item, self._query(item, item.options))
            for item in benchmark.originals
            if item.options is not None and _is_usable(item.options)
        ]

    def _labelled(self, queries: Sequence[tuple[Item, Query]], answers: Answers) -> Answers:
        """Return the answers without those that the judge has yet to label."""
        assert self.label is not None
        replies = {}
        for item, query in queries:
            reply, options = answers.to(query.probes[0]), item.options or ()
            if reply is not None:
                text = answer_text(reply.text)
                if _by_rule(text, options) is not None or self.label(_task(text, options)):
                    replies[reply.probe_id] = reply
        return replace(answers, responses=replies)

    def _query(self, item: Item, options: Sequence[str]) -> Query:
        *visible, missing_option = options

        def is_named(reply: Response) -> bool | None:
            text = answer_text(reply.text)
            if not text.strip():
                return None
            if self.label is None:
                return mentions(text.strip(), missing_option, visible)
            ruled = _by_rule(text, options)
            return self.label(_task(text, options)) == "same" if ruled is None else ruled

        prompt = PROMPT.format(
            question=item.question,
            options="\n".join(lettered(visible)),
            last=LETTERS[len(visible) - 1],
        )
        return open_question(
            item,
            "missing-option",
            prompt,
            is_named,
            max_new_tokens=self.max_new_tokens,
            images=None if self.with_image else (),
        )


def _task(reply: str, options: Sequence[str]) -> LabelTask:
    return LabelTask(SAME, (options[-1], reply.strip()))


def _by_rule(reply: str, options: Sequence[str]) -> bool | None:
    """Return False for an empty reply, or whether it is the last option if it is one; else None."""
    if not reply.strip():
        return False
    text = fold(without_label(reply))
    return text == fold(options[-1]) if text in map(fold, options) else None


def _is_usable(options: Sequence[str]) -> bool:
    *visible, missing_option = map(fold, options)
    return len(options) >= 3 and bool(missing_option) and missing_option not in visible

"""Guided prompting, missing option: naming an option that the model is not shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Item, Response
from flipbench.prompting.prompts import LETTERS, PromptSettings

from ...protocol.detector import About
from ...scoring.comparison import (
    ComparingDetector,
    Contrast,
    Settings,
    against_clean,
    mcnemar_score,
    threshold_score,
)
from ...scoring.conditions import Query, open_question
from ...scoring.text_match import fold, mentions

PROMPT = (
    "{question}\n{options}\nThe option after {last} is missing from this question. Answer with the"
    " text of the missing option only."
)
Same = Callable[[str, str, Sequence[str]], bool]

ABOUT = About(
    name="missing_option",
    title="Missing option",
    paper="Yao et al., Data Contamination Can Cross Language Barriers, arXiv 2406.13236, its form"
    " of guided prompting (Golchin and Surdeanu, arXiv 2308.08493); as a detector for VLMs: Park"
    " et al., arXiv 2511.03774, table 12",
    variant="rules paper (any rise above the clean model), mcnemar (default)",
    deviates_from_paper="a rule compares texts (same words, or the option's words and no other"
    " option's) where the authors ask a language model, and can be replaced by one; questions with"
    " two options are left out, since the second is easy to guess from the first",
    rules={"paper": True, "mcnemar": True},
    default_rule="mcnemar",
    needs=frozenset({"generate", "text_only"}),
    direction="the missing option is named more often than by the clean model",
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
    same : callable
        Maps a reply, the missing option and the options shown to whether the reply means the
        missing one; a judge model can be used here.
    with_image : bool
        Whether the picture is shown; the published figures are for text only.

    References
    ----------
    Yao et al., arXiv 2406.13236; Park et al., arXiv 2511.03774, table 12.
    Differs from the paper in how texts are compared, and in rule 'mcnemar'.
    """

    settings: Settings = field(default_factory=Settings)
    same: Same = mentions
    with_image: bool = False
    max_new_tokens: int = 24
    about: About = ABOUT

    def design(self, benchmark: PairedBenchmark, prompt_settings: PromptSettings) -> list[Contrast]:
        """Return each question without its last option; ``prompt_settings`` is not used."""
        queries = [
            (item, self._query(item, item.options))
            for item in benchmark.originals
            if item.options is not None and _is_usable(item.options)
        ]
        return [
            against_clean(
                queries,
                "missing option",
                (partial(threshold_score, rule="paper"), mcnemar_score),
                "they have fewer than three options, or the last option equals another",
            )
        ]

    def _query(self, item: Item, options: Sequence[str]) -> Query:
        shown = options[:-1]
        lines = [f"{letter}. {text}" for letter, text in zip(LETTERS, shown, strict=False)]

        def is_missing_option(reply: Response) -> bool | None:
            text = reply.text.strip()
            return self.same(text, options[-1], shown) if text else None

        return open_question(
            item,
            "missing-option",
            PROMPT.format(
                question=item.question, options="\n".join(lines), last=LETTERS[len(shown) - 1]
            ),
            is_missing_option,
            max_new_tokens=self.max_new_tokens,
            images=None if self.with_image else (),
        )


def _is_usable(options: Sequence[str]) -> bool:
    last = fold(options[-1])
    return len(options) >= 3 and bool(last) and last not in {fold(text) for text in options[:-1]}

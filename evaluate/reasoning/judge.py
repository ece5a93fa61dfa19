"""Split rationales into steps, and judge steps and case discussions, with retries."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import ClassVar

from pydantic import BaseModel, Field

from flipbench.core.images import ImageStore
from flipbench.core.records import JsonDict, Record
from flipbench.core.run import Run
from flipbench.core.stage import StageOptions, StageReport, run_stage
from flipbench.models.chat.messages import Chat, ChatReply, ChatRequest, ask_each
from flipbench.models.chat.prompt_files import PromptFile, load_prompt
from flipbench.prompting.quoting import quoted, single_line

from .cases import SECTIONS, Case
from .replies import (
    Reading,
    RubricReply,
    SentencesReply,
    SentenceVerdict,
    StepsReply,
    StepVerdict,
    T,
    VerdictsReply,
    as_reading,
    read_rubric,
    read_steps,
    read_verdicts,
)

PROMPTS = Path(__file__).parent / "prompts"
PLACEHOLDERS = (
    "context", "rationale", "steps", "sentences", "numbers", "discussion",
)  # fmt: skip
_PROMPTS = ("split-steps", "judge-steps", "judge-sentences", "judge-discussion")
NO_RATIONALE, NO_REPLY = "the rationale is empty", "no reply"
N_ATTEMPTS = 3
_AGAIN = "\n\nThis is attempt {}. Reply with the JSON object only."
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])\s*")


class ReasoningReply(Record):
    """A judge's reply to one question about a case, as it came."""

    kind: ClassVar[str] = "reasoning_replies"
    made_of: ClassVar[tuple[str, ...]] = ("prompt", "question", "judge", "settings")

    prompt: str = Field(description="the prompt's name, version and hash")
    question: str
    judge: str
    settings: JsonDict = Field(default_factory=dict)
    text: str
    usage: JsonDict = Field(default_factory=dict)


@dataclass(frozen=True)
class Question:
    """One question to the judge about a case."""

    case: Case
    prompt: PromptFile
    schema: type[BaseModel]
    text: str

    @property
    def request(self) -> ChatRequest:
        """The question as a chat request."""
        return ChatRequest(
            self.prompt.instruction, self.text, schema=self.schema, item_id=self.case.key
        )


class ReasoningStage:
    """A stage: a chat model answers questions about cases; each question is asked once."""

    record: type[Record] = ReasoningReply
    name = "judge reasoning"

    def __init__(self, chat: Chat, images: ImageStore) -> None:
        self.chat, self.images = chat, images

    def id_of(self, question: Question) -> str:
        """Return the id of the reply."""
        return ReasoningReply.id_for(**self._made_of(question))

    def _made_of(self, question: Question) -> JsonDict:
        return {
            "prompt": question.prompt.id,
            "question": question.text,
            "judge": self.chat.name,
            "settings": dict(self.chat.settings),
        }

    def subject(self, question: Question) -> str:
        """Return prompt and case."""
        return f"{question.prompt.name} of {question.case.key}"

    def __call__(self, questions: Sequence[Question]) -> Sequence[Record | Exception]:
        """Ask a batch."""

        def read(question: Question, reply: ChatReply) -> ReasoningReply:
            made_of = self._made_of(question)
            return ReasoningReply(**made_of, text=reply.text, usage=reply.usage)

        return ask_each(self.chat, questions, self.images, lambda q: q.request, read)


@dataclass
class JudgedCase:
    """What the judge says about a case.

    Attributes
    ----------
    steps : tuple of str
        The rationale's steps; empty if it was not split.
    verdicts : dict of int to StepVerdict
        By number of the step, from 1; steps without a valid verdict are missing.
    sentences : dict of int to (str, str)
        Section and text of the discussion's sentences, by number.
    problems : list of str
        Why something is missing, once for each rationale, step, sentence or rubric.
    """

    case: Case
    steps: tuple[str, ...] = ()
    verdicts: dict[int, StepVerdict] = field(default_factory=dict)
    sentences: dict[int, tuple[str, str]] = field(default_factory=dict)
    sentence_verdicts: dict[int, SentenceVerdict] = field(default_factory=dict)
    rubric: RubricReply | None = None
    problems: list[str] = field(default_factory=list)

    @property
    def by_step(self) -> list[StepVerdict | None]:
        """The verdict on each step, None if it is missing."""
        return [self.verdicts.get(number) for number in range(1, len(self.steps) + 1)]


class ReasoningJudge:
    """Judge cases by a chat model.

    What is missing in a reply, or cannot be read, is asked again, up to ``n_attempts`` times in
    all; then it stays missing, and never counts as wrong.

    Parameters
    ----------
    chat : Chat
        Behind a server, through its Batch API, or on this machine.
    run : Run
        Where the replies are stored; the same questions are not asked again.
    n_attempts : int
    batch_size : int, optional
        Questions between two writes; by default all of them, as a Batch API needs.

    References
    ----------
    Yao et al., MedThinkVQA, section 4 and appendices H, K and L. Differs from the paper in the
    wording of the prompts, which define what is critical and the types of error; in numbered
    verdicts; and in missing verdicts, which its code counts as wrong and not critical.
    """

    def __init__(
        self,
        chat: Chat,
        run: Run,
        *,
        n_attempts: int = N_ATTEMPTS,
        batch_size: int | None = None,
        progress: bool = True,
    ) -> None:
        self.stage, self.run, self.n_attempts = ReasoningStage(chat, run.images), run, n_attempts
        earlier = {_prompt(name).id for name in _PROMPTS}
        # texts are quoted, unless replies to the earlier prompts are there already
        self.quotes = not any(r.prompt in earlier for r in run.read(ReasoningReply))
        self.batch_size, self.progress = batch_size, progress
        self.reports: list[StageReport] = []

    def __call__(self, cases: Sequence[Case]) -> list[JudgedCase]:
        """Return the cases with everything that the judge's replies say about them."""
        results, quotes = [JudgedCase(case) for case in cases], self.quotes
        for case in results:
            sections = case.case.case_discussion
            lacking = [name for name in SECTIONS if not sections.get(name)]
            if not case.case.rationale and not sections:
                case.problems.append(NO_RATIONALE)
            elif sections and lacking:
                case.problems.append(f"discussion: {', '.join(lacking)} is missing")
            elif sections:
                case.sentences = dict(enumerate(sentences_of(sections), 1))
        explained = [(case, [0]) for case in results if case.case.rationale]
        for case, steps in self._collect(
            "steps",
            explained,
            lambda case, _, attempt: split_question(case.case, attempt, quotes=quotes),
            lambda reply, _: as_reading(read_steps(reply)),
        ):
            case.steps = steps.get(0, ())
        for case, verdicts in self._collect(
            "step",
            [(case, range(1, len(case.steps) + 1)) for case in results],
            lambda case, numbers, attempt: steps_question(
                case.case, dict(enumerate(case.steps, 1)), numbers, attempt, quotes=quotes
            ),
            lambda reply, numbers: read_verdicts(reply, numbers, StepVerdict),
        ):
            case.verdicts = verdicts
        for case, sentence_verdicts in self._collect(
            "sentence",
            [(case, case.sentences) for case in results],
            lambda case, numbers, attempt: sentences_question(
                case.case,
                {number: text for number, (_, text) in case.sentences.items()},
                numbers,
                attempt,
                quotes=quotes,
            ),
            lambda reply, numbers: read_verdicts(reply, numbers, SentenceVerdict),
        ):
            case.sentence_verdicts = sentence_verdicts
        for case, rubrics in self._collect(
            "rubric",
            [(case, [0]) for case in results if case.sentences],
            lambda case, _, attempt: rubric_question(case.case, attempt, quotes=quotes),
            lambda reply, _: as_reading(read_rubric(reply)),
        ):
            case.rubric = rubrics.get(0)
        return results

    def _collect(
        self,
        noun: str,
        numbers_by_case: Sequence[tuple[JudgedCase, Iterable[int]]],
        question: Callable[[JudgedCase, Sequence[int], int], Question],
        read_reply: Callable[[str, Sequence[int]], Reading[T]],
    ) -> Iterator[tuple[JudgedCase, dict[int, T]]]:
        """Yield what replies say by number; numbers without a valid reply are asked again."""
        values: list[dict[int, T]] = [{} for _ in numbers_by_case]
        problems = [dict.fromkeys(numbers, NO_REPLY) for _, numbers in numbers_by_case]
        for attempt in range(1, self.n_attempts + 1):
            places = [at for at, reasons in enumerate(problems) if reasons]
            questions = [
                question(numbers_by_case[at][0], [*problems[at]], attempt) for at in places
            ]
            for at, reply in zip(places, self._ask(questions), strict=True):
                if reply is not None:
                    reading = read_reply(reply, [*problems[at]])
                    values[at].update(reading.values)
                    problems[at] = reading.problems
        for (case, _), by_number, reasons in zip(numbers_by_case, values, problems, strict=True):
            case.problems += [f"{noun}: {reason}" for reason in reasons.values()]
            yield case, by_number

    def _ask(self, questions: Sequence[Question]) -> list[str | None]:
        """Return the replies in order; None for a question that failed."""
        if not questions:
            return []
        options = StageOptions(batch_size=self.batch_size or len(questions), progress=self.progress)
        self.reports.append(run_stage(self.stage, questions, self.run, options))
        ids = {self.stage.id_of(question) for question in questions}
        texts = {r.id: r.text for r in self.run.read(ReasoningReply) if r.id in ids}
        return [texts.get(self.stage.id_of(question)) for question in questions]


def split_question(case: Case, attempt: int = 1, *, quotes: bool = True) -> Question:
    """Return the question for a rationale's steps; what the judge is not to use is left out."""
    values = {"rationale": quoted(case.rationale) if quotes else case.rationale}
    return _question(case, "split-steps", StepsReply, values, attempt, quotes, with_truth=False)


def steps_question(
    case: Case,
    steps: Mapping[int, str],
    numbers: Sequence[int],
    attempt: int = 1,
    *,
    quotes: bool = True,
) -> Question:
    """Return the question for the verdicts on the steps with these ``numbers``."""
    values = {"steps": _numbered(steps, quotes), "numbers": ", ".join(map(str, numbers))}
    return _question(case, "judge-steps", VerdictsReply, values, attempt, quotes)


def sentences_question(
    case: Case,
    sentences: Mapping[int, str],
    numbers: Sequence[int],
    attempt: int = 1,
    *,
    quotes: bool = True,
) -> Question:
    """Return the question for the verdicts on the sentences with these ``numbers``."""
    values = {"sentences": _numbered(sentences, quotes), "numbers": ", ".join(map(str, numbers))}
    return _question(case, "judge-sentences", SentencesReply, values, attempt, quotes)


def rubric_question(case: Case, attempt: int = 1, *, quotes: bool = True) -> Question:
    """Return the question for a discussion's points."""
    sections = {name: case.case_discussion[name] for name in SECTIONS}
    parts = [f"{k}:\n{quoted(x)}" if quotes else f"{k}: {x}" for k, x in sections.items()]
    values = {"discussion": "\n\n".join(parts)}
    return _question(case, "judge-discussion", RubricReply, values, attempt, quotes)


def sentences_of(discussion: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return section and text of each sentence of a discussion, section by section.

    >>> sentences_of({"Outcome": "She recovered. No relapse."})
    [('Outcome', 'She recovered.'), ('Outcome', 'No relapse.')]
    >>> sentences_of({"Outcome": "患者康复。没有复发。"})
    [('Outcome', '患者康复。'), ('Outcome', '没有复发。')]
    """
    return [
        (name, sentence)
        for name in SECTIONS
        for sentence in _SENTENCE_END.split(discussion.get(name, "").strip())
        if sentence
    ]


def _question(
    case: Case,
    name: str,
    schema: type[BaseModel],
    values: Mapping[str, str],
    attempt: int,
    quotes: bool,
    *,
    with_truth: bool = True,
) -> Question:
    prompt = _prompt(name)
    if quotes:  # the values are quoted already, field by field
        prompt = replace(prompt.quoting(), quotes=False)
    retry_note = _AGAIN.format(attempt) if attempt > 1 else ""
    context = case.context(with_truth=with_truth, quotes=quotes)
    text = prompt.filled({**values, "context": context}) + retry_note
    return Question(case, prompt, schema, text)


@cache
def _prompt(name: str) -> PromptFile:
    return load_prompt(name, PROMPTS, placeholders=PLACEHOLDERS)


def _numbered(texts: Mapping[int, str], quotes: bool) -> str:
    if quotes:
        return "\n".join(quoted(f"{n}. {single_line(text)}") for n, text in texts.items())
    return "\n".join(f"{number}. {text}" for number, text in texts.items())

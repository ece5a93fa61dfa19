"""A judge model: whether the new answer, and no other, follows from the edited image."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from flipbench.config.chat import APISpec
from flipbench.config.kinds import Context
from flipbench.config.local_models import LocalSpec
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.core.records import JsonDict, Value, content_id
from flipbench.models.chat.batch_api import BatchAPI, server_chat
from flipbench.models.chat.messages import Chat, ChatReply, ChatRequest, ask_each
from flipbench.models.chat.prompt_files import PromptFile, load_prompt
from flipbench.models.protocols import Decision, JudgeDecision, release
from flipbench.prompting.parsing import parse_choice
from flipbench.prompting.prompts import LETTERS

PROMPTS = Path(__file__).parent / "prompts"
_ANSWER_LINE = re.compile(r"^[\s>*_#`-]*answer[\s*_`]*[:\uff1a](.*)$", re.IGNORECASE)
_WRAPPING = " \t*_`\"'.!()[]<>"
_WORDS: dict[str, Decision] = {"KEEP": "keep", "REJECT": "reject"}
_MAX_REASON = 2000


class VerdictReply(BaseModel):
    """What a server that takes schemas holds the judge to."""

    # title and docstring are part of the JSON schema, and so of the ids of Batch API requests
    model_config = ConfigDict(extra="forbid", title="JudgeReply")

    reasoning: str
    answer: Literal["KEEP", "REJECT"]


class BlindReply(BaseModel):
    """The same for a blind judge: a letter, or UNCLEAR."""

    model_config = ConfigDict(extra="forbid")

    reasoning: str
    answer: str


class Task(Value):
    """What a judging chat model is asked."""

    prompt: str | None = Field(
        default=None,
        description="default: judge-v2, or judge-blind-v2 if blind; in a run that was judged by"
        " version 1, that",
    )
    blind: bool = Field(default=False, description="hide the new answer from the judge")

    @property
    def prompt_file(self) -> PromptFile:
        """The loaded judge prompt."""
        return judge_prompt(self.prompt, self.blind)

    @property
    def earlier(self) -> Self:
        """The same task as the first version of flipbench's own prompt puts it."""
        return self.model_copy(update={"prompt": "judge-blind-v1" if self.blind else "judge-v1"})


class APIJudgeSpec(APISpec, Task):
    """A judge model behind an OpenAI-compatible server."""

    def build(self, context: Context) -> APIJudge:
        """Return the judge; nothing is sent before its first call."""
        chat = server_chat(self.chat, context.folder, batch=self.batch)
        return APIJudge(chat, self.prompt, blind=self.blind, structured=self.chat.structured)


class LocalJudgeSpec(LocalSpec, Task):
    """A judge model on this machine."""

    def build(self, context: Context) -> APIJudge:
        """Return the judge; weights are loaded on its first call."""
        from flipbench.models.vlm.local_chat import local_chat

        chat = local_chat(self.chat, context.seed)
        return APIJudge(chat, self.prompt, blind=self.blind, structured=False)


class APIJudge:
    """Have a chat model judge the edited image.

    By default, the model sees the new answer and replies KEEP or REJECT. A ``blind`` judge answers
    the question, and keeps the pair if and only if it chooses the new answer. Unclear replies are
    "unsure". ``prompt`` is ``judge-v2``, ``judge-blind-v2``, one of version 1, or your own ``.txt``
    file. If ``structured``, a schema for the reply is sent to servers that support schemas.

    References
    ----------
    Park et al., *Contamination Detection for VLMs Using Multi-Modal Semantic Perturbation*,
    ICLR 2026, arXiv 2511.03774, section 4 and its appendix on prompts (o3 as the judge). Differs
    from the paper in the wording of the prompt, in "unsure" for replies that contradict themselves
    (there, the last line counts and anything else is a rejection), and in the blind mode, which is
    ours.
    """

    rater_kind: Literal["judge", "rule", "oracle"] = "judge"

    def __init__(
        self,
        chat: Chat,
        prompt: str | Path | None = None,
        *,
        blind: bool = False,
        structured: bool = True,
    ) -> None:
        self.chat, self.blind = chat, blind
        self.prompt_file = judge_prompt(prompt, blind)
        self._schema: type[BaseModel] | None = None
        if structured:
            self._schema = BlindReply if blind else VerdictReply
        made_of = content_id(self.prompt_file.sha256, chat.settings, structured, blind)
        prompt_name = f"{self.prompt_file.name}-v{self.prompt_file.version}"
        self.name = f"{chat.name} {prompt_name} {made_of[:8]}"

    def __call__(
        self, candidates: Sequence[Candidate], images: ImageStore
    ) -> list[JudgeDecision | Exception]:
        """Judge a batch, in order.

        A reply that cannot be read is asked for once more, with what is wrong with it; not in the
        Batch API, where that would take another day.
        """
        readings = ask_each(self.chat, candidates, images, self._request, self._read)
        decisions = [r.decision if isinstance(r, _Reading) else r for r in readings]
        again = {i: r for i, r in enumerate(readings) if isinstance(r, _Reading) and r.problem}
        if not again or isinstance(self.chat, BatchAPI):
            return decisions
        tasks = [(candidates[index], reading.problem) for index, reading in again.items()]
        replies = ask_each(self.chat, tasks, images, self._second_request, self._read_second)
        for (index, reading), second in zip(again.items(), replies, strict=True):
            if isinstance(second, _Reading):
                usage = _total(reading.decision.usage, second.decision.usage)
                better = reading if second.problem else second
                decisions[index] = replace(better.decision, usage=usage)
        return decisions

    def release(self) -> None:
        """Free a local model's weights."""
        release(self.chat)

    def _request(self, candidate: Candidate) -> ChatRequest:
        request = self.prompt_file.request(candidate, candidate.perturbed_images)
        return replace(request, schema=self._schema)

    def _second_request(self, task: tuple[Candidate, str]) -> ChatRequest:
        candidate, problem = task
        request = self._request(candidate)
        words = "with a letter of the options, or UNCLEAR" if self.blind else "KEEP or REJECT"
        note = (
            f"A reply of yours could not be read: {problem}. End your reply with one line that"
            f" reads 'Answer: …', {words}, and write nothing after it."
        )
        return replace(request, text=f"{request.text}\n\n{note}")

    def _read_second(self, task: tuple[Candidate, str], reply: ChatReply) -> _Reading:
        return self._read(task[0], reply)

    def _read(self, candidate: Candidate, reply: ChatReply) -> _Reading:
        decision, problem = self._decide(candidate, reply)
        return _Reading(replace(decision, usage=reply.usage), problem)

    def _decide(self, candidate: Candidate, reply: ChatReply) -> tuple[JudgeDecision, str]:
        """Return the decision, and why a reply cannot be read."""
        structured = reply.parsed
        if isinstance(structured, VerdictReply):
            reason = structured.reasoning[-_MAX_REASON:]
            return JudgeDecision(_WORDS[structured.answer], reason), ""
        if isinstance(structured, BlindReply):
            answer = structured.answer.strip(_WRAPPING)
            return _blind_decision(candidate, answer, structured.reasoning)
        if self.blind:
            answer, _, problem = _last_answer(reply.text)
            if problem:
                return JudgeDecision("unsure", _reason(problem, reply.text)), problem
            return _blind_decision(candidate, answer, reply.text)
        decision, problem = read_verdict(reply.text)
        return JudgeDecision(decision, _reason(problem, reply.text)), problem


@dataclass(frozen=True)
class _Reading:
    """A decision, and why the reply cannot be read; empty if it can."""

    decision: JudgeDecision
    problem: str


def _total(usage: JsonDict, more: JsonDict) -> JsonDict:
    """Return the sums of two replies' numbers; other values are the last reply's."""
    total = usage | more
    for name, value in usage.items():
        if _is_number(value) and _is_number(more.get(name)):
            total[name] = value + more[name]
    return total


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def judge_prompt(prompt: str | Path | None, blind: bool) -> PromptFile:
    """Load a judge's prompt; a blind one must not contain the answers."""
    return load_prompt(
        prompt or ("judge-blind-v2" if blind else "judge-v2"),
        PROMPTS,
        needs=("question", "options") if blind else ("question", "new_answer"),
        hides=("old_answer", "new_answer") if blind else (),
    )


def read_verdict(text: str) -> tuple[Decision, str]:
    r"""Return the decision in a judge's reply, and what makes it unclear.

    The last ``Answer:`` line counts. The decision is "unsure" if there is no such line, if it is
    not exactly KEEP or REJECT, if the line before is a different answer, or if either word follows
    later.

    >>> read_verdict("It could be 5. Answer: REJECT?\nNo, it is 4.\n**Answer: KEEP**")
    ('keep', '')
    """
    word, remainder, problem = _last_answer(text)
    if problem:
        return "unsure", problem
    if word.upper() not in _WORDS:
        return "unsure", "its last 'Answer:' line is not exactly KEEP or REJECT"
    if any(re.search(rf"\b{word_after}\b", remainder.upper()) for word_after in _WORDS):
        return "unsure", "it goes on about its decision after its last 'Answer:' line"
    return _WORDS[word.upper()], ""


def _last_answer(text: str) -> tuple[str, str, str]:
    """Return the answer on the last ``Answer:`` line, the text after it, and any problem."""
    lines = [line for line in text.splitlines() if line.strip()]
    answers = [match and match[1].strip(_WRAPPING) for match in map(_ANSWER_LINE.match, lines)]
    last_row = next((i for i in reversed(range(len(answers))) if answers[i] is not None), None)
    if last_row is None:
        return "", "", "the reply has no 'Answer:' line"
    word = str(answers[last_row])
    for earlier_answer in reversed(answers[:last_row]):
        if earlier_answer is None:
            break
        if earlier_answer.upper() != word.upper():
            return "", "", "its last lines contradict each other"
    return word, "\n".join(lines[last_row + 1 :]), ""


def _blind_decision(candidate: Candidate, answer: str, reasoning: str) -> tuple[JudgeDecision, str]:
    item, flip = candidate.item, candidate.flip
    if flip is None:
        return JudgeDecision("unsure", "there is no new answer to compare with", answer), ""
    if answer.upper() == "UNCLEAR":
        reason = _reason("the judge found no single answer", reasoning)
        return JudgeDecision("reject", reason, "UNCLEAR"), ""
    if item.options is None:
        if answer.casefold() == flip.new_text.casefold().strip():
            return JudgeDecision("keep", _reason("", reasoning), answer), ""
        problem = f"a free-form answer, {answer!r}: a person must compare it"
        return JudgeDecision("unsure", _reason(problem, reasoning), answer), ""
    choice = parse_choice(answer, item.options)
    if choice < 0:
        problem = "the reply names no one option"
        return JudgeDecision("unsure", _reason(problem, reasoning), answer), problem
    chosen_text = item.options[choice]
    if choice == flip.new_answer:
        return JudgeDecision("keep", _reason("", reasoning), chosen_text), ""
    problem = f"not told the answer, the judge chose {LETTERS[choice]} ({chosen_text})"
    return JudgeDecision("reject", _reason(problem, reasoning), chosen_text), ""


def _reason(problem: str, text: str) -> str:
    return "; ".join(part for part in (problem, text.strip()[-_MAX_REASON:]) if part)

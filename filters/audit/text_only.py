"""Items that models solve without the image, and text-only accuracy after filtering."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel
from scipy import stats

from flipbench.config.audit import AuditSettings
from flipbench.core.images import ImageStore
from flipbench.core.records import Item, Probe, Record, Response, content_id
from flipbench.core.run import Run
from flipbench.core.stage import StageOptions, StageReport, run_stage
from flipbench.models.chat.messages import Chat, ChatReply, ChatRequest, ask_each
from flipbench.models.engine import answers_of, ask
from flipbench.models.protocols import VLM, Capability
from flipbench.prompting.parsing import parse_choice
from flipbench.prompting.prompts import PromptSettings

from .finding import (
    AuditFinding,
    NamedRate,
    chances_of,
    flag,
    multiple_choice,
    n_items,
    not_run,
    rate,
)

TITLE = "Items solvable from text alone"
INSTRUCTION = (
    "You are given a multiple-choice question about a picture. The picture is withheld. Choose the"
    " option that is most likely right all the same; never refuse."
)
_BATCH_SIZE = 64

TextModel = VLM | Chat
"""A vision-language model, whose repetitions differ only in the options' order; or a chat model: if
its temperature is above 0, each repetition is a new sample."""

Outcomes = NDArray[np.float64]
"""By item and repetition: 1 correct, 0 not, NaN no answer."""


def text_solvable(
    items: Sequence[Item],
    settings: AuditSettings,
    run: Run,
    models: Sequence[TextModel] = (),
    held_out: Sequence[TextModel] = (),
    *,
    progress: bool = True,
) -> tuple[AuditFinding, list[StageReport]]:
    """Ask M models R times without images, flag the solved items, and test held-out models.

    Of two rules, ``settings.rule`` drops items; the other is reported, too.

    * ``all_correct``: at least ``min_models`` models are correct in every run.
    * ``posterior``: the posterior mean of the solve rate, (correct + 1)/(answers + 2), is above
      ``max_solve_rate``.

    Missing answers count as not correct; items with missing answers are counted.

    References
    ----------
    MedThinkVQA, section 3.3 and appendices (3 models x 3 runs, dropped if 9 of 9 are correct; its
    script drops items after a single correct answer, so the rule is explicit here). Differs from
    the paper in rotating the options in each run, so that a model which always answers B solves
    nothing; in the second rule; and in held-out models, since selection biases the filtering
    models' accuracy after filtering downwards.
    """
    closed = multiple_choice(items)
    if not models or not closed:
        problem = "No text-only model was given." if closed else "No item has options."
        remedy = "Give two or three models to filter with and, ideally, another one held out."
        return not_run("text_solvable", TITLE, problem, remedy), []
    reports: list[StageReport] = []

    def outcomes_of(model: TextModel) -> Outcomes:
        outcomes, model_reports = _ask_without_images(
            closed, model, run, settings.n_runs, progress=progress
        )
        reports.extend(model_reports)
        return outcomes

    filtering = np.array([outcomes_of(model) for model in models])
    solved = {
        "all_correct": all_correct(filtering, settings.min_models),
        "posterior": solve_rate(filtering) > settings.max_solve_rate,
    }
    drop = solved[settings.rule]
    n, n_drop = len(closed), int(drop.sum())
    everything = np.ones(n, bool)
    rates = [
        _accuracy(f"{model.name}, without images", closed, outcomes, everything)
        for model, outcomes in zip(models, filtering, strict=True)
    ]
    rates += [
        rate(f"{model.name}, correct in every run", int((outcomes == 1).all(axis=1).sum()), n)
        for model, outcomes in zip(models, filtering, strict=True)
    ]
    rates += [rate(f"solved, rule {rule}", int(flags.sum()), n) for rule, flags in solved.items()]
    for model in held_out:
        name, outcomes = f"{model.name} (held out)", outcomes_of(model)
        rates.append(_accuracy(f"{name}, all items", closed, outcomes, everything))
        rates.append(_accuracy(f"{name}, items kept", closed, outcomes, ~drop))
        dropped_accuracy = _accuracy(f"{name}, items dropped", closed, outcomes, drop)
        rates.append(dropped_accuracy.model_copy(update={"p_value": None}))
    n_incomplete = int(np.isnan(filtering).any(axis=(0, 2)).sum())
    n_expected = _expected_by_guessing(closed, settings, len(models))
    limits = "Models used for filtering look worse afterwards than others: judge the kept items by"
    limits += " held-out models" + ("." if held_out else ", of which none was given.")
    if n_incomplete:
        limits += (
            f" Answers are missing for {n_items(n_incomplete)}; missing answers count as not"
            " correct."
        )
    finding = AuditFinding(
        check="text_solvable",
        title=TITLE,
        status="defect" if n_drop else "ok",
        sentence=f"{n_drop} of {n_items(n)} are solved without the image (rule"
        f" {settings.rule}, {len(models)} model{'s' * (len(models) > 1)} x {settings.n_runs} runs);"
        f" guessing alone would solve {n_expected:.2g}.",
        todo="Leave out the items flagged here, or change them so that the image is needed. If a"
        " model is above chance on the kept items, find out what it knows or guesses from.",
        limits=limits,
        rates=tuple(rates),
        items=tuple(
            flag(
                closed[i],
                "drop",
                f"correct without the image in {np.nansum(filtering[:, i]):.0f} of"
                f" {np.isfinite(filtering[:, i]).sum()} answers",
            )
            for i in np.flatnonzero(drop)
        ),
        details={
            "rule": settings.rule,
            "models": [model.name for model in models],
            "held_out": [model.name for model in held_out],
            "expected_by_guessing": n_expected,
            "n_incomplete": n_incomplete,
            "n_left_out": len(items) - n,
        },
    )
    return finding, reports


def all_correct(outcomes: Outcomes, min_models: int | None = None) -> NDArray[np.bool_]:
    """Return whether at least ``min_models`` (default: all) models were correct in every run.

    ``outcomes`` has shape (M, N, R), the result (N,).
    """
    n_needed = len(outcomes) if min_models is None else min_models
    return np.asarray((outcomes == 1).all(axis=2).sum(axis=0) >= n_needed)


def solve_rate(outcomes: Outcomes) -> NDArray[np.float64]:
    """Return the posterior means of the items' solve rates under a uniform prior.

    ``outcomes`` has shape (M, N, R), the result (N,). All answers have equal weight: 9 of 9 give
    10/11, one model's 3 of 3 give 4/5.

    >>> solve_rate(np.ones((1, 1, 3)))
    array([0.8])
    """
    n_answers = np.isfinite(outcomes).sum(axis=(0, 2))
    return np.asarray((np.nansum(outcomes, axis=(0, 2)) + 1) / (n_answers + 2))


def _accuracy(
    name: str, items: Sequence[Item], outcomes: Outcomes, mask: NDArray[np.bool_]
) -> NamedRate:
    """Return the accuracy of the first run over the items of ``mask`` that it answered.

    Further runs repeat the same items, so they are no independent evidence.
    """
    answered_rows = np.flatnonzero(mask & np.isfinite(outcomes[:, 0]))
    n_correct = int(outcomes[answered_rows, 0].sum())
    return rate(
        name, n_correct, len(answered_rows), chances_of([items[i] for i in answered_rows.tolist()])
    )


def _expected_by_guessing(items: Sequence[Item], settings: AuditSettings, n_models: int) -> float:
    """Return the expected number of solved items if each answer is correct with chance 1/k."""
    chances = np.array(chances_of(items))
    if settings.rule == "all_correct":
        n_needed = settings.min_models or n_models
        solved = stats.binom.sf(n_needed - 1, n_models, chances**settings.n_runs)
    else:
        n = n_models * settings.n_runs
        solved = stats.binom.sf(settings.max_solve_rate * (n + 2) - 1 + 1e-9, n, chances)
    return float(np.sum(solved))


# --- asking without images ------------------------------------------------------------------------


def _ask_without_images(
    items: Sequence[Item], model: TextModel, run: Run, n_runs: int, *, progress: bool
) -> tuple[Outcomes, list[StageReport]]:
    """Ask a model every item several times; repetition r rotates the options by r places."""
    options = StageOptions(batch_size=_BATCH_SIZE, progress=progress)
    outcomes = np.full((len(items), n_runs), np.nan)
    reports = []
    settings = letter_settings(getattr(model, "can", ()))
    for number in range(n_runs):
        probes, golds = zip(*(text_only_probe(i, settings, number) for i in items), strict=True)
        answerer: Any = model
        if hasattr(model, "can"):
            reports.append(ask(probes, answerer, run, run.images, options))
        else:
            answerer = ChatStage(model, run.images, INSTRUCTION, number=number, read=_read_letter)
            reports.append(run_stage(answerer, probes, run, options))
        answers = answers_of(model.name, answerer.fingerprint, run)
        for row, (probe, gold) in enumerate(zip(probes, golds, strict=True)):
            if (response := answers.to(probe)) is not None:
                outcomes[row, number] = response.choice == gold
    return outcomes, reports


def _read_letter(text: str, probe: Probe) -> int:
    return parse_choice(text, probe.options)


def letter_settings(can: Collection[Capability]) -> PromptSettings:
    """Return settings that compare the letters if a model supports it, else generate."""
    return PromptSettings(ask="choose" if "choose" in can else "generate")


def text_only_probe(item: Item, prompt_settings: PromptSettings, number: int) -> tuple[Probe, int]:
    """Return the probe of repetition ``number`` and the slot of its correct option.

    Raises
    ------
    ValueError
        If the item has no options.
    """
    if item.options is None or item.answer is None:
        raise ValueError(f"{item.benchmark} {item.name} has no options")
    k = len(item.options)
    rotated = [item.options[(slot + number) % k] for slot in range(k)]
    probe = prompt_settings.probe(item, f"text-only-{number}", options=rotated, images=())
    return probe, (item.answer - number) % k


class ChatStage:
    """Ask a chat model probes without images; replies become stored responses.

    Parameters
    ----------
    images : ImageStore
        Passed on to the chat model; no image is shown.
    number : int
        Number of the repetition; each has its own responses.
    schema : type of pydantic model, optional
        Schema of the reply.
    read : callable, optional
        Returns the chosen option from (reply, probe), -1 for none.
    """

    record: type[Record] = Response

    def __init__(
        self,
        chat: Chat,
        images: ImageStore,
        instruction: str,
        *,
        number: int = 0,
        schema: type[BaseModel] | None = None,
        read: Callable[[str, Probe], int] | None = None,
    ) -> None:
        self.chat, self.images, self.instruction = chat, images, instruction
        self.number, self.schema, self.read = number, schema, read
        self.name = f"ask {chat.name}"
        form = schema.model_json_schema() if schema else None
        self.fingerprint = content_id("chat", chat.name, chat.settings, instruction, form, number)

    def id_of(self, probe: Probe) -> str:
        """Return the id of the response."""
        return Response.id_for(probe_id=probe.id, model_fingerprint=self.fingerprint)

    def subject(self, probe: Probe) -> str:
        """Return variant and item of the probe."""
        return f"{probe.variant} of item {probe.item_id}"

    def __call__(self, probes: Sequence[Probe]) -> list[Response | Exception]:
        """Ask a batch, in order."""
        return ask_each(self.chat, probes, self.images, self._request, self._response)

    def _request(self, probe: Probe) -> ChatRequest:
        return ChatRequest(
            instruction=self.instruction,
            text=probe.prompt,
            schema=self.schema,
            item_id=f"{probe.item_id} {self.number}",  # seeds a local model's sampling
        )

    def _response(self, probe: Probe, reply: ChatReply) -> Response:
        return Response(
            probe_id=probe.id,
            model_fingerprint=self.fingerprint,
            model=self.chat.name,
            text=reply.text,
            choice=self.read(reply.text, probe) if self.read else -1,
        )

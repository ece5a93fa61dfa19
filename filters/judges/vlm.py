"""A judge that is asked as models under test are: it answers the question, and is told nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, Self

from pydantic import Field, model_validator

from flipbench.config.kinds import Context
from flipbench.config.local_models import ModelConfig
from flipbench.core.errors import DataError
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.core.records import Probe, Response, Value, content_id
from flipbench.models.protocols import VLM, JudgeDecision
from flipbench.prompting.prompts import LETTERS, PromptSettings


class VLMJudgeSpec(Value):
    """A model on this machine that answers the question, not told the new answer."""

    kind: Literal["vlm"] = "vlm"
    model: ModelConfig
    prompt: PromptSettings = PromptSettings()
    sure: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="'unsure' where the answer has less of the options' probability; only with"
        " 'ask: choose'",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.sure and self.prompt.ask != "choose":
            raise ValueError("sure needs 'ask: choose': what is generated has no probability")
        return self

    def build(self, context: Context) -> VLMJudge:
        """Return the judge; weights are read when it is first asked."""
        from flipbench.models.vlm.on_demand import on_demand

        return VLMJudge(on_demand(self.model), self.prompt, self.sure)


class VLMJudge:
    """Keep a pair if a model answers the question on the edited image with the new answer.

    It needs no model that follows a judge's instructions, only one that can be evaluated. It never
    says that a picture is ambiguous: of two options that both fit it chooses one.

    Parameters
    ----------
    vlm : VLM
        It should be none of the models that are evaluated later, for which it would select the
        pairs they can do.
    prompt_settings : PromptSettings, optional
        How the question is put.
    sure : float
        "unsure" where the chosen option has less than this of all options' probability.

    References
    ----------
    The blind criterion is ours, not of Park et al., arXiv 2511.03774, whose judge is told the new
    answer (`flipbench.filters.judges.api`).
    """

    rater_kind: Literal["judge", "rule", "oracle"] = "judge"

    def __init__(
        self, vlm: VLM, prompt_settings: PromptSettings | None = None, sure: float = 0.0
    ) -> None:
        self.vlm, self.prompt_settings, self.sure = vlm, prompt_settings or PromptSettings(), sure
        made_of = content_id(vlm.fingerprint, self.prompt_settings, sure)
        self.name = f"{vlm.name} answers, sure {sure:g} {made_of[:8]}"

    def __call__(
        self, candidates: Sequence[Candidate], images: ImageStore
    ) -> list[JudgeDecision | Exception]:
        """Judge a batch, in order."""
        probes = [self._probe(candidate) for candidate in candidates]
        asked = [probe for probe in probes if isinstance(probe, Probe)]
        responses = iter(self.vlm.ask(asked, images) if asked else ())
        return [
            self._result(candidate, next(responses)) if isinstance(probe, Probe) else probe
            for candidate, probe in zip(candidates, probes, strict=True)
        ]

    def _probe(self, candidate: Candidate) -> Probe | DataError:
        item = candidate.item
        if candidate.edit is None:
            return DataError(f"{candidate.subject}: there is no edited image to judge")
        if item.options is None:
            return DataError(
                f"{candidate.subject} is free-form: it has no options to choose from;"
                " have it judged by a judge of kind 'api' or 'local', or by people"
            )
        return self.prompt_settings.probe(
            item, "edited", images=(candidate.edit.image, *item.images[1:])
        )

    def _result(
        self, candidate: Candidate, response: Response | Exception
    ) -> JudgeDecision | Exception:
        if isinstance(response, Exception):
            return response
        options, flip = candidate.item.options, candidate.flip
        if options is None or flip is None or response.choice < 0:
            return JudgeDecision(
                "unsure", f"the reply names no one option: {response.text}".strip()
            )
        chosen = options[response.choice]
        said = f"not told the answer, it chose {LETTERS[response.choice]} ({chosen})"
        if response.option_log_probs:
            share = _share(response)
            said += f", {share:.3f} of the options' probability"
            if share < self.sure:
                return JudgeDecision("unsure", said, chosen)
        return JudgeDecision(
            "keep" if response.choice == flip.new_answer else "reject", said, chosen
        )


def _share(response: Response) -> float:
    """Return the chosen option's share of all options' probability."""
    chosen = response.option_log_probs[response.choice]
    return 1 / sum(math.exp(log_p - chosen) for log_p in response.option_log_probs)

"""A judge that, like a model under test, only answers the question."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, Self

from pydantic import Field, model_validator

from flipbench.config.kinds import Context
from flipbench.config.local_models import ModelConfig
from flipbench.core.errors import DataError, result_or_error
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.core.records import Probe, Response, Value, content_id
from flipbench.models.protocols import VLM, JudgeDecision, release
from flipbench.prompting.prompts import LETTERS, PromptSettings


class VLMJudgeSpec(Value):
    """A model on this machine that answers the question without knowing the new answer."""

    kind: Literal["vlm"] = "vlm"
    model: ModelConfig
    prompt: PromptSettings = PromptSettings()
    sure: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="'unsure' if the answer has less than this share of the options' probability;"
        " needs 'ask: choose'",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.sure and self.prompt.ask != "choose":
            raise ValueError(
                "sure needs 'ask: choose': a generated reply has no option probabilities"
            )
        return self

    def build(self, context: Context) -> VLMJudge:
        """Return the judge; weights are loaded on its first call."""
        from flipbench.models.vlm.huggingface import lazy_vlm

        return VLMJudge(lazy_vlm(self.model), self.prompt, self.sure)


class VLMJudge:
    """Keep a pair if a model answers the question on the edited image with the new answer.

    It works with any model that can be evaluated; the model need not follow a judge's instructions.
    It cannot detect ambiguity: of two options that both fit, it chooses one. The model should not
    be evaluated later, since it selects the pairs that it can solve. A pair is "unsure" if the
    chosen option has less than the share ``sure`` of all options' probability.

    References
    ----------
    The blind criterion is ours; the judge of Park et al., arXiv 2511.03774, knows the new answer
    (`flipbench.filters.judges.api`).
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
        probes = [result_or_error(self._probe, candidate) for candidate in candidates]
        valid = [probe for probe in probes if isinstance(probe, Probe)]
        responses = iter(self.vlm.ask(valid, images) if valid else ())
        return [
            self._result(candidate, next(responses)) if isinstance(probe, Probe) else probe
            for candidate, probe in zip(candidates, probes, strict=True)
        ]

    def release(self) -> None:
        """Free the weights, if they are loaded on demand."""
        release(self.vlm)

    def _probe(self, candidate: Candidate) -> Probe:
        item = candidate.item
        if item.options is None:
            raise DataError(
                f"{candidate.subject} is free-form: it has no options to choose from;"
                " use a judge of kind 'api' or 'local', or people"
            )
        return self.prompt_settings.probe(item, "edited", images=candidate.perturbed_images)

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
        chosen_text = options[response.choice]
        reason = f"not told the answer, it chose {LETTERS[response.choice]} ({chosen_text})"
        if response.option_log_probs:
            share = _share(response)
            reason += f", {share:.3f} of the options' probability"
            if share < self.sure:
                return JudgeDecision("unsure", reason, chosen_text)
        return JudgeDecision(
            "keep" if response.choice == flip.new_answer else "reject", reason, chosen_text
        )


def _share(response: Response) -> float:
    """Return the chosen option's share of all options' probability."""
    log_p_chosen = response.option_log_probs[response.choice]
    return 1 / sum(math.exp(log_p - log_p_chosen) for log_p in response.option_log_probs)

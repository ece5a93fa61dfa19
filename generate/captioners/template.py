"""Instructions filled in from question and answers: no model, no key, no cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from flipbench.config.kinds import Context
from flipbench.core.errors import DataError
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.core.records import JsonDict, Value
from flipbench.models.protocols import CaptionText

from .api import caption_prompt, written_by

DEFAULT_TEMPLATE = "template-instruction-v1"


class TemplateCaptionerSpec(Value):
    """A template that is filled in, for editors that follow instructions."""

    kind: Literal["template"] = "template"
    prompt: str = Field(
        default=DEFAULT_TEMPLATE, description="name of a file in generate/prompts, or a .txt file"
    )

    @property
    def writes(self) -> Literal["caption", "instruction"] | None:
        """What the template gives; None of one's own."""
        return written_by(self.prompt)

    def build(self, context: Context) -> TemplateCaptioner:
        """Return the captioner."""
        return TemplateCaptioner(self.prompt)


class TemplateCaptioner:
    """Tells an editor question, options and both answers, in the words of a prompt file.

    An editing model has to find out itself what to change; a captioner that sees the picture can
    say it (``instruction-v1``).

    Parameters
    ----------
    prompt : str
        Name of a file in ``generate/prompts``, or your own ``.txt`` file; both of its texts make
        the instruction.

    Raises
    ------
    ConfigError
        If there is no such file, or it does not contain the new answer.
    """

    name = "template"
    settings: JsonDict = {}

    def __init__(self, prompt: str = DEFAULT_TEMPLATE) -> None:
        self.prompt_file = caption_prompt(prompt)
        self.prompt = self.prompt_file.id

    def __call__(
        self, candidates: Sequence[Candidate], images: ImageStore
    ) -> list[CaptionText | Exception]:
        """Fill in the template for a batch, in order."""
        texts: list[CaptionText | Exception] = []
        for candidate in candidates:
            try:
                request = self.prompt_file.request(candidate)
            except DataError as error:
                texts.append(error)
                continue
            parts = (request.instruction, request.text)
            texts.append(CaptionText("\n\n".join(part for part in parts if part)))
        return texts

"""A custom captioner: a sentence made from the question and the new answer."""

from __future__ import annotations

from collections.abc import Sequence

from flipbench.core.errors import DataError
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.models.protocols import CaptionText


class TemplateCaptioner:
    """Fill the placeholders ``{question}`` and ``{answer}`` of a template.

    Everything that a caption depends on belongs in ``prompt`` or ``settings``, which are part of
    its id; flipbench adds the import path and the arguments.
    """

    name = "template"

    def __init__(self, template: str = "{question} {answer}.") -> None:
        self.template, self.prompt, self.settings = template, "template-v1", {}

    def __call__(
        self, candidates: Sequence[Candidate], images: ImageStore
    ) -> list[CaptionText | Exception]:
        """Describe a batch, in order; an exception fails only that candidate."""
        return [self._describe(candidate) for candidate in candidates]

    def _describe(self, candidate: Candidate) -> CaptionText | Exception:
        if candidate.flip is None:
            return DataError(f"{candidate.subject}: no new answer yet")
        question, answer = candidate.item.question, candidate.flip.new_text
        return CaptionText(self.template.format(question=question, answer=answer))

"""Your own captioner, by import path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from flipbench.config.kinds import Context, PythonTarget
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.core.records import JsonDict
from flipbench.models.plugins import build_target
from flipbench.models.protocols import Captioner, CaptionText, release


class PythonCaptionerSpec(PythonTarget):
    """Your class or factory that returns a `Captioner`."""

    kind: Literal["python"] = "python"

    def build(self, context: Context) -> PythonCaptioner:
        """Return the captioner."""
        return PythonCaptioner(self)


class PythonCaptioner:
    """Your captioner; target and arguments become part of its settings, hence of caption ids."""

    def __init__(self, spec: PythonTarget) -> None:
        self.captioner: Captioner = build_target(spec.target, spec.arguments, Captioner)
        self.name, self.prompt = self.captioner.name, self.captioner.prompt
        self.settings: JsonDict = {**self.captioner.settings, **spec.as_settings()}

    def __call__(
        self, candidates: Sequence[Candidate], images: ImageStore
    ) -> Sequence[CaptionText | Exception]:
        """Describe a batch, in order."""
        return self.captioner(candidates, images)

    def release(self) -> None:
        """Free what it holds, if it can."""
        release(self.captioner)

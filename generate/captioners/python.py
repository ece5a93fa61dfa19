"""Your own captioner, by import path."""

from __future__ import annotations

from typing import Literal, cast

from flipbench.config.kinds import Context, PythonTarget
from flipbench.models.plugins import UserPart, build_target
from flipbench.models.protocols import Captioner


class PythonCaptionerSpec(PythonTarget):
    """Your class or factory that returns a `Captioner`.

    Target and arguments become part of its settings, hence of caption ids.
    """

    kind: Literal["python"] = "python"

    def build(self, context: Context) -> Captioner:
        """Return the captioner."""
        captioner = build_target(self.target, self.arguments, Captioner)
        settings = {**captioner.settings, **self.as_settings()}
        return cast(Captioner, UserPart(captioner, settings=settings))

"""Your own editor, by import path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from flipbench.config.kinds import Context, PythonTarget
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.core.records import JsonDict
from flipbench.models.plugins import build_target
from flipbench.models.protocols import Drawing, Editor, release


class PythonEditorSpec(PythonTarget):
    """Your class or factory that returns an `Editor`."""

    kind: Literal["python"] = "python"

    def build(self, context: Context) -> PythonEditor:
        """Return the editor."""
        return PythonEditor(self)


class PythonEditor:
    """Your editor; target and arguments become part of its settings, hence of edit ids."""

    def __init__(self, spec: PythonTarget) -> None:
        self.editor: Editor = build_target(spec.target, spec.arguments, Editor)
        self.name = self.editor.name
        self.settings: JsonDict = {**self.editor.settings, **spec.as_settings()}

    def __call__(
        self, candidates: Sequence[Candidate], seeds: Sequence[int], images: ImageStore
    ) -> Sequence[Drawing | Exception]:
        """Redraw a batch, in order."""
        return self.editor(candidates, seeds, images)

    def release(self) -> None:
        """Free what it holds, if it can."""
        release(self.editor)

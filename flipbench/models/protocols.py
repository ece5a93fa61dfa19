"""The protocols of the four kinds of model that flipbench uses.

Captioners, editors and judges work in turn, so that each has the GPU for itself. One that holds
weights may have a method ``release``, which frees them; it is called once its turn is over.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from PIL import Image

from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.core.records import JsonDict, Probe, Response

Capability = Literal[
    "choose",
    "generate",
    "sample",
    "reply_logprobs",
    "token_logprobs",
    "raw_text",
    "hidden_states",
    "text_only",
]
"""``sample``: generate at a temperature; ``reply_logprobs``: statistics of generated tokens."""
Decision = Literal["keep", "reject", "unsure"]


class VLM(Protocol):
    """A model under test: it answers probes.

    Attributes
    ----------
    name : str
        Its name in tables.
    fingerprint : str
        Hash of weights, processor and precision: everything that responses may depend on. For a
        server it is weaker: the model's name as reported by the server, and the settings.
    can : frozenset of str
        Its capabilities; a detector that needs more is not applicable. One that can choose reads
        the option labels of a probe (``probe.labels``, else A, B, C and so on).
    """

    name: str
    fingerprint: str
    can: frozenset[Capability]

    def ask(self, probes: Sequence[Probe], images: ImageStore) -> Sequence[Response | Exception]:
        """Answer a batch, in order; images are read from ``images``.

        An exception is a failure of that probe alone, never an answer.
        """


def needs_of(probe: Probe) -> frozenset[Capability]:
    """Return the capabilities that a model needs to answer a probe."""
    conditions: dict[Capability, bool] = {
        "text_only": not probe.images,
        "sample": probe.temperature > 0,
        "reply_logprobs": probe.token_statistics,
    }
    return frozenset(
        {_NEEDS[probe.ask], *(name for name, applies in conditions.items() if applies)}
    )


_NEEDS: dict[str, Capability] = {
    "choose": "choose",
    "generate": "generate",
    "score": "token_logprobs",
    "score_text": "raw_text",
    "continue_text": "raw_text",
    "embed": "hidden_states",
}


def release(part: object) -> None:
    """Free the memory of a captioner, editor or judge that has a method ``release``.

    It may be called again afterwards, and then loads its weights anew.
    """
    free = getattr(part, "release", None)
    if callable(free):
        free()
        free_memory()


def free_memory() -> None:
    """Give back the memory of models that are no longer used."""
    gc.collect()  # modules and their hooks refer to each other
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


@dataclass(frozen=True)
class CaptionText:
    """A caption and its cost."""

    text: str
    usage: JsonDict = field(default_factory=dict)


class Captioner(Protocol):
    """Describes an image as it would look if the new answer were true."""

    name: str
    prompt: str
    settings: JsonDict

    def __call__(
        self, candidates: Sequence[Candidate], images: ImageStore
    ) -> Sequence[CaptionText | Exception]:
        """Describe a batch, in order; an exception is a failure of that candidate alone."""


@dataclass(frozen=True)
class Drawing:
    """An edited image, and what its editor stores with it."""

    image: Image.Image
    extra: JsonDict = field(default_factory=dict)


class Editor(Protocol):
    """Redraws an image from a caption, at the size of the source."""

    name: str
    settings: JsonDict

    def __call__(
        self, candidates: Sequence[Candidate], seeds: Sequence[int], images: ImageStore
    ) -> Sequence[Drawing | Exception]:
        """Redraw a batch, in order; an exception is a failure of that candidate alone."""


@dataclass(frozen=True)
class JudgeDecision:
    """A judge's decision on one candidate, and its cost."""

    decision: Decision
    reason: str = ""
    blind_answer: str | None = None
    usage: JsonDict = field(default_factory=dict)


class Judge(Protocol):
    """Decides whether the edited image shows the new answer, and no other."""

    name: str
    rater_kind: Literal["judge", "rule", "oracle"]

    def __call__(
        self, candidates: Sequence[Candidate], images: ImageStore
    ) -> Sequence[JudgeDecision | Exception]:
        """Judge a batch, in order; an exception is a failure of that candidate alone."""

"""The four kinds of model that flipbench uses, whatever runs them: each is a small protocol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from PIL import Image

from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.core.records import JsonDict, Probe, Response

Capability = Literal["choose", "generate", "token_logprobs", "hidden_states", "text_only"]
Decision = Literal["keep", "reject", "unsure"]


class VLM(Protocol):
    """A model under test: it answers probes.

    Attributes
    ----------
    name : str
        What tables call it.
    fingerprint : str
        Hash of weights, processor and precision: everything an answer may depend on. Behind a
        server it is weaker: what the server tells of its model, and the settings.
    can : frozenset of str
        Its capabilities; a detector that needs more is not applicable.
    """

    name: str
    fingerprint: str
    can: frozenset[Capability]

    def ask(self, probes: Sequence[Probe], images: ImageStore) -> Sequence[Response | Exception]:
        """Answer a batch, in order; images are read from ``images``.

        An exception is a failure of that probe alone, never an answer.
        """


def needs_of(probe: Probe) -> frozenset[Capability]:
    """Return what a model must be able to do to answer a probe.

    >>> probe = Probe(item_id="i", variant="v", prompt="?", ask="score", continuation="x")
    >>> sorted(needs_of(probe))
    ['text_only', 'token_logprobs']
    """
    alone: set[Capability] = set() if probe.images else {"text_only"}
    return frozenset({_NEEDS[probe.ask], *alone})


_NEEDS: dict[str, Capability] = {
    "choose": "choose",
    "generate": "generate",
    "score": "token_logprobs",
    "embed": "hidden_states",
}


@dataclass(frozen=True)
class CaptionText:
    """A caption and what it cost."""

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
    """An edited image, and what its editor wants remembered of it."""

    image: Image.Image
    extra: JsonDict = field(default_factory=dict)


class Editor(Protocol):
    """Redraws an image from a caption, at exactly the source's size."""

    name: str
    settings: JsonDict

    def __call__(
        self, candidates: Sequence[Candidate], seeds: Sequence[int], images: ImageStore
    ) -> Sequence[Drawing | Exception]:
        """Redraw a batch, in order."""


@dataclass(frozen=True)
class JudgeDecision:
    """A judge's decision on one candidate, and what it cost."""

    decision: Decision
    reason: str = ""
    blind_answer: str | None = None
    usage: JsonDict = field(default_factory=dict)


class Judge(Protocol):
    """Decides whether the new answer, and only it, follows from the edited image."""

    name: str
    rater_kind: Literal["judge", "rule", "oracle"]

    def __call__(
        self, candidates: Sequence[Candidate], images: ImageStore
    ) -> Sequence[JudgeDecision | Exception]:
        """Judge a batch, in order."""

"""Caption the scene as it would look if the new answer were true."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flipbench.core.errors import ServiceError
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.core.records import Caption, Record
from flipbench.models.protocols import Captioner


class CaptionStage:
    """Caption flipped items; an empty caption is a failure, not a caption."""

    name = "caption"
    record: type[Record] = Caption

    def __init__(self, captioner: Captioner, images: ImageStore) -> None:
        self.captioner, self.images = captioner, images

    def id_of(self, candidate: Candidate) -> str:
        """Return the id of the candidate's caption."""
        return Caption.id_for(**self._key(candidate))

    def subject(self, candidate: Candidate) -> str:
        """Return the item's benchmark and name."""
        return candidate.subject

    def __call__(self, candidates: Sequence[Candidate]) -> list[Caption | Exception]:
        """Caption a batch."""
        out: list[Caption | Exception] = []
        captions = self.captioner(candidates, self.images)
        for candidate, caption in zip(candidates, captions, strict=True):
            if isinstance(caption, Exception):
                out.append(caption)
            elif not (text := caption.text.strip()):
                out.append(ServiceError("the captioner returned an empty caption"))
            else:
                out.append(Caption(**self._key(candidate), text=text, usage=caption.usage))
        return out

    def _key(self, candidate: Candidate) -> dict[str, Any]:
        return {
            "flip_id": candidate.flip.id if candidate.flip else "",
            "captioner": self.captioner.name,
            "prompt": self.captioner.prompt,
            "settings": self.captioner.settings,
            "picture": candidate.picture,
        }

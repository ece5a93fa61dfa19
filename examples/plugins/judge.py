"""A custom judge, which checks how much of the image the edit changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from flipbench.core.errors import DataError
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.models.protocols import JudgeDecision


class ChangedPixels:
    """Keep a pair if at least a given share of its pixels differ.

    Verdicts are stored under the judge's name, to which flipbench adds the import path and a hash
    of the arguments.
    """

    name = "changed pixels"
    rater_kind: Literal["judge", "rule", "oracle"] = "judge"

    def __init__(self, at_least: float = 0.1) -> None:
        self.at_least = at_least

    def __call__(
        self, candidates: Sequence[Candidate], images: ImageStore
    ) -> list[JudgeDecision | Exception]:
        """Judge a batch, in order; an exception fails only that candidate."""
        return [self._judge(candidate, images) for candidate in candidates]

    def _judge(self, candidate: Candidate, images: ImageStore) -> JudgeDecision | Exception:
        if candidate.edit is None:
            return DataError(f"{candidate.subject}: no edited image yet")
        refs = (candidate.source, candidate.edit.image)
        before, after = (np.asarray(images.open(ref).convert("RGB")) for ref in refs)
        share = float((before != after).any(axis=2).mean())
        decision: Literal["keep", "reject"] = "keep" if share >= self.at_least else "reject"
        return JudgeDecision(decision, f"{share:.0%} of the pixels differ")

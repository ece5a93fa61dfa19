"""The adjudication of flagged pairs: a benchmark picture beside its nearest corpus picture."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from flipbench.core.errors import DataError, result_or_error
from flipbench.core.records import Adjudication, ImageRef, content_id
from flipbench.core.run import Run

from ..audit.corpus_overlap.flagged import FLAGGED, LABELS, FlaggedPair, read_flagged
from ..effective_verdicts import WITHDRAWN, join_reason, split_reason
from .pairs import image_path
from .task import Label, RaterVerdict, Task, picture

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CorpusPair:
    """A flagged pair as people judge it. Its distance is shown on demand only: it would bias."""

    flagged: FlaggedPair

    @property
    def key(self) -> tuple[str, str]:
        """The sha256 of both pictures."""
        return self.flagged.key

    @property
    def category(self) -> str:
        """The type of the benchmark picture."""
        return self.flagged.category

    @property
    def pictures(self) -> tuple[ImageRef, ...]:
        """The benchmark's picture, then the corpus's."""
        return self.flagged.benchmark, self.flagged.corpus

    def shown(self) -> dict[str, Any]:
        """Return both pictures and the question, which is the same for all pairs."""
        first, *others = self.flagged.items or (self.flagged.benchmark.sha256[:12],)
        return {
            "item": f"{first} and {len(others)} more" if others else first,
            "category": self.category,
            "question": "How are the two pictures related?",
            "options": (),
            "left": picture(self.flagged.benchmark),
            "right": picture(self.flagged.corpus),
            "more": [],
        }

    def revealed(self) -> dict[str, Any]:
        """Return the key of the corpus picture, the distance, and the items."""
        flagged = self.flagged
        by = f" by {flagged.encoder}" if flagged.encoder else ""
        items = f" Benchmark items: {', '.join(flagged.items)}." if flagged.items else ""
        distance = f"distance {flagged.distance:.4f}{by}."
        return {"details": f"Corpus picture: {flagged.corpus_key}; {distance}{items}"}

    def facts(self) -> dict[str, Any]:
        """Return what is known of the pair."""
        flagged = self.flagged
        return {
            "item": ", ".join(flagged.items),
            "category": flagged.category,
            "question": "How are the two pictures related?",
            "corpus_key": flagged.corpus_key,
            "distance": f"{flagged.distance:.6f}",
            "encoder": flagged.encoder,
        }

    def record(self, rater: str, run: int, verdict: RaterVerdict) -> Adjudication:
        """Return the record of a person's label."""
        return Adjudication(
            benchmark_sha256=self.flagged.benchmark.sha256,
            corpus_sha256=self.flagged.corpus.sha256,
            corpus_key=self.flagged.corpus_key,
            distance=self.flagged.distance,
            rater=rater,
            run=run,
            label=verdict.decision if verdict.decided else None,  # type: ignore[arg-type]
            note=split_reason(verdict.reason)[1] if verdict.decided else "",
            seconds=verdict.seconds,
        )


def corpus_pairs(run: Run, keys: Collection[str] | None = None) -> list[CorpusPair]:
    """Return the flagged pairs of a run, optionally of some benchmark pictures only.

    Their order is arbitrary but fixed: nearest first, it would suggest the label. A pair with a
    missing image file is skipped with a warning.

    Raises
    ------
    DataError
        If there is nothing to adjudicate.
    """
    pairs = []
    for flagged in sorted(read_flagged(run.path), key=lambda pair: content_id(*pair.key)):
        if keys is not None and flagged.benchmark.sha256 not in keys:
            continue
        pair = CorpusPair(flagged)
        lost = [
            r
            for r in pair.pictures
            if isinstance(result_or_error(image_path, run.images, r), DataError)
        ]
        if lost:
            log.warning("skipped: %s: image %s is missing", flagged.corpus_key, lost[0].sha256[:12])
            continue
        pairs.append(pair)
    if not pairs:
        raise DataError(
            f"{run.path / FLAGGED}: there are no flagged pairs with pictures to adjudicate"
        )
    return pairs


def _verdict_of(record: Adjudication) -> RaterVerdict:
    reason = WITHDRAWN if record.label is None else join_reason("", record.note)
    label = record.label or "ambiguous"
    return RaterVerdict(record.run, "person", label, reason, None, record.seconds)


_MEANINGS = {
    "duplicate": "the same picture, perhaps cropped, resized, recoloured or annotated",
    "same subject": "another picture of the same patient, person, object or place",
    "same view": "the same kind of picture of something else: another patient's chest X-ray",
    "ambiguous": "the pictures do not settle it",
    "unrelated": "none of these",
}

ADJUDICATION = Task(
    name="adjudicate",
    title="Adjudication",
    instructions="Each benchmark picture is beside the corpus picture nearest to it. Choose how"
    " the two are related; the items' questions and answers do not matter.",
    details="Distance and source",
    record=Adjudication,
    labels=tuple(
        Label(value, name.capitalize(), str(number), value, f"You chose: {name}", _MEANINGS[value])
        for number, (value, name) in enumerate(LABELS.items(), 1)
    ),
    sides=("benchmark", "corpus"),
    nouns=("benchmark picture", "nearest corpus picture"),
    key_columns=("benchmark_sha256", "corpus_sha256"),
    label_column="label",
    columns=(
        "benchmark_sha256",
        "corpus_sha256",
        "rater",
        "label",
        "note",
        "seconds",
        "item",
        "category",
        "corpus_key",
        "distance",
        "encoder",
    ),
    needs=str(FLAGGED),
    missing="there are no flagged pairs; run 'flipbench audit' with a corpus first",
    load=corpus_pairs,
    verdict_of=_verdict_of,
    same_scale=False,
    independent=True,
)

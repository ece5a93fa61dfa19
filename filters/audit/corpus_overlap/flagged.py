"""The flagged pairs of an audit: each a benchmark picture and its nearest corpus picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import Field, ValidationError

from flipbench.core.errors import DataError
from flipbench.core.files import write_atomically
from flipbench.core.records import ImageRef, Value

FLAGGED = Path("audit") / "flagged.jsonl"
"""The file's place in a run directory."""


LABELS = {
    "duplicate": "exact or near duplicate",
    "same subject": "same subject",
    "same view": "same view, different subject",
    "ambiguous": "ambiguous",
    "unrelated": "unrelated",
}
"""What people may say of a flagged pair, as stored in `Adjudication` and as shown."""


class FlaggedPair(Value):
    """A benchmark picture whose nearest corpus picture is at most the threshold away.

    Attributes
    ----------
    benchmark, corpus : ImageRef
        Both pictures, in the run's image store.
    corpus_key : str
        The corpus picture's name in its corpus.
    distance : float
        1 - cosine for an encoder, in [0, 2]; Hamming distance / 64 for a perceptual hash.
    encoder : str
        What the distance was measured with.
    items : tuple of str
        The benchmark's items that show the picture.
    category : str
        Its type, such as the modality; empty if unknown.
    """

    benchmark: ImageRef
    corpus: ImageRef
    corpus_key: str
    distance: float = Field(ge=0, le=2, allow_inf_nan=False)
    encoder: str = ""
    items: tuple[str, ...] = ()
    category: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """The sha256 of both pictures, which identify the pair."""
        return self.benchmark.sha256, self.corpus.sha256


def write_flagged(run_path: Path, pairs: Sequence[FlaggedPair]) -> Path:
    """Write the flagged pairs of a run, one JSON object a line; return the file's path.

    Raises
    ------
    DataError
        If it cannot be written.
    """
    lines = (pair.model_dump_json() + "\n" for pair in pairs)
    return write_atomically(run_path / FLAGGED, "".join(lines))


def read_flagged(run_path: Path) -> list[FlaggedPair]:
    """Read the flagged pairs of a run, each once: the first of those that several encoders flag.

    Raises
    ------
    DataError
        If there is no such file, or a line of it is not a flagged pair.
    """
    path = run_path / FLAGGED
    try:
        lines = path.read_bytes().splitlines()  # of text, it would also split at U+2028
    except OSError as error:
        raise DataError(
            f"{path}: no flagged pairs can be read ({error.strerror}); run 'flipbench audit' with a"
            " corpus"
        ) from error
    pairs: dict[tuple[str, str], FlaggedPair] = {}
    for number, line in enumerate(lines, 1):
        try:
            pair = FlaggedPair.model_validate_json(line)
        except ValidationError as error:
            problem = error.errors()[0]
            field_path = ".".join(map(str, problem["loc"]))
            raise DataError(
                f"{path}:{number}: not a flagged pair ({field_path}: {problem['msg']}); run"
                " 'flipbench audit' again"
            ) from error
        pairs.setdefault(pair.key, pair)
    return list(pairs.values())

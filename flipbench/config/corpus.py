"""Settings of an audit against a training corpus, and beside other models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from flipbench.core.records import Value

CohortScore = Literal["log_likelihood", "mean_log_likelihood", "min_k", "min_k_plus_plus"]


class PicturesSpec(Value):
    """A set of pictures; a plain path is ``{path: …}``."""

    path: str
    """A folder, a .zip, WebDataset .tar shards or .parquet files (patterns such as
    pmc-{000..099}.tar), a saved data set, or hf:owner/name."""
    image_column: str | None = None
    """default: the only one of pictures."""
    key_column: str | None = None
    """default: file and row."""
    type_field: str | None = None
    """Column or JSON field with a picture's type; in folders: the first subfolder."""
    name: str | None = None
    """Configuration of a Hugging Face data set."""
    split: str = "train"
    revision: str | None = None
    image_root: Path | None = None
    """The folder that paths in rows, and links, may lead to; default: the corpus' own. Pictures
    elsewhere are not read."""

    @model_validator(mode="before")
    @classmethod
    def _from_path(cls, value: Any) -> Any:
        return {"path": str(value)} if isinstance(value, str | Path) else value


class CorpusConfig(Value):
    """A training corpus, and how the benchmark's pictures are compared with it."""

    pictures: PicturesSpec
    encoders: tuple[str, ...] = Field(default=("siglip-b16",), min_length=1)
    """siglip-b16, siglip-so400m, phash (no model), open_clip:MODEL/WEIGHTS, or any vision model of
    transformers; the first one's flags are used for overlap inflation."""
    device: str = "auto"
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    batch_size: int = Field(default=64, ge=1)
    embeddings: Path | None = None
    """Folder for the embeddings, which several audits can share; default: the run's."""
    alpha: float = Field(default=0.01, gt=0, lt=1)
    """Share of the corpus' own pictures within the threshold."""
    level: float = Field(default=0.05, gt=0, lt=1)
    """Level of the test."""
    alphas: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1)
    n_sample: int = Field(default=5_000, ge=2)
    """Corpus pictures that calibrate the threshold."""
    match_types: bool = False
    """Calibrate on corpus pictures with the benchmark's shares of types; the type of a benchmark's
    picture is the category of its first item."""
    controls: dict[str, PicturesSpec] = Field(default_factory=dict)
    """Pictures that cannot be in the corpus, by name."""
    clean: PicturesSpec | None = None
    """Pictures of a benchmark of the same domain that cannot be in the corpus; the verdict then
    rests on the comparison with it."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(set(self.encoders)) < len(self.encoders):
            raise ValueError("encoders must differ")
        return self


class CohortConfig(Value):
    """Several models whose scores of the items are compared."""

    models: tuple[str, ...] = ()
    """Names of 'models', at least two."""
    external: tuple[str, ...] = ()
    """Those that cannot have seen the benchmark: whatever they show too."""
    scores: Path | None = None
    """CSV with item_id and one column for each model, or item_id, model, score (and covariates), in
    release order, instead of asking 'models'."""
    trend_score: CohortScore = "mean_log_likelihood"
    """For order trend and overlap inflation."""
    tail_score: CohortScore = "min_k_plus_plus"
    """For tail enrichment, top-K and subpopulations."""
    top_k: int = Field(default=25, ge=1)
    """Items of each model whose overlap is counted."""
    factors: tuple[str, ...] = ("category",)
    """Covariates whose strata are compared."""
    n_permutations: int = Field(default=9_999, ge=99)
    level: float = Field(default=0.05, gt=0, lt=1)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(set(self.models)) < len(self.models):
            raise ValueError("models must differ")
        if (self.scores is None) == (not self.models):
            raise ValueError("give either models or scores")
        if len(self.models) == 1:
            raise ValueError("a cohort needs at least two models")
        if self.models and (unknown := sorted(set(self.external) - set(self.models))):
            raise ValueError(f"external models must be among models: {', '.join(unknown)}")
        return self

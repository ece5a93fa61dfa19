"""What an audit may be told; every default is explicit and written into the report."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from flipbench.core.records import Value

CheckName = Literal[
    "duplicates",
    "train_overlap",
    "direct_reveal",
    "text_solvable",
    "longest_option",
    "letter_balance",
    "option_pruning",
    "stress_test",
]
CHECKS: tuple[CheckName, ...] = (
    "duplicates",
    "train_overlap",
    "direct_reveal",
    "text_solvable",
    "longest_option",
    "letter_balance",
    "option_pruning",
    "stress_test",
)


class AuditSettings(Value):
    """Settings of an audit."""

    checks: tuple[CheckName, ...] = CHECKS
    seed: int = 0
    alpha: float = Field(
        default=0.05, gt=0, lt=1, description="family-wise level of the audit's tests"
    )
    n_runs: int = Field(default=3, ge=1, description="runs of each text-only model")
    min_models: int | None = Field(
        default=None, ge=1, description="models that must be right in every run; null: all"
    )
    rule: Literal["all_correct", "posterior"] = Field(
        default="all_correct", description="which text-solvable rule drops items"
    )
    max_solve_rate: float = Field(
        default=0.8, gt=0, lt=1, description="posterior rule: the most an item may be solved blind"
    )
    reveal_level: Literal[1, 2, 3] = Field(
        default=1, description="a right answer revealed at this level or a higher one is dropped"
    )
    hash_distance: int = Field(
        default=8, ge=0, le=64, description="of 64 bits, for a pair to be compared by its pixels"
    )
    pixel_difference: float = Field(
        default=0.03, ge=0, le=1, description="largest difference of two 16 x 16 colour thumbnails"
    )
    n_options: int = Field(default=5, ge=2, description="items with more options are pruned")
    n_folds: int = Field(default=5, ge=2)
    n_permutations: int = Field(default=999, ge=19)

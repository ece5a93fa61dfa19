"""Settings of an audit; all of them are written into its report."""

from __future__ import annotations

from typing import Literal, get_args

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
CHECKS: tuple[CheckName, ...] = get_args(CheckName)


class AuditSettings(Value):
    """Settings of an audit."""

    checks: tuple[CheckName, ...] = CHECKS
    seed: int = 0
    alpha: float = Field(default=0.05, gt=0, lt=1)
    """Family-wise level of the audit's tests."""
    n_runs: int = Field(default=3, ge=1)
    """Runs of each text-only model."""
    min_models: int | None = Field(default=None, ge=1)
    """Models that must answer correctly in every run; null: all of them."""
    rule: Literal["all_correct", "posterior"] = "all_correct"
    """The rule that drops text-solvable items."""
    max_solve_rate: float = Field(default=0.8, gt=0, lt=1)
    """Posterior rule: the highest rate at which an item may be solved without its image."""
    reveal_level: Literal[1, 2, 3] = 1
    """An item whose answer is revealed at this level or above is dropped."""
    hash_distance: int = Field(default=8, ge=0, le=64)
    """Largest perceptual-hash distance, of 64 bits, at which pixels are compared."""
    pixel_difference: float = Field(default=0.03, ge=0, le=1)
    """Largest difference of the 16 x 16 colour thumbnails of duplicates."""
    n_options: int = Field(default=5, ge=2)
    """Items with more options are pruned."""
    n_folds: int = Field(default=5, ge=2)
    """Folds of cross-validation."""
    n_permutations: int = Field(default=999, ge=19)
    """Permutations of each test."""

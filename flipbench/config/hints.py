"""The ablation of hints and summaries: where their texts are."""

from __future__ import annotations

from pydantic import Field

from flipbench.core.records import Value


class HintSettings(Value):
    """Where an item has texts that help, and whether models write their own."""

    hints: str = Field(
        default="hints", description="key in an item's extra: what each image shows, by an expert"
    )
    summary: str = Field(
        default="summary", description="key in an item's extra: what they show together"
    )
    own: bool = Field(default=True, description="also ask models for hints and a summary")
    max_new_tokens: int = Field(default=256, ge=1, description="limit of a text of their own")

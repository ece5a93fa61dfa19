"""The shipped recipes load, and hold the values that their sources give."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from flipbench.config.experiment import load_config

FOLDER = Path(__file__).parents[2] / "configs" / "contaminate"
RECIPES = [p for p in sorted(FOLDER.glob("*.yaml")) if not p.stem.endswith("-defaults")]


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_loads_and_reloads(path: Path, tmp_path: Path) -> None:
    config = load_config(path)
    assert config.contaminate.strategies and config.models and config.contaminate.data
    assert len(config.models) == (2 if path.stem in ("shapes", "dose-study", "consistency") else 1)
    (tmp_path / "again.yaml").write_text(config.to_yaml())
    assert load_config(tmp_path / "again.yaml") == config


def test_no_two_recipes_share_a_run_directory() -> None:
    runs = [yaml.safe_load(path.read_text())["run"] for path in RECIPES]
    assert len(set(runs)) == len(runs) >= 9


@pytest.mark.parametrize(
    ("recipe", "strategy", "rate", "batch", "warm_up", "rank"),
    [
        ("llava-1.5-7b", "LoRA", 2e-4, 128, 0.03, 8),
        ("llava-1.5-7b", "LLM+MLP", 2e-5, 128, 0.03, None),
        ("llava-1.5-13b", "LoRA-128", 2e-4, 128, 0.03, 128),
        ("qwen2-vl-7b", "LoRA", 1e-4, 64, 0.1, 8),
        ("qwen2.5-vl-7b", "LLM", 1e-5, 16, 0.1, None),
        ("qwen2-vl-7b", "README-LoRA", 5e-6, 8, 0.0, 8),
    ],
)
def test_official_values(
    recipe: str, strategy: str, rate: float, batch: int, warm_up: float, rank: int | None
) -> None:
    found = load_config(FOLDER / f"{recipe}.yaml").contaminate.strategies[strategy]
    assert found.learning_rate == rate and found.schedule == "cosine"
    assert found.batch_size * found.gradient_accumulation == batch
    assert found.warmup_ratio == warm_up
    assert rank is None or found.lora_rank == rank

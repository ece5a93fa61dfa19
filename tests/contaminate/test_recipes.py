"""The shipped recipes load, hold the values that their sources give, and plan their training."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from datasets import Dataset, Features, Image, Value
from PIL.Image import new

from flipbench.config.experiment import load_config
from tests.fixtures.command_line import Flipbench
from tests.fixtures.photos import encoded

FOLDER = Path(__file__).parents[2] / "configs" / "contaminate"
RECIPES = [p for p in sorted(FOLDER.glob("*.yaml")) if not p.stem.endswith("-defaults")]


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_loads_and_reloads(path: Path, tmp_path: Path) -> None:
    config = load_config(path)
    assert config.contaminate.strategies and config.models and config.contaminate.data
    n_models = 2 if path.stem.startswith(("shapes", "dose-study", "consistency")) else 1
    assert len(config.models) == n_models
    (tmp_path / "again.yaml").write_text(config.to_yaml())
    assert load_config(tmp_path / "again.yaml") == config


def test_no_two_recipes_share_a_run_directory() -> None:
    runs = [yaml.safe_load(path.read_text())["run"] for path in RECIPES]
    assert len(set(runs)) == len(runs) >= 9


def test_the_consistency_study_changes_only_what_it_compares() -> None:
    study = load_config(FOLDER / "consistency-study.yaml").contaminate
    settings = [s.model_dump(exclude={"consistency"}) for s in study.strategies.values()]
    for layers in ((2, 3), None):
        assert settings.count(settings[0] | {"lora_layers": layers}) == 5
    losses = [s.consistency for s in study.strategies.values() if s.consistency is not None]
    kinds = Counter((c.weight, c.answer_weight, c.grounded, c.tau) for c in losses)
    assert set(kinds.values()) == {2} and len(kinds) == 5 and len(study.data) == 1
    assert study.seeds is not None and len(study.seeds) >= 3


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


HUB_MODELS = {
    "llava-hf/llava-1.5-7b-hf": "llava",
    "Qwen/Qwen2-VL-7B-Instruct": "qwen2_vl",
    "Qwen/Qwen2.5-VL-7B-Instruct": "qwen2_vl",
}
N_ITEMS = {"xai-org/RealworldQA": 7, "Lin-Chen/MMStar": 5}


@pytest.fixture
def hub(tmp_path: Path, tiny_folders: dict[str, Path]) -> None:
    """Put small stand-ins for the recipes' models and data sets where their ids lead."""
    for name, family in HUB_MODELS.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).symlink_to(tiny_folders[family])
    question = {
        "xai-org/RealworldQA": "Which light is on?\n\nA. Red\nB. Green\nPlease answer directly"
        " with only the letter of the correct option and nothing else.",
        "Lin-Chen/MMStar": "Which light is on?\nOptions: A: Red, B: Green, C: None, D: Both",
    }
    text = Value("string")
    for name, n in N_ITEMS.items():
        pictures = [encoded(new("RGB", (96, 54), (i, 90, 90))) for i in range(n)]
        rows: dict[str, list[Any]] = {"image": [{"bytes": p, "path": None} for p in pictures]}
        rows |= {"question": [question[name]] * n, "answer": ["B"] * n}
        extra = ("index", "category", "l2_category") if "MMStar" in name else ()
        rows |= {column: [str(i) for i in range(n)] for column in extra}
        columns = {"question": text, "answer": text, **dict.fromkeys(extra, text)}
        split = "val" if "MMStar" in name else "test"
        (tmp_path / name / "data").mkdir(parents=True)
        Dataset.from_dict(rows, features=Features({"image": Image(), **columns})).to_parquet(
            tmp_path / name / "data" / f"{split}-00000-of-00001.parquet"
        )


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize("recipe", ["llava-1.5-7b", "qwen2-vl-7b", "qwen2.5-vl-7b"])
def test_full_size_recipes_plan_before_anything_is_generated(
    recipe: str, flipbench: Flipbench
) -> None:
    strategies = load_config(FOLDER / f"{recipe}.yaml").contaminate.strategies
    planned = flipbench("contaminate", f"configs/contaminate/{recipe}.yaml", "--dry-run")
    assert planned.status == 0, planned.err
    head, *rows = planned.out.splitlines()[: 1 + len(strategies)]
    column = head.index("items")
    assert [int(row[column : column + 5]) for row in rows] == [7] * len(strategies)
    assert f"to do: {len(strategies)} of {len(strategies)} plans" in planned.out

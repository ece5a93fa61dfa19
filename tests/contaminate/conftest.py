from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from flipbench.api.stages.assembly import Assembly
from flipbench.config.experiment import ContaminateConfig, ModelConfig, StrategyConfig, load_config
from flipbench.config.training import DataConfig
from flipbench.contaminate.data.regimes import RegimeData
from flipbench.contaminate.plan import expand
from flipbench.core.images import ImageStore
from flipbench.core.paired import Pair, PairedBenchmark
from flipbench.core.records import Item, TrainingPlan
from flipbench.core.run import Run
from flipbench.prompting.prompts import LETTER_INSTRUCTION
from flipbench.shapes.benchmark import shapes_vqa

MakePlan = Callable[..., TrainingPlan]
NewRun = Callable[..., Run]
N_ITEMS = 32


@pytest.fixture(scope="session")
def items(shapes_items: list[Item]) -> dict[str, Item]:
    """Return the items to train on, by id."""
    return {item.id: item for item in shapes_items[:N_ITEMS]}


@pytest.fixture(scope="session")
def make_plan(tiny_folders: dict[str, Path], items: dict[str, Item]) -> MakePlan:
    """Plan one strategy on one family's untrained model."""

    def make(
        family: str,
        train: str,
        *,
        n_items: int = N_ITEMS,
        epochs: int = 1,
        copies: int = 1,
        seed: int = 0,
        parent: Path | None = None,
        among: Sequence[Item] | None = None,
        **settings: Any,
    ) -> TrainingPlan:
        strategy = {"learning_rate": 1e-3, "batch_size": 8, "train": train} | settings
        config = ContaminateConfig(
            strategies={"s": StrategyConfig.model_validate(strategy)}, epochs=epochs, copies=copies
        )
        models = {f"tiny {family}": ModelConfig(path=str(parent or tiny_folders[family]))}
        chosen = list(among or items.values())[:n_items]
        regime = RegimeData("verbatim", DataConfig(), tuple(chosen))
        (plan,) = expand(config, models, [regime], instruction=LETTER_INSTRUCTION, seed=seed)
        return plan

    return make


@pytest.fixture(scope="session")
def new_run(
    tmp_path_factory: pytest.TempPathFactory, shapes_store: ImageStore, items: dict[str, Item]
) -> NewRun:
    """Open a run directory that has the items' pictures."""

    def new(name: str = "run") -> Run:
        run = Run(tmp_path_factory.mktemp(name))
        run.images.folder.mkdir()
        for item in items.values():
            shutil.copy(shapes_store.path(item.images[0]), run.images.folder)
        return run

    return new


@pytest.fixture
def opened(tmp_path: Path, tiny_folders: dict[str, Path]) -> Any:
    """Open an experiment on 8 pairs with a contamination grid."""

    def opening(**grid: Any) -> tuple[Assembly, PairedBenchmark]:
        strategy = {"train": "lora", "learning_rate": 1e-3, "batch_size": 8}
        config = {
            "run": str(tmp_path / "run"),
            "benchmark": {"format": "shapes", "n_items": 8},
            "models": {"tiny": {"path": str(tiny_folders["llava"])}},
            "contaminate": {"epochs": 1, "strategies": {"S": strategy}} | grid,
        }
        (tmp_path / "c.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
        assembly = Assembly.open(load_config(tmp_path / "c.yaml"), progress=False)
        items = shapes_vqa(assembly.run.images, 9)
        pairs = []
        for item, other in zip(items[:8], items[1:], strict=True):
            answer = (item.answer or 0) - 1
            options = item.options or ()
            changed = {"id": "", "images": other.images, "answer": answer % len(options)}
            twin = item.model_dump() | changed | {"answer_text": options[answer]}
            pairs.append(Pair(item, type(item).model_validate(twin)))
        benchmark = PairedBenchmark("shapes-vqa", tuple(pairs), assembly.run.images)
        benchmark.save(assembly.benchmark_folder)
        return assembly, benchmark

    return opening

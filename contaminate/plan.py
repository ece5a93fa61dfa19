"""Plan first, train second: a grid of models and strategies becomes training plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flipbench.config import ContaminateConfig, ModelConfig
from flipbench.errors import DataError
from flipbench.models.huggingface import fingerprint, resolve_path
from flipbench.records import Item, TrainingPlan


def expand(
    config: ContaminateConfig,
    models: Mapping[str, ModelConfig],
    items: Sequence[Item],
    *,
    instruction: str,
    seed: int,
) -> list[TrainingPlan]:
    """Return a plan for every model x strategy, on all of ``items``.

    ``instruction`` is the prompt's last line; it is the one that evaluation uses.

    Raises
    ------
    DataError
        Where there is nothing to train on.
    """
    if not items:
        raise DataError("no item to contaminate with; filter a benchmark that keeps some pairs")
    return [
        TrainingPlan(
            model=name,
            parent=model.path,
            parent_fingerprint=fingerprint(resolve_path(model.path), model.dtype, model.revision),
            benchmark=items[0].benchmark,
            item_ids=tuple(item.id for item in items),
            copies=config.copies,
            epochs=config.epochs,
            strategy=strategy.train,
            label=label,
            settings=strategy.model_dump(exclude={"train"})
            | ({"revision": model.revision} if model.revision else {}),
            prompt=instruction,
            seed=seed,
        )
        for name, model in models.items()
        for label, strategy in config.strategies.items()
    ]

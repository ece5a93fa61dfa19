"""A small example of the two tables that `flipbench validate` reads, with made-up answers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from flipbench.core.errors import ConfigError
from flipbench.core.files import write_atomically
from flipbench.core.randomness import generator
from flipbench.reporting.writers import records_csv

N_ITEMS = 60
_STATES = (("clean", 0), ("other data", 0), ("LoRA", 1), ("LoRA", 3))
_SKILLS = {"A": 0.5, "B": 0.65, "C": 0.8}


def write_example(folder: Path) -> tuple[Path, Path]:
    """Write ``models.csv`` and ``items.csv`` into ``folder``, which must not have them.

    Three families, each with a clean model, a control trained on other data, and two contaminated
    models that know more original answers the higher the dose. All answers are simulated.

    Raises
    ------
    ConfigError
        If one of the files exists.
    """
    files = folder / "models.csv", folder / "items.csv"
    for path in files:
        if path.exists():
            raise ConfigError(f"{path} exists; name another folder")
    models: list[dict[str, Any]] = []
    items: list[dict[str, Any]] = []
    for family, skill in _SKILLS.items():
        for strategy, dose in _STATES:
            name = f"{family} {strategy}" + (f" x{dose}" if dose else "")
            models.append({"model": name, "family": family, "strategy": strategy, "dose": dose})
            rng = generator(0, name, "example")
            known = rng.random(N_ITEMS) < 1 - 0.6**dose
            for side in ("original", "perturbed"):
                sees = rng.random(N_ITEMS) < skill
                right = known | sees if side == "original" else ~known & sees
                chances = rng.uniform(0.05, 0.45, N_ITEMS) + 0.5 * right
                items += [
                    {
                        "model": name,
                        "item": f"q{number}",
                        "condition": side,
                        "correct": int(right[number]),
                        "logprob": f"{math.log(chances[number]):.4f}",
                    }
                    for number in range(N_ITEMS)
                ]
    folder.mkdir(parents=True, exist_ok=True)
    for path, rows in zip(files, (models, items), strict=True):
        write_atomically(path, records_csv(rows))
    return files

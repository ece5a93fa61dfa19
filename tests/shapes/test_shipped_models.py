"""The two models that are shipped: small, they load, and they answer by looking."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import flipbench.shapes
from flipbench.core.images import ImageStore
from flipbench.core.records import Item
from flipbench.models.vlm.checkpoints import check_card, resolve_path
from flipbench.models.vlm.huggingface import HuggingFaceVLM
from flipbench.prompting.prompts import PromptSettings
from studies.tiny_models.tiny import FAMILIES

CHECKPOINTS = Path(flipbench.shapes.__file__).parent / "checkpoints"
N_ITEMS = 200

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not CHECKPOINTS.is_dir(), reason="this copy of the source has no trained checkpoints"
    ),
]


@pytest.fixture(scope="module", params=FAMILIES)
def vlm(request: pytest.FixtureRequest) -> HuggingFaceVLM:
    return HuggingFaceVLM(f"shapes:{request.param}")


def n_right(vlm: HuggingFaceVLM, items: list[Item], images: ImageStore, *, look: bool) -> int:
    probes = [PromptSettings().probe(item, "v", images=None if look else ()) for item in items]
    answers = [a for i in range(0, len(probes), 50) for a in vlm.ask(probes[i : i + 50], images)]
    return sum(a.choice == item.answer for a, item in zip(answers, items, strict=True))


def test_shipped_models_are_small_clean_and_complete(vlm: HuggingFaceVLM) -> None:
    folder = Path(resolve_path(f"shapes:{vlm.name}"))
    n_bytes = sum(file.stat().st_size for file in folder.rglob("*"))
    assert n_bytes <= 8_000_000
    assert check_card(folder) == {}
    assert not list(folder.glob("*.bin")) and not list(folder.glob("*.pt"))


def test_it_answers_by_looking(
    vlm: HuggingFaceVLM,
    all_items: list[Item],
    shapes_store: ImageStore,
) -> None:
    items = all_items[:N_ITEMS]
    chance = float(np.mean([1 / len(item.options or ()) for item in items]))
    seeing = n_right(vlm, items, shapes_store, look=True)
    assert seeing / N_ITEMS > chance + 0.3
    assert stats.binomtest(seeing, N_ITEMS, chance, alternative="greater").pvalue < 1e-9
    blind = n_right(vlm, items, shapes_store, look=False)
    # mixed chances vary less than a binomial of their mean: this test is conservative
    assert stats.binomtest(blind, N_ITEMS, chance).pvalue > 0.01


def test_it_needs_the_right_picture(
    vlm: HuggingFaceVLM,
    all_items: list[Item],
    shapes_store: ImageStore,
) -> None:
    items = all_items[:N_ITEMS]
    pictures = [item.images for item in items]
    moved = [item.model_copy(update={"images": pictures[i - 7]}) for i, item in enumerate(items)]
    right = n_right(vlm, items, shapes_store, look=True)
    assert n_right(vlm, moved, shapes_store, look=True) < right - N_ITEMS / 5

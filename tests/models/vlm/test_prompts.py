"""The rendered prompt of every model family, word by word, against a golden file.

Renew the file after a wanted change, and read what changed:

    python -m tests.models.vlm.test_prompts && git diff tests/models/vlm/golden
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from flipbench.models.vlm.checkpoints import resolve_path
from flipbench.models.vlm.conversation import Conversation
from flipbench.models.vlm.families import family_of
from flipbench.models.vlm.loading import architecture
from flipbench.models.vlm.processors import load_processor
from flipbench.prompting.prompts import choice_prompt
from studies.tiny_models.tiny import FAMILIES as SHIPPED
from tests.fixtures.tiny_families import FAMILIES, save

pytestmark = pytest.mark.slow

GOLDEN = Path(__file__).parent / "golden" / "prompts.json"
PROMPT = choice_prompt("What color is the star?", ["red", "blue", "green"])
IMAGES = {"one image": 1, "text only": 0, "two images": 2}
Prompts = dict[str, str | None]


def prompts(where: str) -> Prompts:
    """Return what a checkpoint's processor gets; None where the family reads no such probe."""
    config = architecture(where)
    family = family_of(config)
    conversation = Conversation(load_processor(where), family, where)
    found: Prompts = {
        name: None if family.refuses(n) else conversation.render(PROMPT, n)
        for name, n in IMAGES.items()
    }
    return found | {"reply": conversation.completion("B")}


@pytest.mark.parametrize("name", [*FAMILIES, *(f"shapes:{name}" for name in SHIPPED)])
def test_rendered_prompts_match_the_snapshots(name: str, tmp_path: Path) -> None:
    if name == "smolvlm":
        pytest.importorskip("num2words")
    where = resolve_path(name) if name.startswith("shapes:") else str(save(name, tmp_path))
    assert prompts(where) == json.loads(GOLDEN.read_text())[name]


def _all() -> Iterator[tuple[str, Prompts]]:
    for name in SHIPPED:
        yield f"shapes:{name}", prompts(resolve_path(f"shapes:{name}"))
    for name in FAMILIES:
        with tempfile.TemporaryDirectory() as folder:
            yield name, prompts(str(save(name, Path(folder))))


if __name__ == "__main__":
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text(json.dumps(dict(_all()), indent=2, ensure_ascii=False) + "\n")

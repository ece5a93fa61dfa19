"""Instructions that no model writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from flipbench.core.errors import ConfigError, DataError
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.core.records import Flip, Item
from flipbench.generate.captioners.template import TemplateCaptioner, TemplateCaptionerSpec
from flipbench.models.protocols import CaptionText


@pytest.fixture
def candidate(shapes_items: list[Item]) -> Candidate:
    item = shapes_items[0]
    assert item.options and item.answer is not None
    new = (item.answer + 1) % len(item.options)
    text = item.options[new]
    return Candidate(item, Flip(item_id=item.id, method="m", seed=0, new_answer=new, new_text=text))


def test_the_instruction_names_question_options_and_both_answers(
    candidate: Candidate, shapes_store: ImageStore
) -> None:
    captioner = TemplateCaptioner()
    (caption,) = captioner([candidate], shapes_store)
    assert isinstance(caption, CaptionText) and candidate.flip and caption.usage == {}
    assert captioner.prompt.startswith("template-instruction-v1 ")
    assert f"Question: {candidate.item.question}\n" in caption.text
    assert f"now: {candidate.item.answer_text}\n" in caption.text
    assert f"after the edit: {candidate.flip.new_text}\n" in caption.text
    assert "{" not in caption.text


def test_an_item_without_a_new_answer_is_a_failure_of_its_own(
    candidate: Candidate, shapes_store: ImageStore
) -> None:
    missing, written = TemplateCaptioner()([Candidate(candidate.item), candidate], shapes_store)
    assert isinstance(missing, DataError) and isinstance(written, CaptionText)


def test_a_template_of_your_own(
    tmp_path: Path, candidate: Candidate, shapes_store: ImageStore
) -> None:
    path = tmp_path / "mine.txt"
    head = "name: mine\nversion: 1\nabout: mine\nplaceholders: [new_answer]\n---\n"
    path.write_text(f"{head}Edit.\n---\nShow {{new_answer}}.\n")
    (caption,) = TemplateCaptionerSpec(prompt=str(path)).build(None)([candidate], shapes_store)  # type: ignore[arg-type]
    assert candidate.flip and isinstance(caption, CaptionText)
    assert caption.text == f"Edit.\n\nShow {candidate.flip.new_text}."
    path.write_text(path.read_text().replace("new_answer", "old_answer"))
    with pytest.raises(ConfigError, match="new_answer"):
        TemplateCaptioner(str(path))

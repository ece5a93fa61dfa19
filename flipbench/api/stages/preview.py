"""What generation would do to the first items, as a page: no key, GPU or weights are needed."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from flipbench.api.stages.assembly import Assembly
from flipbench.api.stages.backends import missing_key
from flipbench.config.kinds import is_plug_in
from flipbench.core.errors import FlipbenchError, result_or_error
from flipbench.core.files import write_atomically
from flipbench.core.paired import Candidate
from flipbench.core.records import Caption, Flip, Item
from flipbench.generate.captioners.api import APICaptionerSpec, LocalCaptionerSpec, caption_request
from flipbench.generate.captioners.template import TemplateCaptioner, TemplateCaptionerSpec
from flipbench.generate.editors.controls import Control
from flipbench.generate.editors.exact import ExactEditor, ExactEditorSpec
from flipbench.generate.flip import FlipStage
from flipbench.models.protocols import CaptionText, Drawing
from flipbench.reporting.pages import environment

N_SHOWN = 12
_SIDE = 480  # pixels
_WITHOUT_WEIGHTS = ("canny", "none")
_TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class PreviewedItem:
    """An item, its new answer, and what captioner and editor would be given.

    Attributes
    ----------
    problem : str
        Why there is no new answer, or no exact edit; empty if nothing is wrong.
    prompt : str
        The text that the captioner is sent, or the instruction itself where no model writes it.
    pictures : tuple of (str, str)
        Titles and data URLs: the original, the control image, an exact edit.
    """

    item: Item
    new_answer: str
    problem: str
    prompt: str
    pictures: tuple[tuple[str, str], ...]


def write_preview(assembly: Assembly, path: Path) -> Path:
    """Write a page about the first items of a benchmark, `N_SHOWN` or those of the limit.

    Raises
    ------
    DataError
        If the benchmark has no usable item, or the page cannot be written.
    """
    items, config = assembly.items[: assembly.limit or N_SHOWN], assembly.config.generate
    flipping = FlipStage(
        assembly.config.seed, assembly.new_answers, assembly.new_letters, assembly.reachable_answers
    )
    examples = [
        _previewed(assembly, item, flip) for item, flip in zip(items, flipping(items), strict=True)
    ]
    parts = [config.captioner, config.editor, *assembly.config.filter.judges]
    page = (
        environment(_TEMPLATES)
        .get_template("preview.html.jinja")
        .render(
            title=f"{examples[0].item.benchmark}: what would be drawn",
            items=examples,
            n_items=len(assembly.items),
            captioner=config.captioner.kind,
            editor=config.editor.kind,
            missing=list(dict.fromkeys(str(e) for spec in parts if (e := missing_key(spec)))),
        )
    )
    return write_atomically(path, page)


def _previewed(assembly: Assembly, item: Item, flip: Flip | Exception) -> PreviewedItem:
    images = assembly.run.images
    problem = str(flip) if isinstance(flip, Exception) else ""
    candidate = Candidate(item, flip if isinstance(flip, Flip) else None)
    pictures = []
    if item.images:
        original = images.open(candidate.source).convert("RGB")
        pictures.append(("original", _data_url(original)))
        pictures += [(title, _data_url(image)) for title, image in _controls(assembly, original)]
    prompt = _prompt(assembly, candidate) if candidate.flip else ""
    spec = assembly.config.generate.editor
    if isinstance(spec, ExactEditorSpec) and candidate.flip:
        caption = Caption(flip_id=candidate.flip.id, captioner="none", prompt="", text="-")
        editor = ExactEditor(spec.read_regions(), mirror_text=spec.mirror_text)
        (drawing,) = editor([Candidate(item, candidate.flip, caption)], [0], images)
        if isinstance(drawing, Drawing):
            title = f"{drawing.extra['exact']['operation']}: the edit itself"
            pictures.append((title, _data_url(drawing.image)))
        else:
            problem = str(drawing)
    new_answer = candidate.flip.new_text if candidate.flip else ""
    return PreviewedItem(item, new_answer, problem, prompt, tuple(pictures))


def _controls(assembly: Assembly, original: Image.Image) -> list[tuple[str, Image.Image]]:
    """Return the control image, if it takes no weights to make."""
    control = getattr(assembly.config.generate.editor, "control", None)
    if not isinstance(control, Control) or control.kind not in _WITHOUT_WEIGHTS:
        return []
    control_or_error = result_or_error(control, original)
    return (
        []
        if isinstance(control_or_error, FlipbenchError)
        else [(f"control: {control.kind}", control_or_error)]
    )


def _prompt(assembly: Assembly, candidate: Candidate) -> str:
    spec = assembly.config.generate.captioner
    if isinstance(spec, TemplateCaptionerSpec):
        (text,) = TemplateCaptioner(spec.prompt)([candidate], assembly.run.images)
        return text.text if isinstance(text, CaptionText) else str(text)
    if isinstance(spec, APICaptionerSpec | LocalCaptionerSpec):
        request = caption_request(spec.prompt_file, candidate)
        return "\n\n".join(part for part in (request.instruction, request.text) if part)
    if is_plug_in(spec):
        return ""
    (text,) = assembly.captioner([candidate], assembly.run.images)
    return text.text if isinstance(text, CaptionText) else str(text)


def _data_url(image: Image.Image) -> str:
    image = image.copy()
    image.thumbnail((_SIDE, _SIDE))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=85)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"

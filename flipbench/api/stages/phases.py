"""What each phase of generation and filtering takes on this machine, for ``--dry-run``."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image

from flipbench.config.experiment import Config
from flipbench.config.kinds import PartSettings
from flipbench.config.local_models import LocalSpec, ModelConfig
from flipbench.core.errors import DataError, PrerequisiteError
from flipbench.core.paired import Candidate
from flipbench.core.records import ImageRef, Item
from flipbench.filters.judges.api import LocalJudgeSpec
from flipbench.filters.judges.vlm import VLMJudgeSpec
from flipbench.generate.captioners.api import LocalCaptionerSpec
from flipbench.generate.editors.diffusers_loading import PipelineSpec
from flipbench.generate.editors.flux_editor import FluxEditorSpec
from flipbench.models.chat.cost import typical_request
from flipbench.models.estimates import (
    BYTES,
    SHARE_OF_PEAK,
    measured_speed,
    size_text,
    time_text,
)
from flipbench.models.vlm.checkpoints import n_weights
from flipbench.prompting.prompts import PromptSettings

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Need:
    """What a phase takes: bytes of its weights and at its peak, None where they are not known."""

    what: str
    weights: int | None
    peak: int | None = None
    about: str = ""
    rest: tuple[str, ...] = ()

    def lines(self, phase: str) -> list[str]:
        """Return the phase's line for people, and its details."""
        if self.weights is None:
            return [f"  {phase}: size not known until it is downloaded ({self.what})"]
        text = f"  {phase}: {size_text(self.weights)} of weights"
        if self.peak is None:
            text += ", activations not known"
        else:
            text = f"  {phase}: {size_text(self.peak)}, {size_text(self.weights)} of it weights"
        about = f"; {self.about}" if self.about else ""
        return [f"{text} ({self.what}{about})", *(f"    {line}" for line in self.rest)]


@dataclass(frozen=True)
class Question:
    """What a model is asked about an item: a text, images, and the tokens of the longest reply."""

    text: str
    images: tuple[ImageRef, ...]
    max_tokens: int

    @property
    def size(self) -> tuple[int, int]:
        """Pixels and characters."""
        return sum(image.width * image.height for image in self.images), len(self.text)


def memory_plan(config: Config, items: Sequence[Item]) -> list[str]:
    """Return what each phase of generation and filtering takes on this machine.

    Captioner, editor and judges work in turn, each alone; empty if none has weights here. Peaks are
    those of a full batch of the items with the largest images.
    """
    needs = [
        (phase, need) for phase, part in _phases(config) if (need := _need(part, config, items))
    ]
    if not needs:
        return []
    sizes = [need.peak or need.weights for _, need in needs]
    largest = max(n or 0 for n in sizes)
    upper = "" if None in sizes else f": at most {size_text(largest)}"
    is_lower = any(need.peak is None for _, need in needs)
    note = " (activations that are not known come on top)" if is_lower else ""
    lines = [line for phase, need in needs for line in need.lines(phase)]
    return [f"memory, one phase at a time{upper}{note}", *lines]


def _phases(config: Config) -> list[tuple[str, PartSettings | ModelConfig]]:
    generate, models = config.generate, config.models
    phases: list[tuple[str, PartSettings | ModelConfig]] = [
        ("captions", generate.captioner),
        ("images", generate.editor),
        *(("verdicts", judge) for judge in config.filter.judges),
    ]
    if (chooser := models.get(generate.picture.model)) and chooser.path:
        phases.insert(0, ("choice of images", chooser))
    return phases


def _need(part: PartSettings | ModelConfig, config: Config, items: Sequence[Item]) -> Need | None:
    """Return what a part takes; None if it has no weights here."""
    if isinstance(part, PipelineSpec):
        return _drawing(part, items)
    spec = part.chat.model if isinstance(part, LocalSpec) else part
    spec = spec.model if isinstance(spec, VLMJudgeSpec) else spec
    if not isinstance(spec, ModelConfig):
        return None
    n_at_once = config.filter.batch_size if _judges(part) else config.generate.batch_size
    if isinstance(part, LocalSpec) and part.chat.temperature:
        n_at_once = 1  # each is sampled apart
    questions = sorted(_questions(part, items), key=lambda q: q.size, reverse=True)
    return _answering(spec, questions, n_at_once)


def _judges(part: PartSettings | ModelConfig) -> bool:
    return isinstance(part, LocalJudgeSpec | VLMJudgeSpec)


def _questions(part: PartSettings | ModelConfig, items: Sequence[Item]) -> list[Question]:
    if isinstance(part, LocalCaptionerSpec | LocalJudgeSpec):
        requests = [typical_request(Candidate(i), part.prompt_file) for i in items if i.images]
        limit = part.chat.max_tokens
        return [Question(f"{r.instruction}\n\n{r.text}", tuple(r.images), limit) for r in requests]
    settings = part.prompt if isinstance(part, VLMJudgeSpec) else PromptSettings(ask="choose")
    closed = [item for item in items if item.options is not None and item.images]
    probes = [settings.probe(item, "edited") for item in closed]
    if isinstance(part, VLMJudgeSpec):
        return [Question(p.prompt, p.images, max(1, p.max_new_tokens)) for p in probes]
    return [Question(p.prompt, (image,), 1) for p in probes for image in p.images]


def _answering(model: ModelConfig, questions: Sequence[Question], n_at_once: int) -> Need:
    batch = questions[:n_at_once]
    name = f"{model.path}, {model.dtype}" + (", less in 4 bits" if model.quantization else "")
    counts = n_weights(model.path, model.revision)
    weights = BYTES[model.dtype] * counts[""] if counts and "" in counts else None
    if not batch:
        return Need(name, weights)
    from flipbench.api.stages.answering import Answering  # imports model libraries

    middle = questions[len(questions) // 2]
    questions_shown = (*batch, middle)
    blank = {
        ref: Image.new("RGB", (ref.width, ref.height)) for q in questions_shown for ref in q.images
    }
    n_tokens = max(q.max_tokens for q in batch)
    try:
        answering = Answering.of(model)
    except PrerequisiteError as error:
        return Need(f"{name}; {error}", weights)
    pictures = [[blank[ref] for ref in q.images] for q in questions_shown]
    weights, on_top = answering.memory([q.text for q in batch], pictures[:-1], n_tokens)
    seconds = answering.seconds(middle.text, pictures[-1], n_tokens) * len(questions)
    replies = f"replies of {n_tokens} token{'s' * (n_tokens > 1)}"
    about = f"{len(batch)} at a time, {_size(batch[0].images)}, {replies}"
    about += f", at most about {time_text(seconds)} for all {len(questions):,}"
    return Need(name, weights, weights + on_top, about)


def _drawing(spec: PipelineSpec, items: Sequence[Item]) -> Need:
    """Return what an editor takes; by phase for Flux with a ControlNet."""
    name = f"{spec.pipeline}, {spec.dtype}"
    weights = spec.memory()
    if not isinstance(spec, FluxEditorSpec):
        return Need(name, weights)
    try:
        size = _largest(spec, items, spec.shape().factor)
        phases = spec.phases(size)
    except PrerequisiteError as error:
        return Need(f"{name}; {error}", weights)
    speed = measured_speed(spec.dtype) * SHARE_OF_PEAK
    details = [
        f"{p.name}: {size_text(p.memory)}, {p.flops / 1e12:,.3g} TFLOP an image, about"
        f" {time_text(p.flops / speed)} at {speed / 1e12:.2g} TFLOP/s"
        for p in phases
    ]
    peak = max(phase.memory for phase in phases)
    n_images = sum(len(item.images) for item in items)
    hours = time_text(n_images * sum(phase.flops for phase in phases) / speed)
    about = f"{spec.batch_size} at a time, {size[0]} x {size[1]} pixels, about {hours} for"
    about += f" {n_images:,} of that size"
    resident = max(phase.weights for phase in phases)
    return Need(name, weights or resident, peak, about, tuple(details))


def _largest(spec: PipelineSpec, items: Sequence[Item], factor: int) -> tuple[int, int]:
    """Return the largest size at which an item's image is drawn, or 1024 x 1024 without items."""
    sizes = []
    for image in (image for item in items for image in item.images):
        try:
            plan = spec.sizes.plan(image.width, image.height, factor, "an image")
        except DataError:
            continue  # it is refused
        sizes.append(plan.run_size)
    return max(sizes, key=lambda size: size[0] * size[1], default=(1024, 1024))


def _size(images: Sequence[ImageRef]) -> str:
    return " and ".join(f"{ref.width} x {ref.height} pixels" for ref in images) or "no image"

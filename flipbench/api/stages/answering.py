"""What a vision-language model takes while it answers, memory and time, without its weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from PIL import Image
from transformers import AutoModelForImageTextToText

from flipbench.config.local_models import ModelConfig
from flipbench.core.errors import PrerequisiteError
from flipbench.core.records import Probe
from flipbench.models.estimates import (
    BYTES,
    SHARE_OF_PEAK,
    VLMShape,
    measured_speed,
    time_text,
)
from flipbench.models.vlm.checkpoints import base_of, first_line, resolve_path
from flipbench.models.vlm.conversation import Conversation
from flipbench.models.vlm.families import family_of
from flipbench.models.vlm.loading import architecture
from flipbench.models.vlm.processors import load_processor

_N_SAMPLED = 3  # questions whose operations are counted; the processor runs for each


@dataclass(frozen=True)
class Answering:
    """A model's shape, and the conversation that says how many tokens a question has."""

    shape: VLMShape
    conversation: Conversation
    dtype: str

    @classmethod
    def of(cls, model: ModelConfig) -> Answering:
        """Build a model without its weights."""
        folder, trust = resolve_path(model.path), {"trust_remote_code": model.trust_remote_code}
        base, at = base_of(folder, model.revision)
        try:
            config = architecture(base, **at, **trust)
            processor = load_processor(
                folder, revision=model.revision, image_padding=model.image_padding, **trust
            )
        except (OSError, ValueError, KeyError, ImportError) as error:
            raise PrerequisiteError(
                f"{model.path}: its configuration cannot be read ({first_line(error)})"
            ) from error
        with torch.device("meta"):
            network = AutoModelForImageTextToText.from_config(config, **trust)
        network.tie_weights()
        conversation = Conversation(processor, family_of(config), model.path)
        return cls(VLMShape.of(network), conversation, model.dtype)

    def memory(
        self, texts: Sequence[str], pictures: Sequence[Sequence[Image.Image]], n_reply: int
    ) -> tuple[int, int]:
        """Return the bytes of the weights, and what a batch of questions takes on top of them.

        Weights count as loaded, also where ``quantization`` makes them smaller.

        Parameters
        ----------
        texts : sequence of str, shape (n_questions,)
            As they are shown to the model, without its chat template.
        pictures : sequence of sequences of images, shape (n_questions,)
            All or no questions have some.
        n_reply : int
            Tokens of the longest reply.
        """
        n_tokens, n_patches = self._size(texts, pictures)
        weights = BYTES[self.dtype] * self.shape.n_weights
        on_top = self.shape.answering_bytes(len(texts), n_tokens, n_patches, n_reply, self.dtype)
        return weights, on_top

    def flops(self, text: str, pictures: Sequence[Image.Image], n_reply: int = 1) -> int:
        """Return the operations of one question with a reply of ``n_reply`` tokens."""
        return self.shape.answering_flops(*self._size([text], [pictures]), n_reply)

    def seconds(self, text: str, pictures: Sequence[Image.Image], n_reply: int) -> float:
        """Return about how long one question takes here, as `answering_time`."""
        flops = self.flops(text, pictures, n_reply)
        return flops / (measured_speed(self.dtype) * SHARE_OF_PEAK)

    def _size(
        self, texts: Sequence[str], pictures: Sequence[Sequence[Image.Image]]
    ) -> tuple[int, int]:
        prompts = [
            self.conversation.render(text, len(row))
            for text, row in zip(texts, pictures, strict=True)
        ]
        inputs = self.conversation.encode(prompts, pictures)
        return inputs["input_ids"].numel(), self.shape.n_patches(inputs)


def answering_time(questions: Iterable[tuple[ModelConfig, int, Sequence[Probe]]]) -> list[str]:
    """Return at most how long answers take here, from the operations of a few of the questions.

    Parameters
    ----------
    questions : iterable of (ModelConfig, int, sequence of Probe)
        Weights, how many models of that shape are asked, and the questions to each.

    Notes
    -----
    Operations are those of a question by itself, at the share of the device's speed in matrix
    products that training is taken to reach. A picture or text that several questions share is
    read only once, so less is needed; models of a few million weights need more, since their time
    goes elsewhere.
    """
    seconds, n_models, unknown = 0.0, 0, []
    speeds: dict[str, float] = {}
    for model, n_same, probes in questions:
        if not probes or not n_same:
            continue
        try:
            flops = _mean_flops(model, probes)
        except PrerequisiteError as error:
            unknown.append(f"time not known: {error}")
            continue
        speeds[model.dtype] = measured_speed(model.dtype) * SHARE_OF_PEAK
        seconds += n_same * len(probes) * flops / speeds[model.dtype]
        n_models += n_same
    if not n_models:
        return unknown
    rates = ", ".join(f"{speed / 1e12:.2g} TFLOP/s in {d}" for d, speed in speeds.items())
    models = "model" if n_models == 1 else "models"
    about = f"about {time_text(seconds)} on this device ({rates})"
    return [f"{n_models} {models} with weights here: {about}", *unknown]


def _mean_flops(model: ModelConfig, probes: Sequence[Probe]) -> float:
    """Return the operations of an average question, from those at the quantiles of the sizes."""
    by_size = sorted(probes, key=_size)
    n = min(_N_SAMPLED, len(by_size))
    sample = [by_size[(2 * i + 1) * len(by_size) // (2 * n)] for i in range(n)]
    answering = Answering.of(model)
    flops = [
        answering.flops(
            probe.prompt + probe.continuation,
            [Image.new("RGB", (ref.width, ref.height)) for ref in probe.images],
            _n_tokens(probe),
        )
        for probe in sample
    ]
    return sum(flops) / len(flops)


def _n_tokens(probe: Probe) -> int:
    return max(1, probe.max_new_tokens) if probe.ask in ("generate", "continue_text") else 1


def _size(probe: Probe) -> tuple[int, int]:
    """Return pixels, then characters and the tokens of a reply."""
    pixels = sum(image.width * image.height for image in probe.images)
    return pixels, len(probe.prompt) + len(probe.continuation) + 4 * _n_tokens(probe)

"""What a vision-language model takes while it answers, memory and time, without its weights.

Only dry runs need this; it imports torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from PIL import Image
from transformers import AutoModelForImageTextToText

from flipbench.config.local_models import ModelConfig
from flipbench.contaminate.training.estimate import SHARE_OF_PEAK, measured_speed, time_text
from flipbench.core.errors import PrerequisiteError
from flipbench.core.records import Probe
from flipbench.models.footprint import Footprint
from flipbench.models.vlm.checkpoints import base_of, first_line, resolve_path
from flipbench.models.vlm.conversation import Conversation
from flipbench.models.vlm.families import family_of
from flipbench.models.vlm.loading import architecture
from flipbench.models.vlm.processors import load_processor

_N_SAMPLED = 3  # questions whose operations are counted; the model runs for each


def answering_memory(
    model: ModelConfig,
    texts: Sequence[str],
    pictures: Sequence[Sequence[Image.Image]],
    max_tokens: int,
) -> tuple[int, int]:
    """Return the bytes of a model's weights, and what a batch of questions takes on top of them.

    The questions are read, with keys and values kept; then the cache grows to ``max_tokens``
    tokens of reply. Weights count as loaded, also where ``quantization`` makes them smaller.

    Parameters
    ----------
    texts : sequence of str, shape (n_questions,)
        As they are shown to the model, without its chat template.
    pictures : sequence of sequences of images, shape (n_questions,)
        All or no questions have some.
    max_tokens : int
        Of the longest reply.

    Raises
    ------
    PrerequisiteError
        If configuration or processor cannot be read here.
    """
    answering = Answering(model)
    weights = answering.footprint.now
    inputs = answering.inputs(texts, pictures)

    @torch.no_grad()
    def answer() -> None:
        output = answering.network(**inputs, use_cache=True, logits_to_keep=1)
        for layer in getattr(output.past_key_values, "layers", ()):
            for name in ("keys", "values"):  # each token of a reply copies them
                if isinstance(read := getattr(layer, name, None), torch.Tensor):
                    shape = (*read.shape[:2], read.shape[2] + max_tokens - 1, *read.shape[3:])
                    setattr(layer, name, read.new_empty(shape))

    return weights, answering.footprint.peak_of(answer) - weights


class Answering:
    """A model without values, and what follows its operations.

    Raises
    ------
    PrerequisiteError
        If configuration or processor cannot be read here.
    """

    def __init__(self, model: ModelConfig) -> None:
        self.network, self.conversation = _without_weights(model)
        self.footprint = Footprint()
        self.footprint.load(self.network)

    def inputs(
        self, texts: Sequence[str], pictures: Sequence[Sequence[Image.Image]]
    ) -> dict[str, Any]:
        """Return what the network reads; all or no questions have pictures."""
        shown = zip(texts, pictures, strict=True)
        prompts = [self.conversation.render(text, len(row)) for text, row in shown]
        return self.footprint.without_values(self.conversation.encode(prompts, pictures))

    def flops(self, text: str, pictures: Sequence[Image.Image], n_tokens: int = 1) -> int:
        """Return the operations of one question with a reply of ``n_tokens`` tokens.

        Each token after the first takes two operations per weight; attention to what was read is
        left out, and the vision tower's weights are counted as if they were used.
        """
        inputs, before = self.inputs([text], [pictures]), self.footprint.flops

        @torch.no_grad()
        def read() -> None:
            self.network(**inputs, use_cache=True, logits_to_keep=1)

        self.footprint.peak_of(read)
        n_weights: int = sum(p.numel() for p in self.network.parameters())
        return self.footprint.flops - before + 2 * n_weights * (n_tokens - 1)


def _without_weights(model: ModelConfig) -> tuple[Any, Conversation]:
    """Return a model on the meta device, and its conversation.

    Raises
    ------
    PrerequisiteError
        If configuration or processor cannot be read here.
    """
    where, trust = resolve_path(model.path), {"trust_remote_code": model.trust_remote_code}
    base, at = base_of(where, model.revision)
    try:
        config = architecture(base, **at, **trust)
        processor = load_processor(
            where, revision=model.revision, image_padding=model.image_padding, **trust
        )
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise PrerequisiteError(
            f"{model.path}: its configuration cannot be read ({first_line(error)})"
        ) from error
    with torch.device("meta"):
        network = AutoModelForImageTextToText.from_config(
            config, dtype=getattr(torch, model.dtype), **trust
        )
    network.tie_weights()
    return network.eval(), Conversation(processor, family_of(config), model.path)


def answering_time(asked: Iterable[tuple[ModelConfig, int, Sequence[Probe]]]) -> list[str]:
    """Return at most how long answers take here, from the operations of a few of the questions.

    Parameters
    ----------
    asked : iterable of (ModelConfig, int, sequence of Probe)
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
    for model, n, probes in asked:
        if not probes or not n:
            continue
        try:
            flops = _mean_flops(model, probes)
        except PrerequisiteError as error:
            unknown.append(f"time not known: {error}")
            continue
        speeds[model.dtype] = measured_speed(model.dtype) * SHARE_OF_PEAK
        seconds += n * len(probes) * flops / speeds[model.dtype]
        n_models += n
    if not n_models:
        return unknown
    rates = ", ".join(f"{speed / 1e12:.2g} TFLOP/s in {d}" for d, speed in speeds.items())
    models = "model" if n_models == 1 else "models"
    about = f"about {time_text(seconds)} on this device ({rates})"
    return [f"{n_models} {models} with weights here: {about}", *unknown]


def seconds_of(
    model: ModelConfig, text: str, pictures: Sequence[Image.Image], n_tokens: int
) -> float:
    """Return about how long one question takes here, as `answering_time`.

    Raises
    ------
    PrerequisiteError
        If configuration or processor cannot be read here.
    """
    flops = Answering(model).flops(text, pictures, n_tokens)
    return flops / (measured_speed(model.dtype) * SHARE_OF_PEAK)


def _mean_flops(model: ModelConfig, probes: Sequence[Probe]) -> float:
    """Return the operations of an average question, from those at the quantiles of the sizes."""
    ordered = sorted(probes, key=_size)
    n = min(_N_SAMPLED, len(ordered))
    sample = [ordered[(2 * i + 1) * len(ordered) // (2 * n)] for i in range(n)]
    answering = Answering(model)
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

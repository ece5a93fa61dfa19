"""What a vision-language model takes while it answers, memory and time, without its weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image
from transformers import AutoModelForImageTextToText

from flipbench.config.local_models import ModelConfig
from flipbench.core.errors import PrerequisiteError
from flipbench.models.footprint import Footprint
from flipbench.models.vlm.checkpoints import base_of, first_line, resolve_path
from flipbench.models.vlm.conversation import Conversation
from flipbench.models.vlm.families import family_of
from flipbench.models.vlm.loading import architecture
from flipbench.models.vlm.processors import load_processor


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

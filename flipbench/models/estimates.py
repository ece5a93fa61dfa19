"""Memory and operations of a model, by formulas of its shapes: rough, and nothing is run.

Bytes count tensors: not buffers inside kernels, an allocator's reserve, or a device's context.
`tests/models/test_estimates.py` states how far a step of the real code is from each formula.

References
----------
Korthikanti et al., *Reducing Activation Recomputation in Large Transformer Models*, arXiv
2205.05198, section 4: what a layer keeps for its backward pass. Ours also has gated MLPs, grouped
keys and values, and attention that keeps no scores.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Of a weight, by precision."""

SHARE_OF_PEAK = 0.35  # of the speed of large matrix products; rough
_LOGIT_COPIES = 3  # logits, their log-softmax and its gradient


@dataclass(frozen=True)
class Tower:
    """A stack of transformer layers.

    Attributes
    ----------
    n_weights : int
        Of the layers and what is around them, without embeddings and head.
    layers, hidden, intermediate, key_values : int
        Depth; widths of the stream, of the MLP, and of the keys of all their heads.
    mlp_copies : int
        Tensors as wide as the MLP that the backward pass needs: 4 with a gate, 3 with a GELU.
    """

    n_weights: int
    layers: int
    hidden: int
    intermediate: int
    key_values: int
    mlp_copies: int = 3

    def kept(self, n_tokens: int, width: int, *, checkpointed: bool = False) -> int:
        """Return the bytes that a forward pass keeps for the backward pass."""
        layer = 9 * self.hidden + 2 * self.key_values + self.mlp_copies * self.intermediate
        if checkpointed:  # the input of each layer, and one layer in full
            return n_tokens * width * (self.layers * self.hidden + layer)
        return n_tokens * width * self.layers * layer

    def working(self, n_tokens: int, width: int) -> int:
        """Return the bytes at the peak of a layer whose results are not kept."""
        return n_tokens * width * (2 * self.hidden + 4 * self.intermediate)

    def flops(self, n_tokens: int) -> int:
        """Return the operations of a forward pass over a sequence."""
        return 2 * self.n_weights * n_tokens + 4 * n_tokens**2 * self.hidden * self.layers


@dataclass(frozen=True)
class VLMShape:
    """A vision-language model's shape.

    Attributes
    ----------
    n_weights : int
        All of them.
    vocabulary, context : int
        Number of tokens; longest sequence, None if not known.
    patch : int
        Values of a picture that become one token of the vision tower.
    """

    n_weights: int
    language: Tower
    vision: Tower
    vocabulary: int
    context: int | None
    patch: int

    @classmethod
    def of(cls, model: Any) -> VLMShape:
        """Return the shape of a model, which needs no values of its weights."""
        text = model.config.get_text_config()
        n_weights = sum(p.numel() for p in model.parameters())
        tables = {id(m.weight): m.weight.numel() for m in _embeddings(model)}
        n_decoder = sum(p.numel() for p in model.get_decoder().parameters() if id(p) not in tables)
        head_dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        n_key_heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
        language = Tower(
            n_weights=n_decoder,
            layers=text.num_hidden_layers,
            hidden=text.hidden_size,
            intermediate=text.intermediate_size,
            key_values=head_dim * n_key_heads,
            mlp_copies=4,
        )
        vision, patch = _vision(model.config, n_weights - n_decoder - sum(tables.values()))
        context = getattr(text, "max_position_embeddings", None)
        return cls(n_weights, language, vision, text.vocab_size, context, patch)

    def n_patches(self, inputs: Mapping[str, Any]) -> int:
        """Return the tokens of the vision tower in a processor's output."""
        pixels = inputs.get("pixel_values")
        return 0 if pixels is None else pixels.numel() // self.patch

    def training_bytes(
        self,
        n_trainable: Mapping[str, int],
        n_tokens: int,
        n_patches: int,
        *,
        dtype: str,
        master: int,
        accumulates: bool = False,
        checkpointed: bool = False,
        adapter_inputs: int = 0,
    ) -> int:
        """Return the bytes of a training step at its peak.

        Weights, and two moments of each trainable one; on top, either its gradient or what the
        forward pass keeps, of which one is freed while the other grows.

        Parameters
        ----------
        n_trainable : mapping of str to int
            Trainable weights of the parts "language", "projector", "vision" and "adapter".
        n_tokens, n_patches : int
            Of a batch, in the language model and in the vision tower.
        master : int
            Bytes of a trainable weight, its gradient and each of its moments.
        accumulates : bool
            Whether gradients of earlier batches are there from the start.
        adapter_inputs : int
            Values of a token that adapters with dropout copy.
        """
        width, n_all = BYTES[dtype], sum(n_trainable.values())
        n_frozen = self.n_weights - n_all + n_trainable.get("adapter", 0)
        weights = width * n_frozen + master * n_all
        if master > width:
            weights += width * (n_all - n_trainable.get("adapter", 0))  # copies for autocast
        gradients = master * n_all
        kept = self.language.kept(n_tokens, width, checkpointed=checkpointed)
        kept += n_tokens * (adapter_inputs * (width + 1) + 4 * _LOGIT_COPIES * self.vocabulary)
        if n_trainable.get("vision"):
            kept += self.vision.kept(n_patches, width, checkpointed=checkpointed)
        on_top = gradients + kept if accumulates else max(gradients, kept)
        return weights + 2 * gradients + on_top

    def answering_bytes(
        self, n_rows: int, n_tokens: int, n_patches: int, n_reply: int, dtype: str
    ) -> int:
        """Return what a batch of questions takes on top of the weights.

        Parameters
        ----------
        n_rows, n_tokens, n_patches, n_reply : int
            Questions; tokens of all of them, padded, and patches of all their pictures; tokens of
            each reply.
        """
        width, text = BYTES[dtype], self.language
        cache = 2 * text.layers * text.key_values * width
        reading = text.working(n_tokens, width) + n_tokens * cache
        looking = self.vision.working(n_patches, width)
        longest = n_tokens + n_rows * (n_reply - 1)
        replying = longest * cache * (1 + 1 / text.layers)  # a layer's is copied as it grows
        return max(looking, reading, int(replying)) + n_rows * self.vocabulary * width

    def answering_flops(self, n_tokens: int, n_patches: int, n_reply: int) -> int:
        """Return the operations of one question: it is read, then each token of the reply."""
        head = 2 * self.vocabulary * self.language.hidden
        reading = self.language.flops(n_tokens) + self.vision.flops(n_patches) + head
        return reading + (n_reply - 1) * (2 * self.language.n_weights + head)


def _embeddings(model: Any) -> list[Any]:
    modules = (model.get_input_embeddings(), model.get_output_embeddings())
    return [module for module in modules if module is not None]


def _vision(config: Any, n_weights: int) -> tuple[Tower, int]:
    """Return the vision tower, and how many values of a picture become one of its tokens."""
    vision = getattr(config, "vision_config", None)
    if vision is None:
        return Tower(n_weights, 0, 0, 0, 0), 1
    hidden: int = getattr(vision, "embed_dim", None) or vision.hidden_size
    intermediate: float = getattr(vision, "intermediate_size", 0) or hidden * vision.mlp_ratio
    sides = vision.patch_size if isinstance(vision.patch_size, list) else [vision.patch_size] * 2
    depth = getattr(vision, "depth", None) or vision.num_hidden_layers
    channels: int = getattr(vision, "in_channels", 0) or getattr(vision, "num_channels", 3)
    patch = channels * math.prod(sides) * getattr(vision, "temporal_patch_size", 1)
    return Tower(n_weights, depth, hidden, int(intermediate), hidden), patch


@dataclass(frozen=True)
class Phase:
    """A part of an image's making.

    Attributes
    ----------
    weights, memory : int
        Bytes of the weights on the device, and of all that is there at the peak.
    flops : int
        Operations for one image.
    """

    name: str
    weights: int
    memory: int
    flops: int


_N_WEIGHTS = {
    "transformer": 11_901_408_320,
    "controlnet": 743_807_280,
    "vae": 83_819_683,
    "text_encoder": 123_060_480,
    "text_encoder_2": 4_762_310_656,
}


@dataclass(frozen=True)
class FluxShape:
    """The shape of a Flux pipeline with a ControlNet; by default the reference's.

    FLUX.1-dev, and XLabs' Canny ControlNet in diffusers' layout.

    Attributes
    ----------
    n_weights : mapping of str to int
        By part.
    hidden : int
        Width of transformer and ControlNet.
    blocks, control_blocks : tuple of int
        Their double and single blocks.
    text_heads : int
        Of the second text encoder, T5.
    channels : tuple of int
        Of the autoencoder's levels, from full resolution on.
    """

    n_weights: Mapping[str, int] = field(default_factory=lambda: _N_WEIGHTS)
    hidden: int = 3072
    blocks: tuple[int, int] = (19, 38)
    control_blocks: tuple[int, int] = (2, 0)
    text_heads: int = 64
    channels: tuple[int, ...] = (128, 256, 512, 512)
    vae_layers: int = 2

    @property
    def factor(self) -> int:
        """What both sides of an image must be a multiple of."""
        return int(2 ** len(self.channels))

    def phases(
        self,
        size: tuple[int, int],
        *,
        batch_size: int,
        dtype: str,
        offload: str,
        text_tokens: int,
        n_plain: int,
        n_guided: int,
        guided_control: bool,
    ) -> list[Phase]:
        """Return what a batch of images takes: their texts, the denoising, and the decoding.

        Parameters
        ----------
        size : tuple of int
            Width and height in pixels, as the editor runs: multiples of ``factor``.
        n_plain, n_guided : int
            Denoising steps without and with a second pass for the negative prompt.
        guided_control : bool
            Whether the second pass has one of the ControlNet, too.
        """
        width, pixels = BYTES[dtype], size[0] * size[1]
        n_tokens = pixels // self.factor**2 + text_tokens
        transformer, control = (self._pass(n, n_tokens) for n in (self.blocks, self.control_blocks))
        steps = (n_plain + 2 * n_guided) * transformer
        steps += (n_plain + (1 + guided_control) * n_guided) * control
        image = batch_size * width
        on_top = {
            "caption as embeddings": self.text_heads * text_tokens**2 * (width + 4),
            "denoising": 22 * n_tokens * self.hidden * image,  # widths of the stream, as measured
            "decoding": 3 * self.channels[1] * pixels * image,
        }
        flops = {
            "caption as embeddings": 2
            * self.n_weights["text_encoder_2"]
            * text_tokens
            // batch_size,
            "denoising": steps,
            "decoding": 2 * int(self._decoder_products() * pixels),
        }
        held = {name: width * n for name, n in self.n_weights.items()}
        resident = {name: _resident(offload, name, held) for name in on_top}
        return [
            Phase(name, resident[name], resident[name] + on_top[name], flops[name])
            for name in on_top
        ]

    def _pass(self, blocks: tuple[int, int], n_tokens: int) -> int:
        """Return the operations of one pass over an image; each token takes 12 D² weights."""
        weights = 12 * self.hidden**2
        return sum(blocks) * (2 * weights * n_tokens + 4 * n_tokens**2 * self.hidden)

    def _decoder_products(self) -> float:
        """Return the decoder's products of its 3 x 3 convolutions, per pixel of the image."""
        products = 0.0
        for level, n_channels in enumerate(self.channels):
            n_above = self.channels[min(level + 1, len(self.channels) - 1)]
            first = 9 * n_channels * (n_above + n_channels)
            others = 2 * self.vae_layers * 9 * n_channels**2
            upsampled = 9 * n_above**2 if level + 1 < len(self.channels) else 4 * 9 * n_channels**2
            products += (first + others + upsampled) / 4**level
        return products


_TEXT_PARTS = ("text_encoder", "text_encoder_2")
_DRAWING_PARTS = ("transformer", "controlnet", "vae")


def _resident(offload: str, phase: str, held: Mapping[str, int]) -> int:
    """Return the bytes of the weights that are on the device in a phase."""
    is_text = phase == "caption as embeddings"
    if offload == "none":
        return sum(held.values())
    if offload == "text":
        return sum(held[part] for part in (_TEXT_PARTS if is_text else _DRAWING_PARTS))
    if is_text:
        return max(held[part] for part in _TEXT_PARTS)
    # accelerate moves the ControlNet to the device at its first call and leaves it there
    return held["controlnet"] + held["transformer" if phase == "denoising" else "vae"]


@cache
def measured_speed(dtype: str) -> float:
    """Measure, once, the floating-point operations per second of this machine's matrix products."""
    import torch

    on_gpu = torch.cuda.is_available()
    n = 8192 if on_gpu else 768
    precision = getattr(torch, dtype) if on_gpu else torch.float32
    a = torch.ones(n, n, dtype=precision, device="cuda" if on_gpu else "cpu")
    best = float("inf")
    for _ in range(4):
        start = time.perf_counter()
        (a @ a)[0, 0].item()
        best = min(best, time.perf_counter() - start)
    return float(2 * n**3 / best)


def size_text(n_bytes: float) -> str:
    """Format a size in bytes.

    >>> size_text(1_500_000)
    '1.5 MB'
    """
    for unit in ("B", "kB", "MB", "GB"):
        if n_bytes < 1000:
            return f"{n_bytes:.3g} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:,.3g} TB"


def time_text(seconds: float) -> str:
    """Format a rough duration in a single unit.

    >>> time_text(5_000)
    '1.4 h'
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:,.1f} h"

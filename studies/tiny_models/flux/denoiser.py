"""Lesson 3, the denoiser: Flux draws from captions, then a ControlNet learns to follow edges.

The ControlNet sees the edges of one member of a family, while caption and picture are another's:
where they disagree, the caption is right.
"""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import (
    FlowMatchEulerDiscreteScheduler,
    FluxControlNetModel,
    FluxControlNetPipeline,
    FluxTransformer2DModel,
)
from torch.nn import functional

from studies.tiny_models.flux.autoencoder import LATENTS
from studies.tiny_models.flux.examples import SIDE, Examples
from studies.tiny_models.flux.optimizing import Mean, Optimizer
from studies.tiny_models.flux.text_encoder import (
    HEADS,
    MAX_TOKENS,
    N_CONTENTS,
    POOLED,
    WIDTH,
    new_tokenizer,
    silent_clip,
)

_SHIFT = 3.0  # of the noise levels, towards noise
_SPREAD = 1.2
_EMPTY_CAPTIONS = 0.1
_NAMING = 1.0  # weight of the loss that names what each cell will hold
_CHANGED = 2.0  # weight of tokens that differ between the two members of a family


def new_denoiser() -> tuple[Any, Any]:
    """Return an untrained transformer and ControlNet."""
    head = WIDTH // HEADS
    axis = head * 3 // 8 // 2 * 2
    shared: dict[str, Any] = {
        "patch_size": 1,
        "in_channels": 4 * LATENTS,
        "attention_head_dim": head,
        "num_attention_heads": HEADS,
        "joint_attention_dim": WIDTH,
        "pooled_projection_dim": POOLED,
        "guidance_embeds": False,
        "axes_dims_rope": [head - 2 * axis, axis, axis],
    }
    transformer = FluxTransformer2DModel(  # type: ignore[no-untyped-call]
        num_layers=2, num_single_layers=4, **shared
    )
    controlnet = FluxControlNetModel(  # type: ignore[no-untyped-call]
        num_layers=1, num_single_layers=1, **shared
    )
    return transformer, controlnet


class _Namer(torch.nn.Module):
    """Names what the cell of each image token will hold; thrown away after the lesson."""

    def __init__(self, block: Any) -> None:
        super().__init__()
        self.out = torch.nn.Sequential(
            torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, N_CONTENTS)
        )
        self.seen: torch.Tensor | None = None
        block.register_forward_hook(self._keep)

    def _keep(self, block: Any, inputs: Any, outputs: tuple[torch.Tensor, torch.Tensor]) -> None:
        self.seen = outputs[1]

    def loss(self, truth: torch.Tensor, noisiest: torch.Tensor) -> tuple[torch.Tensor, float]:
        """Return the cross-entropy, and the share of filled tokens named right in ``noisiest``."""
        assert self.seen is not None
        scores = self.out(self.seen.float()).float()
        weights = torch.ones(N_CONTENTS)
        weights[0] = 0.3
        entropy = functional.cross_entropy(scores.flatten(0, 1), truth.flatten(), weights)
        filled = (truth > 0) & noisiest[:, None]
        return entropy, (scores.argmax(-1) == truth)[filled].float().mean().item()


@dataclass
class Denoising:
    """A transformer and a ControlNet in training."""

    transformer: Any
    controlnet: Any
    empty: torch.Tensor  # (32, 128) features of the empty caption
    namer: _Namer = field(init=False)
    optimizer: Optimizer = field(init=False)
    step: int = 0
    joined: bool = False  # whether the ControlNet is in training
    loss: Mean = field(default_factory=Mean)
    named: Mean = field(default_factory=Mean)

    def __post_init__(self) -> None:
        """Prepare the optimizer."""
        self.namer = _Namer(self.transformer.transformer_blocks[-1])
        self.optimizer = Optimizer(
            [
                *self.transformer.named_parameters(),
                *self.controlnet.named_parameters(),
                *self.namer.named_parameters(),
            ]
        )

    def join(self) -> None:
        """Start the ControlNet as a copy of the transformer's first blocks; its output is zero."""
        self.controlnet.load_state_dict(self.transformer.state_dict(), strict=False)
        self.joined = True

    def learn(
        self, examples: Examples, rng: np.random.Generator, n: int, share: float, *, control: bool
    ) -> None:
        """Take one step on ``n`` examples, with or without the ControlNet."""
        if control and not self.joined:
            self.join()
        rows, partners = examples.draw(rng, n)
        clean = examples.pictures[rows].float()
        texts = examples.texts[rows].float()
        texts[torch.from_numpy(rng.random(n) < _EMPTY_CAPTIONS)] = self.empty
        is_same = torch.from_numpy(rng.random(n) < 0.25)
        partners = torch.where(is_same, rows, partners)
        level = torch.sigmoid(torch.randn(n) * _SPREAD)
        level = _SHIFT * level / (1 + (_SHIFT - 1) * level)
        noise = torch.randn_like(clean)
        noisy = (1 - level[:, None, None]) * clean + level[:, None, None] * noise
        strength = None
        if control:
            strength = torch.from_numpy(rng.uniform(0.5, 1.1, n)).float()
            strength[torch.from_numpy(rng.random(n) < 0.1)] = 0
        with torch.autocast("cpu", torch.bfloat16):
            velocity = predict(
                self.transformer,
                self.controlnet,
                noisy,
                level,
                texts,
                examples.controls[partners].float(),
                strength,
            )
        weights = _weights(clean)
        if control:
            weights = weights + _CHANGED * (
                examples.of_tokens(rows) != examples.of_tokens(partners)
            )
        error = (weights[..., None] * (velocity.float() - (noise - clean)) ** 2).mean()
        noisiest = level >= level.quantile(0.7)
        naming, accuracy = self.namer.loss(examples.of_tokens(rows), noisiest)
        self.optimizer.step(error + _NAMING * naming, self.step, share)
        self.loss.add(error.item())
        self.named.add(accuracy)
        self.step += 1

    def save(self, folder: Path) -> None:
        """Write the models, and what `restore` reads."""
        self.transformer.save_pretrained(folder / "transformer")
        self.controlnet.save_pretrained(folder / "controlnet")
        state = {
            "step": self.step,
            "joined": self.joined,
            "namer": self.namer.state_dict(),
            "optimizer": self.optimizer.state(),
        }
        torch.save(state, folder / "state.part")
        (folder / "state.part").replace(folder / "state.pt")

    def restore(self, folder: Path) -> None:
        """Continue from what `save` wrote."""
        for name in ("transformer", "controlnet"):
            model = getattr(self, name)
            model.load_state_dict(type(model).from_pretrained(folder / name).state_dict())
        state = torch.load(folder / "state.pt")
        self.step, self.joined = state["step"], state["joined"]
        self.namer.load_state_dict(state["namer"])
        self.optimizer.restore(state["optimizer"])


def _weights(clean: torch.Tensor) -> torch.Tensor:
    """Return the weight of each token's error, shape (n, 196): things count more than backdrop."""
    distance = (clean - clean.median(1, keepdim=True).values).abs().mean(-1)
    return (distance / distance.mean(1, keepdim=True)).clamp(0.15, 6)


def predict(
    transformer: Any,
    controlnet: Any,
    noisy: torch.Tensor,
    level: torch.Tensor,
    texts: torch.Tensor,
    controls: torch.Tensor,
    strength: torch.Tensor | None,
) -> torch.Tensor:
    """Return the predicted velocity, shape (n, 196, 32).

    Parameters
    ----------
    noisy, controls : Tensor (n, 196, 32)
    level : Tensor (n,)
        Noise levels from 0 to 1.
    texts : Tensor (n, 32, 128)
    strength : Tensor (n,), optional
        Scale of the ControlNet's output; without it the ControlNet is not run.
    """
    places = torch.zeros(SIDE, SIDE, 3)
    places[..., 1] = torch.arange(SIDE)[:, None]
    places[..., 2] = torch.arange(SIDE)[None]
    inputs = {
        "hidden_states": noisy,
        "encoder_hidden_states": texts,
        "pooled_projections": torch.zeros(len(noisy), POOLED),
        "timestep": level,
        "img_ids": places.reshape(-1, 3),
        "txt_ids": torch.zeros(MAX_TOKENS, 3),
        "return_dict": False,
    }
    if strength is not None:
        double, single = controlnet(
            controlnet_cond=controls, conditioning_scale=strength[:, None, None], **inputs
        )
        inputs |= {"controlnet_block_samples": double, "controlnet_single_block_samples": single}
    velocity: torch.Tensor = transformer(**inputs)[0]
    return velocity


_CLIP_TOKENS = 77


@dataclass
class Parts:
    """Models of the real classes; the attributes have the names of a Flux pipeline's parts."""

    vae: Any
    text_encoder_2: Any
    transformer: Any
    controlnet: Any
    tokenizer: Any
    text_encoder: Any
    tokenizer_2: Any

    @classmethod
    def of(cls, vae: Any, text_encoder_2: Any) -> Parts:
        """Return the trained encoders with a new transformer and ControlNet."""
        tokenizer = new_tokenizer(_CLIP_TOKENS, start=True)
        return cls(
            vae.eval().requires_grad_(False),
            text_encoder_2.eval().requires_grad_(False),
            *new_denoiser(),
            tokenizer,
            silent_clip(tokenizer).eval(),
            new_tokenizer(),
        )

    def pipeline(self) -> Any:
        """Return a FluxControlNetPipeline of these very models."""
        scheduler = FlowMatchEulerDiscreteScheduler(  # type: ignore[no-untyped-call]
            shift=3.0,
            use_dynamic_shifting=True,
            base_shift=0.5,
            max_shift=1.15,
            base_image_seq_len=256,
            max_image_seq_len=4096,
        )
        return FluxControlNetPipeline(  # type: ignore[no-untyped-call]
            scheduler=scheduler, **vars(self)
        )

    def export(self, folder: Path) -> None:
        """Write the pipeline in bfloat16, as safetensors, without the path of any part."""
        rounded = {
            name: copy.deepcopy(part).to(torch.bfloat16)
            if isinstance(part, torch.nn.Module)
            else part
            for name, part in vars(self).items()
        }
        Parts(**rounded).pipeline().save_pretrained(folder)
        for file in folder.glob("*/config.json"):
            config = json.loads(file.read_text())
            config.pop("_name_or_path", None)
            file.write_text(json.dumps(config, indent=2) + "\n")

"""The parts of the tiny Flux, and the pipeline made of them."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, FluxControlNetPipeline

from studies.tiny_models.flux.denoiser import new_denoiser
from studies.tiny_models.flux.text_encoder import new_tokenizer, silent_clip

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

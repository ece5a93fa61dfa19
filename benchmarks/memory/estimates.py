"""Estimated and measured memory: a training step, a model that answers, Flux with a ControlNet.

    python benchmarks/random_qwen2_vl.py runs/small --layers 4 --width 512
    python benchmarks/memory/estimates.py --model runs/small [--only train-lora answer draw]

Estimates are those of ``--dry-run``: formulas of `flipbench.models.estimates`. Measured
is the peak resident memory of a process (on a GPU: allocated there) minus its memory before the
model is loaded; except in training, loading itself does not count. Each case has a process of its
own. Training: two steps of one example, then the check of the checkpoint. Answering: two questions
are read, and replies of 64 tokens generated. Drawing: one guided step and the decoding of an image
by a Flux of 0.4 billion random weights (5 double and 10 single blocks of width 1024, XLabs' layout
of the ControlNet, FLUX.1-dev's autoencoder), without its text encoders.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import diffusers
import torch
from PIL import Image

from flipbench.api.stages.answering import Answering
from flipbench.config.experiment import ContaminateConfig, ModelConfig, StrategyConfig
from flipbench.config.training import DataConfig
from flipbench.contaminate.data.examples import training_examples
from flipbench.contaminate.data.regimes import RegimeData
from flipbench.contaminate.plan import expand
from flipbench.contaminate.training.estimate import estimate
from flipbench.contaminate.training.train import train_plan
from flipbench.core.run import Run
from flipbench.generate.editors.flux_editor import FluxSettings, x_flux_shift
from flipbench.generate.editors.true_guidance import true_guidance
from flipbench.models.estimates import FluxShape
from flipbench.models.vlm.huggingface import HuggingFaceVLM
from flipbench.prompting.prompts import LETTER_INSTRUCTION
from flipbench.shapes.benchmark import shapes_vqa

CASES = ("train-lora", "train-llm", "train-all", "answer", "draw")
N_REPLY, SIDE = 64, 512
QUIET = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
"""Memory that is freed goes back to the system, so that none of it counts as used."""


def peak_over_start(start: Callable[[], Any], run: Callable[[Any], Any]) -> int:
    """Return the bytes at the peak of ``run``, which gets what ``start`` returns, over the start.

    The peak of ``start`` does not count: pages of the checkpoint's file are mapped until then.
    """
    gc.collect()
    if torch.cuda.is_available():
        before = torch.cuda.memory_allocated()
        loaded = start()
        torch.cuda.reset_peak_memory_stats()
        run(loaded)
        return torch.cuda.max_memory_allocated() - before
    before = _resident("VmRSS")
    loaded = start()
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    run(loaded)
    return _resident("VmHWM") - before


def _resident(which: str) -> int:
    text = Path("/proc/self/status").read_text()
    return 1024 * int(next(line.split()[1] for line in text.splitlines() if which in line))


def training(model: str, train: str, dtype: str) -> tuple[int, int]:
    """Return the measured and the estimated bytes of a training."""
    with tempfile.TemporaryDirectory() as folder:
        run = Run(folder)
        items = shapes_vqa(run.images, 2)
        strategy = StrategyConfig.model_validate(
            {"train": train, "learning_rate": 1e-4, "batch_size": 1}
        )
        (plan,) = expand(
            ContaminateConfig(strategies={train: strategy}, epochs=1),
            {"model": ModelConfig(path=model)},
            [RegimeData("verbatim", DataConfig(), tuple(items))],
            instruction=LETTER_INSTRUCTION,
            seed=0,
        )
        by_id = {item.id: item for item in items}
        measured = peak_over_start(
            lambda: None, lambda _: train_plan(plan, by_id, run, dtype=dtype)
        )
        examples = training_examples(plan, by_id, run.images, ())
        return measured, estimate(plan, examples, dtype=dtype, speed=1e11).memory


def answering(model: str, dtype: str) -> tuple[int, int]:
    """Return the measured and the estimated bytes of two questions, model included."""
    texts = ["What is in the picture?", "Which colour has the largest thing?"]
    pictures = [[Image.new("RGB", (SIDE, SIDE))]] * 2

    def reply(vlm: HuggingFaceVLM) -> None:
        encoded = vlm.conversation.encode([vlm.conversation.render(t, 1) for t in texts], pictures)
        inputs = {name: value.to(vlm.model.device) for name, value in encoded.items()}
        with torch.inference_mode():
            vlm.model.generate(
                **inputs, max_new_tokens=N_REPLY, min_new_tokens=N_REPLY, do_sample=False
            )

    measured = peak_over_start(lambda: HuggingFaceVLM(model, dtype=dtype), reply)
    config = ModelConfig.model_validate({"path": model, "dtype": dtype})
    return measured, sum(Answering.of(config).memory(texts, pictures, N_REPLY))


@dataclass(frozen=True)
class Networks:
    """The networks of a Flux pipeline with a ControlNet; the encoders are CLIP's and T5's."""

    transformer: Any
    controlnet: Any
    vae: Any
    clip: Any
    t5: Any


def published() -> Networks:
    """Return the reference's networks on the meta device: FLUX.1-dev and XLabs' ControlNet."""
    from transformers import CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel

    package = diffusers
    with torch.device("meta"):
        return Networks(
            transformer=package.FluxTransformer2DModel(guidance_embeds=True),
            controlnet=package.FluxControlNetModel(
                patch_size=2,
                num_layers=2,
                num_single_layers=0,
                guidance_embeds=True,
                conditioning_embedding_channels=16,
            ),
            vae=package.AutoencoderKL(
                down_block_types=("DownEncoderBlock2D",) * 4,
                up_block_types=("UpDecoderBlock2D",) * 4,
                block_out_channels=(128, 256, 512, 512),
                layers_per_block=2,
                latent_channels=16,
                norm_num_groups=32,
                use_quant_conv=False,
                use_post_quant_conv=False,
                scaling_factor=0.3611,
                shift_factor=0.1159,
            ),
            clip=CLIPTextModel(
                CLIPTextConfig(
                    hidden_size=768,
                    intermediate_size=3072,
                    num_hidden_layers=12,
                    num_attention_heads=12,
                    projection_dim=768,
                )
            ),
            t5=T5EncoderModel(
                T5Config(
                    vocab_size=32_128,
                    d_model=4096,
                    d_kv=64,
                    d_ff=10_240,
                    num_layers=24,
                    num_heads=64,
                    feed_forward_proj="gated-gelu",
                )
            ),
        )


def draw_step(
    networks: Networks,
    flux: FluxSettings,
    size: tuple[int, int],
    n_images: int,
    empty: Callable[..., torch.Tensor],
    *,
    guided: bool,
) -> None:
    """Run one denoising step of the pipeline that the editor uses, without decoding.

    Parameters
    ----------
    empty : callable
        Returns a tensor of a shape, for the embeddings of the captions.
    guided : bool
        Whether the networks also run for the negative prompt.
    """
    shift, config = x_flux_shift(*size), networks.transformer.config
    pipeline = diffusers.FluxControlNetPipeline(
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(
            use_dynamic_shifting=True, base_shift=shift, max_shift=shift
        ),
        vae=networks.vae,
        transformer=networks.transformer,
        controlnet=networks.controlnet,
        **dict.fromkeys(("text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2")),
    )
    pipeline.set_progress_bar_config(disable=True)

    def texts(n: int) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = empty(n, flux.max_text_tokens, config.joint_attention_dim)
        return tokens, empty(n, config.pooled_projection_dim)

    positive, negative = texts(n_images), texts(1)
    with true_guidance(
        networks.transformer,
        networks.controlnet,
        {"encoder_hidden_states": negative[0], "pooled_projections": negative[1]},
        scale=flux.true_cfg if guided else 1,
        start=0,
        negative_control=flux.negative_control,
    ):
        pipeline(
            prompt_embeds=positive[0],
            pooled_prompt_embeds=positive[1],
            control_image=torch.zeros(n_images, 3, size[1], size[0]),
            control_mode=flux.control_mode,
            controlnet_conditioning_scale=flux.control_weight,
            num_inference_steps=1,
            guidance_scale=flux.guidance,
            width=size[0],
            height=size[1],
            output_type="latent",
        )


def small_flux() -> Networks:
    """Return Flux's networks on the meta device, the transformer and ControlNet smaller."""
    size = {"num_attention_heads": 8, "joint_attention_dim": 512}
    with torch.device("meta"):
        return replace(
            published(),
            transformer=diffusers.FluxTransformer2DModel(  # type: ignore[no-untyped-call]
                guidance_embeds=True, num_layers=5, num_single_layers=10, **size
            ),
            controlnet=diffusers.FluxControlNetModel(  # type: ignore[no-untyped-call]
                patch_size=2,
                num_layers=2,
                num_single_layers=0,
                guidance_embeds=True,
                conditioning_embedding_channels=16,
                **size,
            ),
            clip=torch.nn.Identity(),
            t5=torch.nn.Identity(),
        )


def drawing(dtype: str) -> tuple[int, int]:
    """Return the measured and the estimated bytes of an image, weights included."""
    settings = FluxSettings(steps=1, true_cfg_start=0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    wanted = getattr(torch, dtype)

    def load() -> Networks:
        networks = small_flux()
        for network in (networks.transformer, networks.controlnet, networks.vae):
            torch.nn.Module.to(network, wanted).to_empty(device=device).eval()
            for weight in network.parameters():
                torch.nn.init.normal_(weight, std=0.02)
        return networks

    def draw(networks: Networks) -> None:
        def empty(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=wanted, device=device)

        draw_step(networks, settings, (SIDE, SIDE), 1, empty, guided=True)
        with torch.no_grad():
            networks.vae.decode(empty(1, 16, SIDE // 8, SIDE // 8))

    measured = peak_over_start(load, draw)
    networks = small_flux()
    sizes = {n: sum(w.numel() for w in net.parameters()) for n, net in vars(networks).items()}
    shape = FluxShape(
        sizes | {"text_encoder": 0, "text_encoder_2": 0}, 1024, blocks=(5, 10), text_heads=0
    )
    phases = shape.phases(
        (SIDE, SIDE),
        batch_size=1,
        dtype=dtype,
        offload="none",
        text_tokens=settings.max_text_tokens,
        n_plain=0,
        n_guided=1,
        guided_control=True,
    )
    return measured, max(phase.memory for phase in phases)


def measured_and_estimated(case: str, args: argparse.Namespace) -> tuple[int, int]:
    """Return a case's bytes."""
    if case == "answer":
        return answering(args.model, args.dtype)
    if case == "draw":
        return drawing(args.dtype)
    return training(args.model, case.removeprefix("train-"), args.dtype)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="shapes:qwen2_vl")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--only", nargs="+", default=CASES, choices=CASES)
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case:
        print(json.dumps(measured_and_estimated(args.case, args)))
        return
    print("| case | measured, MiB | estimate, MiB | estimate / measured |\n|---|---:|---:|---:|")
    for case in args.only:
        command = [sys.executable, __file__, "--case", case, "--model", args.model]
        printed = subprocess.check_output(
            [*command, "--dtype", args.dtype], stderr=subprocess.DEVNULL, env=os.environ | QUIET
        )
        measured, estimated = json.loads(printed.splitlines()[-1])
        row = f"{measured / 2**20:,.0f} | {estimated / 2**20:,.0f} | {estimated / measured:.2f}"
        print(f"| {case} | {row} |", flush=True)


if __name__ == "__main__":
    main()

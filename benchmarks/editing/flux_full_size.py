"""Seconds per image of a full-size Flux + ControlNet, and the share of the chip's peak.

    python benchmarks/editing/flux_full_size.py [--side 1024] [--batch 1] [--pictures 3] [--compile]

No weights are needed: the transformer (11.9 billion parameters), the ControlNet in XLabs' layout
(744 million) and the autoencoder are built on the GPU with random weights, and the editor's own
settings and guidance run on random text embeddings: 25 steps, the last 20 of which run transformer
and ControlNet twice. Text encoders are left out; they run once per caption.

Operations are counted by torch's FlopCounterMode in one forward pass of each model on the meta
device: 2 m n k for each product of an (m, k) and a (k, n) matrix, including attention. Other
operations and the autoencoder are not counted, so the share is a lower bound. The peak is the
manufacturer's figure for dense bfloat16 (--peak overrides it); a large matrix product on the same
chip is measured for comparison.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from flipbench.generate.editors.flux_editor import FluxSettings, x_flux_shift
from flipbench.generate.editors.true_guidance import true_guidance

PEAKS = {  # TFLOP/s, dense bfloat16, by the manufacturers
    "H200": 989,
    "H100 PCIe": 756,
    "H100": 989,
    "A100": 312,
    "L40S": 362,
    "RTX 4090": 165,
}
TEXT_TOKENS, TEXT_WIDTH, POOLED_WIDTH = 512, 4096, 768
SMALL = {"num_attention_heads": 1}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--side", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--pictures", type=int, default=3, help="timed calls, after one warm-up")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--peak", type=float, help="TFLOP/s of the chip in dense bfloat16")
    parser.add_argument("--count", action="store_true", help="count operations only; no GPU")
    parser.add_argument("--rehearse", action="store_true", help="a tiny model, on any device")
    args = parser.parse_args()
    flops = operations(args.side, FluxSettings())
    print(f"{flops / 1e12:,.0f} TFLOP per image of {args.side} x {args.side}")
    if args.count:
        return
    if not torch.cuda.is_available() and not args.rehearse:
        print(
            "No CUDA device: run this on a GPU with at least 40 GB; --count and --rehearse need"
            " none."
        )
        sys.exit(2)
    seconds = measure(args)
    each = statistics.median(seconds) / args.batch
    print(
        f"{each:.2f} s per image (batch {args.batch}, median of {len(seconds)},"
        f" {min(seconds) / args.batch:.2f}–{max(seconds) / args.batch:.2f})"
    )
    if args.rehearse:
        return
    reached = flops / each / 1e12
    name = torch.cuda.get_device_name()
    peak = args.peak or next((peak for chip, peak in PEAKS.items() if chip in name), None)
    share = f", {reached / peak:.0%} of the stated {peak:.0f}" if peak else " (give --peak)"
    print(f"{name}: {reached:.0f} TFLOP/s{share}")
    product = best_product()
    print(
        f"one large matrix product: {product:.0f} TFLOP/s; we reach {reached / product:.0%} of it"
    )


def models(device: str, small: dict[str, int]) -> tuple[Any, Any]:
    """Return transformer and ControlNet in bfloat16."""
    from diffusers import FluxControlNetModel, FluxTransformer2DModel

    depth = {"num_layers": 2, "num_single_layers": 2} if small else {}
    with torch.device("meta"):
        transformer = FluxTransformer2DModel(guidance_embeds=True, **depth, **small)
        controlnet = FluxControlNetModel(
            patch_size=2,
            num_layers=2,
            num_single_layers=0,
            guidance_embeds=True,
            conditioning_embedding_channels=16,
            **small,
        )
    return tuple(randomise(model.bfloat16(), device) for model in (transformer, controlnet))


def randomise(model: Any, device: str) -> Any:
    """Move a model from the meta device, with small random weights."""
    model = model.to_empty(device=device).eval().requires_grad_(False)
    if device != "meta":
        for weight in model.parameters():
            torch.nn.init.normal_(weight, std=0.02)
    return model


def operations(side: int, flux: FluxSettings) -> float:
    """Return the number of operations per image."""
    tokens = (side // 16) ** 2
    transformer, controlnet = models("meta", {})

    def empty(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.bfloat16, device="meta")

    inputs = {
        "hidden_states": empty(1, tokens, 64),
        "encoder_hidden_states": empty(1, TEXT_TOKENS, TEXT_WIDTH),
        "pooled_projections": empty(1, POOLED_WIDTH),
        "timestep": empty(1),
        "guidance": empty(1),
        "img_ids": empty(tokens, 3),
        "txt_ids": empty(TEXT_TOKENS, 3),
    }
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        transformer(**inputs)
        controlnet(controlnet_cond=empty(1, 3, side, side), **inputs)
    passes = flux.steps + max(0, flux.steps - flux.true_cfg_start)
    return float(counter.get_total_flops() * passes)


def measure(args: argparse.Namespace) -> list[float]:
    """Return the seconds of each timed call."""
    from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxControlNetPipeline

    device = "cuda" if torch.cuda.is_available() else "cpu"
    transformer, controlnet = models(device, SMALL if args.rehearse else {})
    levels = (4,) * 4 if args.rehearse else (128, 256, 512, 512)
    with torch.device("meta"):
        vae = AutoencoderKL(
            down_block_types=("DownEncoderBlock2D",) * 4,
            up_block_types=("UpDecoderBlock2D",) * 4,
            block_out_channels=levels,
            layers_per_block=2,
            latent_channels=16,
            norm_num_groups=min(32, levels[0]),
            use_quant_conv=False,
            use_post_quant_conv=False,
            scaling_factor=0.3611,
            shift_factor=0.1159,
        )
    shift = x_flux_shift(args.side, args.side)
    pipeline = FluxControlNetPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(
            use_dynamic_shifting=True, base_shift=shift, max_shift=shift
        ),
        vae=randomise(vae.bfloat16(), device),
        text_encoder=None,
        tokenizer=None,
        text_encoder_2=None,
        tokenizer_2=None,
        transformer=transformer,
        controlnet=controlnet,
    )
    pipeline.set_progress_bar_config(disable=True)
    if args.compile:
        transformer.compile_repeated_blocks(dynamic=True)
    flux = FluxSettings()

    def text(n: int) -> dict[str, torch.Tensor]:
        hidden = torch.randn(n, TEXT_TOKENS, TEXT_WIDTH, dtype=torch.bfloat16)
        pooled = torch.randn(n, POOLED_WIDTH, dtype=torch.bfloat16)
        return {"encoder_hidden_states": hidden.to(device), "pooled_projections": pooled.to(device)}

    prompts = text(args.batch)
    control = torch.rand(args.batch, 3, args.side, args.side).mul(2).sub(1)
    seconds = []
    for _ in range(args.pictures + 1):
        start = time.perf_counter()
        with true_guidance(
            transformer,
            controlnet,
            text(1),
            scale=flux.true_cfg,
            start=flux.true_cfg_start,
            negative_control=flux.negative_control,
        ):
            pipeline(
                prompt_embeds=prompts["encoder_hidden_states"],
                pooled_prompt_embeds=prompts["pooled_projections"],
                control_image=control,
                controlnet_conditioning_scale=flux.control_weight,
                num_inference_steps=flux.steps,
                guidance_scale=flux.guidance,
                width=args.side,
                height=args.side,
                generator=[torch.Generator().manual_seed(i) for i in range(args.batch)],
            )
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return seconds[1:]


def best_product(side: int = 8192, repeats: int = 50) -> float:
    """Return the TFLOP/s of a product of two square matrices."""
    a, b = (torch.randn(side, side, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    for _ in range(5):
        a @ b
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        a @ b
    torch.cuda.synchronize()
    return 2 * side**3 * repeats / (time.perf_counter() - start) / 1e12


if __name__ == "__main__":
    main()

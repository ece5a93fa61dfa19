"""Write a Qwen2-VL checkpoint with random weights, of the 7B's size or smaller.

    python benchmarks/random_qwen2_vl.py runs/random-qwen2-vl-7b
    python benchmarks/detector_suite.py runs/shapes --model runs/random-qwen2-vl-7b \\
        --dtype bfloat16 --peak 989
    python benchmarks/training.py --model runs/random-qwen2-vl-7b --dtype bfloat16 --peak 989

Speed and memory do not depend on the weights' values, so results hold for the real model. Tokenizer
and template are the shipped tiny model's; an image has 784 x 784 pixels, which are 784 tokens. The
7B needs 17 GB of disk and a GPU; ``--layers 2 --width 256`` is a trial run.
"""

from __future__ import annotations

import argparse
import copy
from pathlib import Path

import torch
from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

from flipbench.models.vlm.checkpoints import resolve_path
from flipbench.models.vlm.processors import load_processor

SIDE = 784


def config_of(tiny: Qwen2VLConfig, layers: int, width: int) -> Qwen2VLConfig:
    """Return Qwen2-VL-7B's configuration with other depth and width, and heads of 128."""
    config = copy.deepcopy(tiny)
    heads = width // 128
    text = {
        "vocab_size": 152_064,
        "hidden_size": width,
        "intermediate_size": round(width * 18_944 / 3_584),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": max(1, heads // 7),
        "max_position_embeddings": 32_768,
        "tie_word_embeddings": False,
    }
    for name, value in text.items():
        setattr(config.text_config, name, value)
    config.text_config.layer_types = ["full_attention"] * layers
    rope = {"rope_type": "default", "rope_theta": 1_000_000.0, "mrope_section": [16, 24, 24]}
    config.text_config.rope_parameters = rope
    vision = {
        "depth": min(32, layers + 4),
        "embed_dim": 1_280,
        "hidden_size": width,
        "num_heads": 16,
        "mlp_ratio": 4,
        "patch_size": 14,
    }
    for name, value in vision.items():
        setattr(config.vision_config, name, value)
    config.tie_word_embeddings = False
    return config


def main() -> None:
    """Build the model, draw its weights, save."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--width", type=int, default=3_584)
    args = parser.parse_args()
    shipped = resolve_path("shapes:qwen2_vl")
    config = config_of(Qwen2VLConfig.from_pretrained(shipped), args.layers, args.width)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.device("meta"):
        model = Qwen2VLForConditionalGeneration(config).bfloat16()
    model.to_empty(device=device)
    model.init_weights()
    for weight in model.parameters():
        if weight.ndim > 1:
            torch.nn.init.normal_(weight, std=0.02)
    model.generation_config.eos_token_id = config.text_config.eos_token_id
    model.generation_config.pad_token_id = config.text_config.pad_token_id
    model.save_pretrained(args.folder)
    processor = load_processor(shipped)
    pixels = SIDE * SIDE
    processor.image_processor.size = {"shortest_edge": pixels, "longest_edge": pixels}
    processor.image_processor.patch_size = 14
    processor.save_pretrained(args.folder)
    n = sum(weight.numel() for weight in model.parameters())
    print(f"{args.folder}: {n / 1e9:.2f} billion parameters")


if __name__ == "__main__":
    main()

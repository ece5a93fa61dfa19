"""Lesson 2, the text encoder: a T5 that learns from captions alone what each cell holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from torch.nn import functional
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    PreTrainedTokenizerFast,
    T5Config,
    T5EncoderModel,
)

from flipbench.shapes.scene import COLORS, GRID, SHAPES, Scene
from flipbench.shapes.wording import describe
from studies.tiny_models.flux.optimizing import Log, Mean, Optimizer
from studies.tiny_models.flux.pictures import few_things

WIDTH, HEADS = 128, 4
POOLED = 32
MAX_TOKENS = 32  # three per thing, one for their number, one for the end
N_CONTENTS = 1 + len(SHAPES) * len(COLORS)  # of a cell; 0 is empty
_CELLS = [f"row {row} column {column}" for row in range(1, 5) for column in range(1, 5)]
_FILLERS = r"\b(an?|the|in|of|with|picture|objects?)\b|[^\w\s]"


def new_tokenizer(max_length: int = MAX_TOKENS, *, start: bool = False) -> Any:
    """Return a tokenizer of words, in which a cell ("row 1 column 2") is one token.

    Articles and punctuation are dropped, unknown words become ``<unk>``.
    """
    specials = ["<pad>", "</s>", "<unk>", *(["<s>"] if start else [])]
    words = [*specials, *COLORS, *SHAPES, *map(str, range(GRID * GRID + 1)), *_CELLS]
    ids = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Lowercase(), normalizers.Replace(Regex(_FILLERS), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(
        Regex(r"row \d column \d|\w+"), "removed", invert=True
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>" if start else "$A </s>",
        special_tokens=[(word, ids[word]) for word in specials if word in ("<s>", "</s>")],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=max_length,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        bos_token="<s>" if start else None,
    )


def new_text_encoder(tokenizer: Any) -> Any:
    """Return an untrained T5 encoder of three layers."""
    return T5EncoderModel(
        T5Config(
            vocab_size=len(tokenizer),
            d_model=WIDTH,
            d_kv=WIDTH // HEADS,
            d_ff=2 * WIDTH,
            num_layers=3,
            num_heads=HEADS,
            feed_forward_proj="gated-gelu",
            dropout_rate=0.0,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
    )


def silent_clip(tokenizer: Any) -> Any:
    """Return a CLIP text encoder whose pooled output is zero: it says nothing about the caption."""
    clip = CLIPTextModel(
        CLIPTextConfig(
            vocab_size=len(tokenizer),
            hidden_size=POOLED,
            intermediate_size=POOLED,
            num_hidden_layers=1,
            num_attention_heads=1,
            max_position_embeddings=77,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    for name, weight in clip.named_parameters():
        if "final_layer_norm" in name:
            torch.nn.init.zeros_(weight)
    return clip


def token_ids(tokenizer: Any, captions: list[str]) -> torch.Tensor:
    """Return ids (n, 32), padded as the pipeline pads them.

    The pipeline passes no attention mask, so neither do the lessons.
    """
    encoded = tokenizer(
        captions, padding="max_length", max_length=MAX_TOKENS, truncation=True, return_tensors="pt"
    )
    ids: torch.Tensor = encoded["input_ids"]
    return ids


def contents(scene: Scene) -> list[int]:
    """Return what each of the 16 cells holds, in reading order: 0, or a shape and a colour."""
    cells = [0] * (GRID * GRID)
    for thing in scene.things:
        kind = SHAPES.index(thing.shape) * len(COLORS) + COLORS.index(thing.color)
        cells[thing.cell[0] * GRID + thing.cell[1]] = 1 + kind
    return cells


class _Reader(torch.nn.Module):
    """Says what each cell holds from the text's features; thrown away after the lesson."""

    def __init__(self) -> None:
        super().__init__()
        self.queries = torch.nn.Parameter(torch.randn(GRID * GRID, WIDTH) / 2)
        self.attention = torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.out = torch.nn.Sequential(
            torch.nn.LayerNorm(WIDTH),
            torch.nn.Linear(WIDTH, 2 * WIDTH),
            torch.nn.GELU(),
            torch.nn.Linear(2 * WIDTH, N_CONTENTS),
        )

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        queries = self.queries.expand(len(text), -1, -1)
        attended, _ = self.attention(queries, text, text, need_weights=False)
        scores: torch.Tensor = self.out(attended)
        return scores


def train_text_encoder(
    tokenizer: Any, n_steps: int, rng: np.random.Generator, log: Log, batch_size: int = 96
) -> Any:
    """Return a trained T5 encoder."""
    encoder, reader = new_text_encoder(tokenizer), _Reader()
    named_weights = [*encoder.named_parameters(), *reader.named_parameters()]
    optimizer = Optimizer(named_weights, warm_up=50)
    loss, accuracy = Mean(0.9), Mean(0.9)
    for step in range(n_steps):
        scenes = [few_things(rng, int(rng.integers(1, 10))) for _ in range(batch_size)]
        ids = token_ids(tokenizer, [describe(scene) for scene in scenes])
        truth = torch.tensor([contents(scene) for scene in scenes])
        with torch.autocast("cpu", torch.bfloat16):
            scores = reader(encoder(input_ids=ids).last_hidden_state.float()).float()
        entropy = functional.cross_entropy(scores.flatten(0, 1), truth.flatten())
        optimizer.step(entropy, step, step / n_steps)
        filled = truth > 0
        loss.add(entropy.item())
        accuracy.add((scores.argmax(-1) == truth)[filled].float().mean().item())
        if step % 50 == 49 or step == n_steps - 1:
            log("text encoder", step=step + 1, loss=loss.value, filled_cells_right=accuracy.value)
    return encoder.eval()

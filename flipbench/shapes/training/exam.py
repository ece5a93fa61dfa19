"""Pictures and conversations as model inputs, and the examination a model takes on the way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from flipbench.prompting.prompts import LETTERS, choice_prompt
from flipbench.shapes.benchmark import shapes_vqa_scenes
from flipbench.shapes.questions import KINDS, Family, draw_family, fresh_scene
from flipbench.shapes.render import render
from flipbench.shapes.scene import Scene
from flipbench.shapes.training.curriculum import Turn
from flipbench.shapes.training.tiny import N_IMAGE_TOKENS

IGNORE = -100


@dataclass
class Pool:
    """Training scenes with their pixels, made once and asked about again and again."""

    scenes: list[Scene]
    pixels: torch.Tensor  # (n_scenes, ...) float16, one row per picture
    grid: torch.Tensor | None  # (3,) patches of one picture, Qwen2-VL only

    @classmethod
    def draw(cls, rng: np.random.Generator, n_scenes: int, processor: Any) -> Pool:
        """Draw and render ``n_scenes`` random scenes."""
        backgrounds = rng.integers(2**31, size=500)
        scenes = []
        for _ in range(n_scenes):
            scene = fresh_scene(rng)
            scenes.append(Scene(scene.things, int(backgrounds[rng.integers(len(backgrounds))])))
        return cls.of(scenes, processor)

    @classmethod
    def of(cls, scenes: list[Scene], processor: Any) -> Pool:
        """Render given scenes."""
        rows, grid = [], None
        for scene in scenes:
            seen = processor.image_processor(images=[render(scene)], return_tensors="pt")
            rows.append(seen["pixel_values"].reshape(1, *seen["pixel_values"].shape[-3:]).half())
            if "image_grid_thw" in seen:
                grid = seen["image_grid_thw"][0]
                rows[-1] = seen["pixel_values"][None].half()
        return cls(scenes, torch.cat(rows), grid)

    def refuse_overlap(self, others: list[Scene]) -> None:
        """Drop every training scene that is also in ``others`` or in ``shapes-vqa``."""
        held_out = {s.content_hash() for s in [*others, *shapes_vqa_scenes()]}
        keep = [i for i, s in enumerate(self.scenes) if s.content_hash() not in held_out]
        self.scenes, self.pixels = [self.scenes[i] for i in keep], self.pixels[keep]
        if held_out & {s.content_hash() for s in self.scenes}:
            raise AssertionError("a training scene is in the benchmark")

    def look(self, rows: np.ndarray | list[int]) -> dict[str, torch.Tensor]:
        """Return the model's image inputs for these rows."""
        pixels = self.pixels[torch.as_tensor(np.asarray(rows))].float()
        if self.grid is None:
            return {"pixel_values": pixels}
        return {
            "pixel_values": pixels.flatten(0, 1),
            "image_grid_thw": self.grid.repeat(len(rows), 1),
        }


@dataclass
class Exam:
    """Families the model never trains on, asked as the benchmark asks them."""

    kinds: list[str]
    prompts: list[str]
    gold: list[int]
    n_options: list[int]
    pool: Pool
    processor: Any

    @property
    def scenes(self) -> list[Scene]:
        """The scenes asked about."""
        return self.pool.scenes

    @classmethod
    def draw(cls, rng: np.random.Generator, n_each: int, processor: Any) -> Exam:
        """Draw ``n_each`` families of every kind, and one member of each."""
        kinds, prompts, gold, scenes, n_options = [], [], [], [], []
        for kind in KINDS * n_each:
            family: Family = draw_family(rng, kind)
            gold.append(int(rng.integers(len(family.options))))
            kinds.append(kind)
            prompts.append(choice_prompt(family.question.text(), family.options))
            scenes.append(family.scenes[gold[-1]])
            n_options.append(len(family.options))
        return cls(kinds, prompts, gold, n_options, Pool.of(scenes, processor), processor)

    @torch.no_grad()
    def mark(self, model: Any) -> dict[str, Any]:
        """Return accuracy overall, by kind, and without the picture."""
        model.eval()
        result: dict[str, Any] = {}
        for picture in (True, False):
            right = []
            for start in range(0, len(self.prompts), 100):
                rows = list(range(start, min(start + 100, len(self.prompts))))
                turns = [[(self.prompts[i], " A")] for i in rows]
                batch = batch_of(self.processor, turns, self.pool.look(rows) if picture else {})
                labels = batch.pop("labels")
                logits = model(**batch).logits
                first = (labels != IGNORE).int().argmax(1)
                replies = [_reply(self.processor, f" {letter}") for letter in LETTERS[:4]]
                ids = self.processor.tokenizer(replies, add_special_tokens=False)["input_ids"]
                last = logits[torch.arange(len(rows)), first - 1][:, [i[0] for i in ids]]
                for i, row in zip(rows, last, strict=True):
                    right.append(int(row[: self.n_options[i]].argmax()) == self.gold[i])
            result["accuracy" if picture else "text_only"] = round(float(np.mean(right)), 4)
            if picture:
                result |= {
                    kind: round(
                        float(
                            np.mean(
                                [r for r, k in zip(right, self.kinds, strict=True) if k == kind]
                            )
                        ),
                        3,
                    )
                    for kind in KINDS
                }
        model.train()
        return result


def batch_of(
    processor: Any, turns: list[list[Turn]], images: dict[str, torch.Tensor]
) -> dict[str, Any]:
    """Return right-padded ids, mask and answer-only labels, as the chat template writes them."""
    rows = [encode(processor, conversation, bool(images)) for conversation in turns]
    width = max(len(ids) for ids, _ in rows)
    pad = processor.tokenizer.pad_token_id
    ids = torch.full((len(rows), width), pad)
    labels = torch.full((len(rows), width), IGNORE)
    mask = torch.zeros((len(rows), width), dtype=torch.long)
    for i, (row, target) in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row)
        labels[i, : len(row)] = torch.tensor(target)
        mask[i, : len(row)] = 1
    batch = {"input_ids": ids, "attention_mask": mask, "labels": labels, **images}
    if type(processor).__name__.startswith("Qwen"):
        batch["mm_token_type_ids"] = (ids == processor.image_token_id).long()
    return batch


def _reply(processor: Any, text: str) -> str:
    """Return a reply as the chat template writes it: LLaVA's has a space before, Qwen's none."""
    return text if type(processor).__name__.startswith("Llava") else text.lstrip()


def encode(processor: Any, turns: list[Turn], picture: bool) -> tuple[list[int], list[int]]:
    """Return ids and labels of a conversation; equal to tokenising the rendered template."""
    llava = type(processor).__name__.startswith("Llava")
    pieces: list[tuple[str, bool]] = []
    for i, (said, replied) in enumerate(turns):
        if llava:
            image = "<image>" * N_IMAGE_TOKENS + "\n" if picture and i == 0 else ""
            pieces.append((f"USER: {image}{said} ASSISTANT:", False))
            end = "</s>"
        else:
            pads = "<|image_pad|>" * N_IMAGE_TOKENS
            image = f"<|vision_start|>{pads}<|vision_end|>" if picture and i == 0 else ""
            pieces.append(
                (f"<|im_start|>user\n{image}{said}<|im_end|>\n<|im_start|>assistant\n", False)
            )
            replied, end = _reply(processor, replied), "<|im_end|>"
        if "\x00" in replied:
            for fact in replied.split("\x01")[:-1]:
                known, value = fact.split("\x00")
                pieces += [(known, False), (value, True)]
        else:
            pieces.append((replied, True))
        pieces.append((end, "\x00" not in replied))
        if not llava:
            pieces.append(("\n", False))
    encoded = processor.tokenizer([text for text, _ in pieces], add_special_tokens=False)[
        "input_ids"
    ]
    ids: list[int] = []
    labels: list[int] = []
    for tokens, (_, counts) in zip(encoded, pieces, strict=True):
        ids += tokens
        labels += tokens if counts else [IGNORE] * len(tokens)
    return ids, labels

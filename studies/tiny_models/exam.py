"""Images and conversations as model inputs, and the exam that tracks accuracy during training."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from flipbench.prompting.prompts import LETTERS, choice_prompt
from flipbench.shapes.benchmark import shapes_vqa_scenes
from flipbench.shapes.questions import KINDS, QuestionFamily, draw_family, fresh_scene
from flipbench.shapes.render import render
from flipbench.shapes.scene import Scene
from studies.tiny_models.curriculum import Turn
from studies.tiny_models.tiny import N_IMAGE_TOKENS

IGNORE = -100


@dataclass
class Pool:
    """Training scenes with their pixels, rendered once and used many times."""

    scenes: list[Scene]
    pixels: torch.Tensor  # (n_scenes, ...) float16, one row per image
    grid: torch.Tensor | None  # (3,) patches of one image, Qwen2-VL only

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
        """Render the given scenes."""
        rows, grid = [], None
        for scene in scenes:
            inputs = processor.image_processor(images=[render(scene)], return_tensors="pt")
            pixels = inputs["pixel_values"]
            if "image_grid_thw" in inputs:
                grid = inputs["image_grid_thw"][0]
                rows.append(pixels[None].half())
            else:
                rows.append(pixels.reshape(1, *pixels.shape[-3:]).half())
        return cls(scenes, torch.cat(rows), grid)

    def drop_overlap(self, scenes: list[Scene]) -> None:
        """Drop every training scene that is also in ``others`` or in ``shapes-vqa``."""
        held_out = {s.content_hash() for s in [*scenes, *shapes_vqa_scenes()]}
        keep = [i for i, s in enumerate(self.scenes) if s.content_hash() not in held_out]
        self.scenes, self.pixels = [self.scenes[i] for i in keep], self.pixels[keep]

    def inputs(self, rows: np.ndarray | Sequence[int]) -> dict[str, torch.Tensor]:
        """Return the model's image inputs for these rows."""
        pixels = self.pixels[torch.as_tensor(np.asarray(rows, dtype=np.int64))].float()
        if self.grid is None:
            return {"pixel_values": pixels}
        return {
            "pixel_values": pixels.flatten(0, 1),
            "image_grid_thw": self.grid.repeat(len(rows), 1),
        }


@dataclass
class Exam:
    """Questions on held-out scenes, with the benchmark's prompts."""

    families: list[QuestionFamily]
    gold: list[int]
    pool: Pool
    processor: Any

    @property
    def scenes(self) -> list[Scene]:
        """The scenes that the questions are about."""
        return self.pool.scenes

    @property
    def prompts(self) -> list[str]:
        """The questions with their options."""
        return [choice_prompt(f.question.text(), f.options) for f in self.families]

    @classmethod
    def draw(cls, rng: np.random.Generator, n_each: int, processor: Any) -> Exam:
        """Draw ``n_each`` families of every kind, and one member of each."""
        families, gold = [], []
        for kind in KINDS * n_each:
            families.append(draw_family(rng, kind))
            gold.append(int(rng.integers(len(families[-1].options))))
        scenes = [family.scenes[i] for family, i in zip(families, gold, strict=True)]
        return cls(families, gold, Pool.of(scenes, processor), processor)

    @torch.no_grad()
    def grade(self, model: Any) -> dict[str, Any]:
        """Return accuracy overall, without images, and by kind."""
        model.eval()
        outcomes = self._outcomes(model, with_images=True)
        kinds = np.array([family.question.kind for family in self.families])
        accuracies = {
            "accuracy": round(float(outcomes.mean()), 4),
            **{k: round(float(outcomes[kinds == k].mean()), 3) for k in KINDS},
            "text_only": round(float(self._outcomes(model, with_images=False).mean()), 4),
        }
        model.train()
        return accuracies

    def _outcomes(self, model: Any, *, with_images: bool) -> np.ndarray:
        """Return whether each answer is right, shape (n_questions,) of bool."""
        replies = [_reply(self.processor, f" {letter}") for letter in LETTERS[:4]]
        ids = self.processor.tokenizer(replies, add_special_tokens=False)["input_ids"]
        letter_ids = [tokens[0] for tokens in ids]
        outcomes, prompts = [], self.prompts
        for start in range(0, len(prompts), 100):
            rows = list(range(start, min(start + 100, len(prompts))))
            turns = [[(prompts[i], " A")] for i in rows]
            images = self.pool.inputs(rows) if with_images else {}
            batch = batch_of(self.processor, turns, images)
            starts = (batch.pop("labels") != IGNORE).int().argmax(1)
            logits = model(**batch).logits[torch.arange(len(rows)), starts - 1][:, letter_ids]
            for i, row in zip(rows, logits, strict=True):
                outcomes.append(int(row[: len(self.families[i].options)].argmax()) == self.gold[i])
        return np.array(outcomes)


def batch_of(
    processor: Any,
    turns: list[list[Turn]],
    images: dict[str, torch.Tensor],
    n_text_only: int = 0,
) -> dict[str, Any]:
    """Return right-padded ids, mask and reply-only labels of rendered conversations.

    The last ``n_text_only`` have no image.
    """
    n_with = len(turns) - n_text_only if images else 0
    rows = [encode(processor, conversation, i < n_with) for i, conversation in enumerate(turns)]

    def padded(values: Iterable[list[int]], padding: int) -> torch.Tensor:
        return pad_sequence(
            [torch.tensor(v) for v in values], batch_first=True, padding_value=padding
        )

    ids = padded((ids for ids, _ in rows), processor.tokenizer.pad_token_id)
    labels = padded((labels for _, labels in rows), IGNORE)
    mask = padded(([1] * len(ids) for ids, _ in rows), 0)
    batch = {"input_ids": ids, "attention_mask": mask, "labels": labels, **images}
    if type(processor).__name__.startswith("Qwen"):
        batch["mm_token_type_ids"] = (ids == processor.image_token_id).long()
    return batch


def _reply(processor: Any, text: str) -> str:
    """Return a reply as the chat template renders it: the plain one's starts with a space."""
    return text if _is_plain(processor) else text.lstrip()


def _is_plain(processor: Any) -> bool:
    return "USER: " in processor.chat_template


_IMAGES = {
    "LlavaProcessor": "<image>" * N_IMAGE_TOKENS + "\n",
    "Qwen2VLProcessor": f"<|vision_start|>{'<|image_pad|>' * N_IMAGE_TOKENS}<|vision_end|>",
    "InternVLProcessor": f"<img>{'<IMG_CONTEXT>' * N_IMAGE_TOKENS}</img>\n",
}
# A rendered turn: prompt, end of the reply, and what follows it.
_CHATML = ("<|im_start|>user\n{}{}<|im_end|>\n<|im_start|>assistant\n", "<|im_end|>", "\n")


def _rendered(processor: Any) -> tuple[str, str, str]:
    if _is_plain(processor):
        return "USER: {}{} ASSISTANT:", processor.tokenizer.eos_token, ""
    return _CHATML


def encode(processor: Any, turns: list[Turn], with_image: bool) -> tuple[list[int], list[int]]:
    """Return ids and labels of a conversation; the ids are those of the rendered template."""
    image = _IMAGES[type(processor).__name__]
    prompt, end, suffix = _rendered(processor)
    pieces: list[tuple[str, bool]] = []
    for i, (message, reply) in enumerate(turns):
        reply = _reply(processor, reply)
        pieces.append((prompt.format(image if with_image and i == 0 else "", message), False))
        if "\x00" in reply:
            for fact in reply.split("\x01")[:-1]:
                prompt_text, value = fact.split("\x00")
                pieces += [(prompt_text, False), (value, True)]
        else:
            pieces.append((reply, True))
        pieces += [(end, "\x00" not in reply), (suffix, False)]
    texts = [text for text, _ in pieces]
    encoded = processor.tokenizer(texts, add_special_tokens=False)["input_ids"]
    ids: list[int] = []
    labels: list[int] = []
    for tokens, (_, counts) in zip(encoded, pieces, strict=True):
        ids += tokens
        labels += tokens if counts else [IGNORE] * len(tokens)
    return ids, labels

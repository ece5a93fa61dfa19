"""Train the two tiny VLMs from nothing: ``python -m flipbench.shapes.pretrain --family llava``.

Three lessons, each standing on the one before (what was tried and did not work: docs/shapes.md).

1. *Cells*: vision tower and projector alone; linear heads read colour and shape off every image
   token. The heads are thrown away.
2. *Facts*: the whole model completes short facts, many for each picture ("color star" -> "red").
3. *Questions*: conversations about a picture in the benchmark's own words, most with lettered
   options; some captions; a few without the picture, whose answers are random, so that the model
   learns to have no opinion where it sees nothing.

No training scene is a scene of the benchmark: asserted by hash. One CPU core is enough; run both
families side by side. ``--export DIR`` writes the checkpoint that the package ships.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from flipbench.prompts import LETTERS, choice_prompt, open_prompt
from flipbench.shapes.questions import (
    KINDS,
    NUMBERS,
    PLACES,
    SIDES,
    Family,
    Question,
    answer,
    draw_family,
    fresh_scene,
    questions_on,
)
from flipbench.shapes.render import render
from flipbench.shapes.scene import COLORS, GRID, SHAPES, Scene
from flipbench.shapes.tiny import FAMILIES, N_IMAGE_TOKENS, build
from flipbench.shapes.wording import DESCRIBE, describe

_IGNORE = -100
# A turn is (what the user says, what the model answers); a leading picture is added by `_encode`.
Turn = tuple[str, str]


def main() -> None:
    """Train one family and write its checkpoint, its log and its card."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--family", choices=FAMILIES, required=True)
    parser.add_argument("--export", type=Path, required=True, help="folder for the checkpoint")
    parser.add_argument("--log", type=Path, help="JSONL file for the accuracies on the way")
    parser.add_argument("--scenes", type=int, default=12_000)
    parser.add_argument("--cells", type=int, default=500, help="steps of the first lesson")
    parser.add_argument("--facts", type=int, default=1_500, help="steps of the second lesson")
    parser.add_argument("--questions", type=int, default=2_500, help="steps of the third lesson")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    pretrain(args)


def pretrain(args: argparse.Namespace) -> None:
    """Run the three lessons."""
    rng = np.random.default_rng([args.seed, FAMILIES.index(args.family)])
    say = _Log(args.log)
    model, processor = build(args.family, corpus(np.random.default_rng(0)), args.seed)
    say("built", parameters=sum(p.numel() for p in model.parameters()))
    pool = Pool.draw(rng, args.scenes, processor)
    exam = Exam.draw(np.random.default_rng([args.seed, 99]), 60, processor)
    pool.refuse_overlap(exam.scenes)
    teacher = Teacher(model, processor, pool, exam, rng, say)
    teacher.teach_cells(args.cells)
    teacher.teach("facts", args.facts, 24, 2e-3, lambda scene: [facts_turn(scene, rng)])
    teacher.teach("questions", args.questions, 20, 1.5e-3, lambda scene: question_turns(scene, rng))
    args.export.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(args.export)
    processor.save_pretrained(args.export)
    say("saved", **exam.mark(model))


def corpus(rng: np.random.Generator) -> list[str]:
    """Return texts that hold every word of the world, for the tokenizer."""
    texts = [f" {letter}" for letter in LETTERS[:10]] + [f"\n{letter}." for letter in LETTERS[:10]]
    for _ in range(200):
        scene = fresh_scene(rng)
        asked = questions_on(scene)
        question = asked[rng.integers(len(asked))]
        for phrasing in range(3):
            texts.append(choice_prompt(question.text(phrasing), _options(scene, question, rng)))
            texts.append(open_prompt(question.text(phrasing)))
        texts += [DESCRIBE, describe(scene), *(a + b for a, b in _facts(scene, rng))]
        texts += [
            f"USER: {question.text()} ASSISTANT: {answer(scene, question)}",
            "user\n",
            "assistant\n",
        ]
    texts += [
        f" {word}" for word in (*SHAPES, *COLORS, *NUMBERS, *PLACES, *SIDES[0], *SIDES[1])
    ] * 2
    texts += ["yes no none fact true false not same other this that it its in on at to and or"] * 2
    return texts


def facts_turn(scene: Scene, rng: np.random.Generator) -> Turn:
    """Return one turn whose answer is a list of facts; only their values count in the loss."""
    return "Facts.", "".join(f"{known}\x00{value}\x01" for known, value in _facts(scene, rng))


def _facts(scene: Scene, rng: np.random.Generator) -> list[tuple[str, str]]:
    facts = []
    for question in questions_on(scene):
        side = "above" if question.vertical else "left"
        known = {
            "color": f" color {question.about}",
            "shape": f" shape {question.about}",
            "place": f" place {question.about}",
            "number": f" number {question.about}",
            "relation": f" {side} {question.other} {question.about}",
        }[question.kind]
        facts.append((question.kind, known, f" {answer(scene, question)}"))
    kept: list[tuple[str, str]] = []
    for kind, most in (("color", 4), ("shape", 4), ("place", 4), ("number", 5), ("relation", 6)):
        of_kind = [(known, value) for k, known, value in facts if k == kind]
        kept += [of_kind[i] for i in rng.permutation(len(of_kind))[:most]]
    return [kept[i] for i in rng.permutation(len(kept))]


def question_turns(scene: Scene, rng: np.random.Generator, n_turns: int = 4) -> list[Turn]:
    """Return a conversation: a caption, or questions with options, or in words."""
    if rng.random() < 0.06:
        return [(DESCRIBE, " " + describe(scene))]
    by_kind: dict[str, list[Question]] = {}
    for question in questions_on(scene):
        by_kind.setdefault(question.kind, []).append(question)
    turns: list[Turn] = []
    while len(turns) < n_turns:
        asked = by_kind.get(KINDS[rng.integers(len(KINDS))])
        if not asked:
            continue
        question = asked[rng.integers(len(asked))]
        right = answer(scene, question)
        if right == "0" and rng.random() < 0.75:
            continue
        text = question.text(0 if rng.random() < 0.5 else int(rng.integers(1, 3)))
        if rng.random() < 0.2:
            turns.append((open_prompt(text), f" {right}"))
        else:
            options = _options(scene, question, rng)
            turns.append((choice_prompt(text, options), f" {LETTERS[options.index(str(right))]}"))
    return turns


def _options(scene: Scene, question: Question, rng: np.random.Generator) -> list[str]:
    right = answer(scene, question)
    pool = {
        "color": COLORS,
        "shape": SHAPES,
        "number": NUMBERS,
        "place": PLACES,
        "relation": SIDES[question.vertical],
    }[question.kind]
    if rng.random() < 0.1:  # options of any sort, as a generalised benchmark has them
        pool = (*COLORS, *SHAPES, *NUMBERS, *PLACES)
    n_options = min(len(pool), int(rng.integers(3, 5)))
    wrong = [option for option in pool if option != right]
    chosen = [str(right), *(wrong[i] for i in rng.permutation(len(wrong))[: n_options - 1])]
    return [chosen[i] for i in rng.permutation(len(chosen))]


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
        """Raise where a training scene is also in ``others`` or in ``shapes-vqa``."""
        from flipbench.shapes.benchmark import shapes_vqa_scenes

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
                batch = _batch(self.processor, turns, self.pool.look(rows) if picture else {})
                labels = batch.pop("labels")
                logits = model(**batch).logits
                first = (labels != _IGNORE).int().argmax(1)
                ids = self.processor.tokenizer(
                    [f" {letter}" for letter in LETTERS[:4]], add_special_tokens=False
                )["input_ids"]
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


@dataclass
class Teacher:
    """A model in training, with what it learns from and what it is examined on."""

    model: Any
    processor: Any
    pool: Pool
    exam: Exam
    rng: np.random.Generator
    say: _Log

    def teach_cells(self, n_steps: int, batch_size: int = 128) -> None:
        """Lesson 1: bring every image token close to the words that tell what its cell holds.

        The words' own embeddings are the classifier, so that a word's token later finds "its"
        image tokens by likeness, as CLIP features let a real VLM do.
        """
        if not n_steps:
            return
        width = self.model.config.text_config.hidden_size
        words = self.model.get_input_embeddings().weight
        groups = [self._word_ids(group) for group in _CELL_WORDS]
        empty = torch.nn.ParameterList(
            [torch.nn.Parameter(torch.zeros(1, width)) for _ in groups[:2]]
        )
        names = ("vision_tower", "multi_modal_projector", "visual")
        seeing = [p for n, p in self.model.named_parameters() if any(name in n for name in names)]
        for step, _ in self._steps(n_steps, [*seeing, words, *empty], 2e-3):
            rows = self.rng.integers(len(self.pool.scenes), size=batch_size)
            features = self.model.get_image_features(**self.pool.look(rows)).pooler_output
            tokens = torch.cat([f.reshape(-1, width) for f in features])
            tokens = functional.rms_norm(tokens, (width,))
            truth = torch.tensor([_cells(self.pool.scenes[i]) for i in rows]).reshape(
                -1, len(groups)
            )
            scores = []
            for i, ids in enumerate(groups):
                table = words[ids] if i >= len(empty) else torch.cat([empty[i], words[ids]])
                scores.append(tokens @ table.T)
            loss = torch.stack(
                [functional.cross_entropy(s, truth[:, i]) for i, s in enumerate(scores)]
            ).sum()
            loss.backward()  # type: ignore[no-untyped-call]
            if step % 100 == 0 or step == n_steps - 1:
                hits = [
                    (s.argmax(1) == truth[:, i]).float().mean().item() for i, s in enumerate(scores)
                ]
                self.say("cells", step=step, loss=loss.item(), color=hits[0], shape=hits[1])

    def _word_ids(self, words: tuple[str, ...]) -> list[int]:
        ids = self.processor.tokenizer([f" {w}" for w in words], add_special_tokens=False)[
            "input_ids"
        ]
        if any(len(row) != 1 for row in ids):
            raise AssertionError(f"each of {words} must be one token")
        return [row[0] for row in ids]

    def teach(
        self,
        lesson: str,
        n_steps: int,
        batch_size: int,
        rate: float,
        turns_on: Callable[[Scene], list[Turn]],
    ) -> None:
        """Lessons 2 and 3: next-token loss on the answers of conversations about pictures."""
        if not n_steps:
            return
        running = 0.0
        for step, _ in self._steps(n_steps, list(self.model.parameters()), rate):
            rows = self.rng.integers(len(self.pool.scenes), size=batch_size)
            blind = lesson == "questions" and self.rng.random() < 0.04
            turns = [turns_on(self.pool.scenes[i]) for i in rows]
            batch = _batch(self.processor, turns, {} if blind else self.pool.look(rows))
            loss = self.model(**batch).loss
            loss.backward()
            running = 0.97 * running + 0.03 * loss.item() if step else loss.item()
            if step % 200 == 199 or step == n_steps - 1:
                self.say(lesson, step=step + 1, loss=running, **self.exam.mark(self.model))

    def _steps(
        self, n_steps: int, parameters: list[Any], rate: float
    ) -> Iterator[tuple[int, torch.optim.Optimizer]]:
        optimizer = torch.optim.AdamW(parameters, lr=rate, weight_decay=0.01, betas=(0.9, 0.98))
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, rate, total_steps=n_steps, pct_start=0.08
        )
        self.model.train()
        for step in range(n_steps):
            optimizer.zero_grad()
            yield step, optimizer
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            schedule.step()


# What an image token is to be like: a colour, a shape (or nothing), and the halves it lies in.
_CELL_WORDS = (COLORS, SHAPES, ("top", "bottom"), ("left", "right"))


def _cells(scene: Scene) -> list[tuple[int, int, int, int]]:
    """Return the number of each of `_CELL_WORDS` for the cells in reading order; 0 is nothing."""
    out = []
    for row in range(GRID):
        for column in range(GRID):
            thing = scene.at((row, column))
            what = (
                (COLORS.index(thing.color) + 1, SHAPES.index(thing.shape) + 1) if thing else (0, 0)
            )
            out.append((*what, int(row >= GRID // 2), int(column >= GRID // 2)))
    return out


def _batch(
    processor: Any, turns: list[list[Turn]], images: dict[str, torch.Tensor]
) -> dict[str, Any]:
    """Return right-padded ids, mask and answer-only labels, as the chat template writes them."""
    rows = [_encode(processor, conversation, bool(images)) for conversation in turns]
    width = max(len(ids) for ids, _ in rows)
    pad = processor.tokenizer.pad_token_id
    ids = torch.full((len(rows), width), pad)
    labels = torch.full((len(rows), width), _IGNORE)
    mask = torch.zeros((len(rows), width), dtype=torch.long)
    for i, (row, target) in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row)
        labels[i, : len(row)] = torch.tensor(target)
        mask[i, : len(row)] = 1
    batch = {"input_ids": ids, "attention_mask": mask, "labels": labels, **images}
    if type(processor).__name__.startswith("Qwen"):
        batch["mm_token_type_ids"] = (ids == processor.image_token_id).long()
    return batch


def _encode(processor: Any, turns: list[Turn], picture: bool) -> tuple[list[int], list[int]]:
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
            replied, end = replied.lstrip(), "<|im_end|>"
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
        labels += tokens if counts else [_IGNORE] * len(tokens)
    return ids, labels


class _Log:
    """Say a line on the terminal and keep it as JSON."""

    def __init__(self, path: Path | None) -> None:
        self.path, self.start = path, time.time()

    def __call__(self, lesson: str, **figures: Any) -> None:
        figures = {k: round(v, 4) if isinstance(v, float) else v for k, v in figures.items()}
        line = {"lesson": lesson, **figures, "seconds": round(time.time() - self.start)}
        print(json.dumps(line), flush=True)
        if self.path:
            with self.path.open("a") as file:
                file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()

"""Train the two tiny VLMs from scratch.

Run ``python -m studies.tiny_models.pretrain --family llava --export DIR``.

Four lessons, each building on the one before (for what did not work, see docs/shapes.md).

1. *Cells*: vision tower, projector and word embeddings; every image token is aligned with the
   words for the content of its cell. Then vision tower and projector are frozen, as LLaVA freezes
   its tower: when trained further, LLaVA's forgot the positions of cells.
2. *Lookups*: the language model completes single-word facts ("color star" -> "red").
3. *Facts*: also places, numbers and relations, some of them with lettered options.
4. *Questions*: conversations about an image in the benchmark's own words, most with lettered
   options; some captions; some facts; a few without the image, whose answers are random, so that
   the model learns to be undecided without an image.

Matrices are trained by Muon, everything else by AdamW: with AdamW alone, the same lessons did not
learn places and relations in thousands of steps.

Training scenes that are in the benchmark are dropped. One CPU core is enough; both families can
train in parallel.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from flipbench.shapes.scene import COLORS, GRID, SHAPES, Scene
from studies.tiny_models.curriculum import (
    Turn,
    corpus,
    facts_turn,
    lookup_turn,
    question_turns,
)
from studies.tiny_models.exam import IGNORE, Exam, Pool, batch_of
from studies.tiny_models.tiny import FAMILIES, build


def main() -> None:
    """Train one family and write its checkpoint, its log and its card."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--family", choices=FAMILIES, required=True)
    parser.add_argument("--export", type=Path, required=True, help="folder for the checkpoint")
    parser.add_argument("--log", type=Path, help="JSONL file for losses and accuracies")
    parser.add_argument("--scenes", type=int, default=8_000)
    parser.add_argument("--cells", type=int, default=400, help="steps of the first lesson")
    parser.add_argument("--lookups", type=int, default=300, help="steps of the second lesson")
    parser.add_argument("--facts", type=int, default=800, help="steps of the third lesson")
    parser.add_argument("--questions", type=int, default=1_800, help="steps of the last lesson")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    pretrain(args)


def pretrain(args: argparse.Namespace) -> None:
    """Run the lessons in order; the checkpoint is written after each."""
    rng = np.random.default_rng([args.seed, FAMILIES.index(args.family)])
    log = _Log(args.log)
    model, processor = build(args.family, corpus(np.random.default_rng(0)), args.seed)
    log("built", parameters=sum(p.numel() for p in model.parameters()))
    pool = Pool.draw(rng, args.scenes, processor)
    exam = Exam.draw(np.random.default_rng([args.seed, 99]), 60, processor)
    pool.drop_overlap(exam.scenes)
    pretraining = Pretraining(model, processor, pool, exam, rng, log)
    lessons = [
        Lesson("lookups", args.lookups, 24, lambda scene: [lookup_turn(scene, rng)]),
        Lesson("facts", args.facts, 24, lambda scene: [facts_turn(scene, rng)]),
        Lesson("questions", args.questions, 20, lambda scene: question_turns(scene, rng)),
    ]
    pretraining.align_cells(args.cells)
    for lesson in lessons:
        pretraining.train_on(lesson)
        export(model, processor, args.export)
    log("saved", **exam.grade(export(model, processor, args.export)))


def export(model: Any, processor: Any, folder: Path) -> Any:
    """Write the checkpoint in bfloat16, and return the model as loaded from it, in float32."""
    folder.mkdir(parents=True, exist_ok=True)
    rounded = copy.deepcopy(model).to(torch.bfloat16)
    rounded.save_pretrained(folder)
    processor.save_pretrained(folder)
    return rounded.float()


@dataclass(frozen=True)
class Extra:
    """Conversations that are mixed into a lesson's own, evenly over its steps.

    ``turns`` are in the order in which they are shown; ``pool`` has their images, if any, and
    ``rows`` says which one belongs to each.
    """

    turns: Sequence[list[Turn]]
    pool: Pool | None = None
    rows: Sequence[int] = ()

    def due(self, step: int, n_steps: int) -> int:
        """Return how many are shown by the end of a step; all are before the last tenth."""
        return min(len(self.turns), math.ceil(len(self.turns) * (step + 1) / (0.9 * n_steps)))


@dataclass(frozen=True)
class Lesson:
    """A part of the curriculum: its conversations, its steps, and the scenes of each step.

    A lesson that is ``text_only`` shows no images. ``extra`` is added to the batches, and changes
    nothing else that is drawn.
    """

    name: str
    n_steps: int
    batch_size: int
    turns_on: Callable[[Scene], list[Turn]]
    text_only: bool = False
    extra: Extra | None = None


_RATE = 2e-3  # peak of each lesson's one-cycle schedule


@dataclass
class Pretraining:
    """A model in training, with its training scenes and its exam.

    Attributes
    ----------
    rate : float
        Peak of each lesson's one-cycle schedule.
    bfloat16 : bool
        Whether the language model's matrix products are in bfloat16, and only the tokens that count
        in the loss are scored. Weights stay in float32.
    """

    model: Any
    processor: Any
    pool: Pool
    exam: Exam
    rng: np.random.Generator
    log: Callable[..., None]
    rate: float = _RATE
    bfloat16: bool = False

    def align_cells(self, n_steps: int, batch_size: int = 128, *, number: bool = False) -> None:
        """Lesson 1: align each image token with the words for its cell, then freeze the vision.

        The classifier is the words' own embeddings, so that a word's token later attends to its
        image tokens by similarity, as with CLIP features in a real VLM. With ``number``, image
        tokens also learn to tell the rows and columns apart, by tables that are thrown away.
        """
        width = self.model.config.text_config.hidden_size
        words = self.model.get_input_embeddings().weight
        groups = [self._word_ids(group) for group in _CELL_WORDS]
        empty = torch.nn.ParameterList(
            [torch.nn.Parameter(torch.zeros(1, width)) for _ in groups[:2]]
        )
        numbers = torch.nn.ParameterList(
            [torch.nn.Parameter(0.1 * torch.randn(GRID, width)) for _ in range(2 * number)]
        )
        cell_numbers = torch.cartesian_prod(torch.arange(GRID), torch.arange(GRID))
        for step in self._steps(n_steps, [*self._vision(), words, *empty, *numbers]):
            rows = self.rng.integers(len(self.pool.scenes), size=batch_size)
            features = self.model.get_image_features(**self.pool.inputs(rows)).pooler_output
            tokens = torch.cat([f.reshape(-1, width) for f in features])
            tokens = functional.rms_norm(tokens, (width,))
            cells = torch.tensor([_cells(self.pool.scenes[i]) for i in rows])
            truth = cells.reshape(-1, len(groups))
            scores = []
            for i, ids in enumerate(groups):
                table = words[ids] if i >= len(empty) else torch.cat([empty[i], words[ids]])
                scores.append(tokens @ table.T)
            losses = [functional.cross_entropy(s, truth[:, i]) for i, s in enumerate(scores)]
            for table, row_or_column in zip(numbers, cell_numbers.T, strict=False):
                places = row_or_column.repeat(batch_size)
                losses.append(functional.cross_entropy(tokens @ table.T, places))
            loss = torch.stack(losses).sum()
            loss.backward()  # type: ignore[no-untyped-call]
            if step % 100 == 0 or step == n_steps - 1:
                hits = [(s.argmax(1) == truth[:, i]).float() for i, s in enumerate(scores)]
                named_hits = zip(("color", "shape", "height", "side"), hits, strict=True)
                accuracies = {name: hit.mean().item() for name, hit in named_hits}
                self.log("cells", step=step, loss=loss.item(), **accuracies)
        self.freeze_vision()

    def freeze_vision(self) -> None:
        """Exclude vision tower and projector from all further lessons."""
        for parameter in self._vision():
            parameter.requires_grad_(False)

    def _word_ids(self, words: tuple[str, ...]) -> list[int]:
        texts = [f" {word}" for word in words]
        ids = self.processor.tokenizer(texts, add_special_tokens=False)["input_ids"]
        if any(len(row) != 1 for row in ids):
            raise AssertionError(f"each of {words} must be one token")
        return [row[0] for row in ids]

    def _vision(self) -> list[Any]:
        names = ("vision_tower", "multi_modal_projector", "visual")
        return [p for n, p in self.model.named_parameters() if any(name in n for name in names)]

    def train_on(self, lesson: Lesson) -> dict[str, Any]:
        """Minimise the next-token loss on the replies of a lesson; return the exam's accuracies."""
        running, accuracies, n_extra = 0.0, {}, 0
        counts: dict[str, int] = {}
        for step in self._steps(lesson.n_steps, list(self.model.parameters())):
            rows = self.rng.integers(len(self.pool.scenes), size=lesson.batch_size)
            blind = lesson.text_only or (lesson.name == "questions" and self.rng.random() < 0.04)
            turns = [lesson.turns_on(self.pool.scenes[i]) for i in rows]
            images, n_text_only = {} if blind else self.pool.inputs(rows), 0
            if (extra := lesson.extra) and not blind:
                span = slice(n_extra, n_extra := extra.due(step, lesson.n_steps))
                turns += extra.turns[span]
                if extra.pool:
                    inputs = extra.pool.inputs(extra.rows[span])
                    images = {name: torch.cat([images[name], inputs[name]]) for name in images}
                else:
                    n_text_only = span.stop - span.start
                counts = {"mixed_in": n_extra}
            batch = batch_of(self.processor, turns, images, n_text_only)
            loss = self._loss(batch)
            loss.backward()  # type: ignore[no-untyped-call]
            running = 0.97 * running + 0.03 * loss.item() if step else loss.item()
            if step % 200 == 199 or step == lesson.n_steps - 1:
                with torch.autocast("cpu", torch.bfloat16, enabled=self.bfloat16):
                    accuracies = self.exam.grade(self.model)
                self.log(lesson.name, step=step + 1, loss=running, **accuracies, **counts)
        return accuracies

    def _loss(self, batch: dict[str, Any]) -> torch.Tensor:
        if not self.bfloat16:
            loss: torch.Tensor = self.model(**batch).loss
            return loss
        labels = batch.pop("labels")[:, 1:]
        counts = labels != IGNORE
        with torch.autocast("cpu", torch.bfloat16):
            hidden = self.model.model(**batch).last_hidden_state
        scores = self.model.lm_head(hidden[:, :-1][counts].float())
        return functional.cross_entropy(scores, labels[counts])

    def _steps(self, n_steps: int, parameters: list[Any]) -> Iterator[int]:
        """Yield the steps of a lesson; after each, apply the gradients that the caller computed."""
        if not n_steps:
            return
        parameters = [p for p in parameters if p.requires_grad]
        linear = {id(m.weight) for m in self.model.modules() if isinstance(m, torch.nn.Linear)}
        linear.discard(id(self.model.get_input_embeddings().weight))  # the tied output layer's
        matrices = [p for p in parameters if id(p) in linear]
        other_weights = [p for p in parameters if id(p) not in linear]
        optimizers: list[torch.optim.Optimizer] = [
            torch.optim.Muon(
                matrices, self.rate, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"
            ),
            torch.optim.AdamW(other_weights, self.rate, weight_decay=0.01, betas=(0.9, 0.98)),
        ]
        schedules = [
            torch.optim.lr_scheduler.OneCycleLR(
                optimizer, self.rate, total_steps=n_steps, pct_start=0.08, cycle_momentum=False
            )
            for optimizer in optimizers
        ]
        self.model.train()
        for step in range(n_steps):
            for optimizer in optimizers:
                optimizer.zero_grad()
            yield step
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            for optimizer, schedule in zip(optimizers, schedules, strict=True):
                optimizer.step()
                schedule.step()


# What an image token encodes: a colour, a shape (or nothing), and its halves of the image.
_CELL_WORDS = (COLORS, SHAPES, ("top", "bottom"), ("left", "right"))


def _cells(scene: Scene) -> list[tuple[int, int, int, int]]:
    """Return the indices into `_CELL_WORDS` of each cell, in reading order.

    Colours and shapes count from 1, and 0 is an empty cell.
    """
    targets = []
    for row in range(GRID):
        for column in range(GRID):
            thing = scene.at((row, column))
            color = COLORS.index(thing.color) + 1 if thing else 0
            shape = SHAPES.index(thing.shape) + 1 if thing else 0
            targets.append((color, shape, int(row >= GRID // 2), int(column >= GRID // 2)))
    return targets


class _Log:
    """Prints each line as JSON, and appends it to a file."""

    def __init__(self, path: Path | None) -> None:
        self.path, self.start = path, time.time()

    def __call__(self, lesson: str, **values: Any) -> None:
        values = {k: round(v, 4) if isinstance(v, float) else v for k, v in values.items()}
        line = json.dumps({"lesson": lesson, **values, "seconds": round(time.time() - self.start)})
        print(line, flush=True)
        if self.path:
            with self.path.open("a") as file:
                file.write(line + "\n")


if __name__ == "__main__":
    main()

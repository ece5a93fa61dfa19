"""Train the two tiny VLMs from scratch.

Run ``python -m flipbench.shapes.training.pretrain --family llava``.

Four lessons, each standing on the one before (what was tried and did not work: docs/shapes.md).

1. *Cells*: vision tower, projector and word embeddings; every image token comes to lie close to
   the words that tell what its cell holds. Then the vision tower and the projector are frozen,
   as LLaVA freezes its tower: trained further, LLaVA's forgot where a cell lies.
2. *Lookups*: the language model completes facts of one word ("color star" -> "red").
3. *Facts*: also places, numbers and relations, some of them with lettered options.
4. *Questions*: conversations about a picture in the benchmark's own words, most with lettered
   options; some captions; some facts; a few without the picture, whose answers are random, so
   that the model learns to have no opinion where it sees nothing.

Matrices are trained by Muon, everything else by AdamW: with AdamW alone the same lessons had not
found places and relations after thousands of steps.

No training scene is a scene of the benchmark: asserted by hash. One CPU core is enough; run both
families side by side. ``--export DIR`` writes the checkpoint that the package ships.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from transformers import AutoModelForImageTextToText

from flipbench.models.vlm.processors import load_processor
from flipbench.shapes.scene import COLORS, GRID, SHAPES, Scene
from flipbench.shapes.training.curriculum import (
    Turn,
    corpus,
    facts_turn,
    lookup_turn,
    question_turns,
)
from flipbench.shapes.training.exam import Exam, Pool, batch_of
from flipbench.shapes.training.tiny import FAMILIES, build


def main() -> None:
    """Train one family and write its checkpoint, its log and its card."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--family", choices=FAMILIES, required=True)
    parser.add_argument("--export", type=Path, required=True, help="folder for the checkpoint")
    parser.add_argument("--start", type=Path, help="go on from this checkpoint")
    parser.add_argument("--log", type=Path, help="JSONL file for the accuracies on the way")
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
    """Run the lessons one after another; the checkpoint is written after each."""
    rng = np.random.default_rng([args.seed, FAMILIES.index(args.family)])
    say = _Log(args.log)
    if args.start:
        processor = load_processor(args.start)
        model = AutoModelForImageTextToText.from_pretrained(args.start, dtype=torch.float32)
    else:
        model, processor = build(args.family, corpus(np.random.default_rng(0)), args.seed)
    say("built", parameters=sum(p.numel() for p in model.parameters()))
    pool = Pool.draw(rng, args.scenes, processor)
    exam = Exam.draw(np.random.default_rng([args.seed, 99]), 60, processor)
    pool.refuse_overlap(exam.scenes)
    pretraining = Pretraining(model, processor, pool, exam, rng, say)
    curriculum: list[CurriculumStep] = [
        CurriculumStep("lookups", args.lookups, 24, lambda scene: [lookup_turn(scene, rng)]),
        CurriculumStep("facts", args.facts, 24, lambda scene: [facts_turn(scene, rng)]),
        CurriculumStep("questions", args.questions, 20, lambda scene: question_turns(scene, rng)),
    ]
    pretraining.align_cells(args.cells)
    pretraining.freeze_vision()
    for part in curriculum:
        pretraining.train_step(part)
        _export(model, processor, args.export)
    say("saved", **exam.mark(_export(model, processor, args.export)))


def _export(model: Any, processor: Any, folder: Path) -> Any:
    """Write the checkpoint in bfloat16, half the size, and return it as it is read: in float32."""
    folder.mkdir(parents=True, exist_ok=True)
    rounded = copy.deepcopy(model).to(torch.bfloat16)
    rounded.save_pretrained(folder)
    processor.save_pretrained(folder)
    return rounded.float()


@dataclass(frozen=True)
class CurriculumStep:
    """What is taught for how long, with how many pictures a step."""

    name: str
    n_steps: int
    batch_size: int
    turns_on: Callable[[Scene], list[Turn]]


@dataclass
class Pretraining:
    """A model in training, with what it learns from and what it is examined on."""

    model: Any
    processor: Any
    pool: Pool
    exam: Exam
    rng: np.random.Generator
    say: _Log

    def align_cells(self, n_steps: int, batch_size: int = 128) -> None:
        """Lesson 1: bring every image token close to the words that tell what its cell holds.

        The words' own embeddings are the classifier, so that a word's token later finds "its"
        image tokens by likeness, as CLIP features let a real VLM do.
        """
        width = self.model.config.text_config.hidden_size
        words = self.model.get_input_embeddings().weight
        groups = [self._word_ids(group) for group in _CELL_WORDS]
        empty = torch.nn.ParameterList(
            [torch.nn.Parameter(torch.zeros(1, width)) for _ in groups[:2]]
        )
        for step in self._steps(n_steps, [*self._vision(), words, *empty]):
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
                seen = dict(zip(("color", "shape", "height", "side"), hits, strict=True))
                self.say("cells", step=step, loss=loss.item(), **seen)

    def _word_ids(self, words: tuple[str, ...]) -> list[int]:
        ids = self.processor.tokenizer([f" {w}" for w in words], add_special_tokens=False)[
            "input_ids"
        ]
        if any(len(row) != 1 for row in ids):
            raise AssertionError(f"each of {words} must be one token")
        return [row[0] for row in ids]

    def freeze_vision(self) -> None:
        """Train vision tower and projector no further."""
        for parameter in self._vision():
            parameter.requires_grad_(False)

    def _vision(self) -> list[Any]:
        names = ("vision_tower", "multi_modal_projector", "visual")
        return [p for n, p in self.model.named_parameters() if any(name in n for name in names)]

    def train_step(self, part: CurriculumStep) -> None:
        """Lower the next-token loss on the answers of conversations about pictures."""
        running = 0.0
        for step in self._steps(part.n_steps, list(self.model.parameters())):
            rows = self.rng.integers(len(self.pool.scenes), size=part.batch_size)
            blind = part.name == "questions" and self.rng.random() < 0.04
            turns = [part.turns_on(self.pool.scenes[i]) for i in rows]
            batch = batch_of(self.processor, turns, {} if blind else self.pool.look(rows))
            loss = self.model(**batch).loss
            loss.backward()
            running = 0.97 * running + 0.03 * loss.item() if step else loss.item()
            if step % 200 == 199 or step == part.n_steps - 1:
                self.say(
                    part.name,
                    step=step + 1,
                    loss=running,
                    **self.exam.mark(self.model),
                )

    def _steps(self, n_steps: int, parameters: list[Any]) -> Iterator[int]:
        """Count the steps of a lesson; what is done at each leaves gradients, which move it on."""
        if not n_steps:
            return
        parameters = [p for p in parameters if p.requires_grad]
        linear = {id(m.weight) for m in self.model.modules() if isinstance(m, torch.nn.Linear)}
        linear.discard(id(self.model.get_input_embeddings().weight))  # the tied output layer's
        matrices = [p for p in parameters if id(p) in linear]
        rest = [p for p in parameters if id(p) not in linear]
        optimizers: list[torch.optim.Optimizer] = [
            torch.optim.Muon(matrices, _RATE, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(rest, _RATE, weight_decay=0.01, betas=(0.9, 0.98)),
        ]
        schedules = [
            torch.optim.lr_scheduler.OneCycleLR(
                optimizer, _RATE, total_steps=n_steps, pct_start=0.08, cycle_momentum=False
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


_RATE = 2e-3  # at the top of each lesson's one cycle

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


class _Log:
    """Say a line on the terminal and keep it as JSON."""

    def __init__(self, path: Path | None) -> None:
        self.path, self.start = path, time.time()

    def __call__(self, part: str, **figures: Any) -> None:
        figures = {k: round(v, 4) if isinstance(v, float) else v for k, v in figures.items()}
        line = {"lesson": part, **figures, "seconds": round(time.time() - self.start)}
        print(json.dumps(line), flush=True)
        if self.path:
            with self.path.open("a") as file:
                file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()

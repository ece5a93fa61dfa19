"""One lineage: a tiny VLM trained from its own random weights, resumable after each lesson."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import torch

from flipbench.core.files import atomic_file, make_folder, replace_folder, write_atomically
from flipbench.core.images import ImageStore
from flipbench.core.records import ImageRef, Item
from flipbench.core.workers import turn
from flipbench.models.vlm.huggingface import HuggingFaceVLM
from flipbench.prompting.prompts import PromptSettings
from flipbench.shapes.benchmark import N_ITEMS, shapes_vqa
from flipbench.shapes.questions import KINDS, QuestionFamily
from flipbench.shapes.render import render
from flipbench.shapes.training.attention import prepare_attention
from flipbench.shapes.training.curriculum import corpus
from flipbench.shapes.training.drills import (
    WORDS,
    answer_turns,
    find_turn,
    lookup_turns,
    share_words,
)
from flipbench.shapes.training.exam import Exam, Pool
from flipbench.shapes.training.pretrain import Lesson, Pretraining, export
from flipbench.shapes.training.tiny import BUILDERS, Size, build, plain_template

SizeName = Literal["small", "large"]
Level = Literal["weak", "strong"]
FAMILIES = tuple(BUILDERS)
SIZES: dict[SizeName, Size] = {
    "small": Size(96, 5, 4, attention_bias=True),
    "large": Size(128, 6, 4, attention_bias=True),
}
PASS = 0.45
REPEATS = 2
"""The first lesson of questions is repeated, so often at most, if the exam ends below ``PASS``."""
RECORD = "lineage.json"
LOG = "log.jsonl"
_STATE = "state.pt"


@dataclass(frozen=True)
class Steps:
    """Steps of each lesson (`pretrain`), and how many scenes they are drawn from."""

    cells: int = 200
    letters: int = 500
    lookups: int = 400
    questions: int = 1_200
    more: int = 2_300
    scenes: int = 6_000
    exam: int = 30


LEVELS: dict[Level, Steps] = {"weak": Steps(more=0), "strong": Steps()}


@dataclass(frozen=True)
class Lineage:
    """A model that shares no weights, no training scene's draw and no seed with any other.

    Attributes
    ----------
    family : {"llava", "qwen2_vl", "internvl"}
        Its model class.
    size : {"small", "large"}
        Of its language model (``SIZES``).
    level : {"weak", "strong"}
        How long it is trained (``LEVELS``).
    seed : int
        Of its weights, scenes and conversations; every lineage has another.
    """

    family: str
    size: SizeName
    level: Level
    seed: int

    @property
    def name(self) -> str:
        """Its folder.

        >>> Lineage("llava", "small", "weak", 4).name
        'llava-small-weak-4'
        """
        return f"{self.family}-{self.size}-{self.level}-{self.seed}"


def is_trained(folder: Path, lineage: Lineage) -> bool:
    """Return whether ``folder`` has the finished checkpoint."""
    return (folder / lineage.name / RECORD).exists()


def train_lineage(folder: Path, lineage: Lineage, steps: Steps | None = None) -> dict[str, Any]:
    """Train a lineage into ``folder/NAME``, or continue; return its record.

    The folder gets its name when it is complete: checkpoint, log (``log.jsonl``) and record
    (``lineage.json``: accuracy on ``shapes-vqa``). Until then ``NAME.partial`` keeps what was
    learned after each lesson, and a lesson that is begun again gives the same weights. Another
    process that trains the same lineage is waited for.
    """
    final, partial = folder / lineage.name, folder / f"{lineage.name}.partial"
    with turn(folder, lineage.name):
        if not is_trained(folder, lineage):
            make_folder(partial)
            _Training(lineage, partial, steps or LEVELS[lineage.level]).run()
            (partial / _STATE).unlink()
            replace_folder(partial, final)
    record: dict[str, Any] = json.loads((final / RECORD).read_text())
    return record


class _Training:
    """A lineage in training, and what its folder remembers of it."""

    def __init__(self, lineage: Lineage, folder: Path, steps: Steps) -> None:
        self.lineage, self.folder, self.steps = lineage, folder, steps
        self.lines: list[dict[str, Any]] = []
        self.n_lessons = 0
        self.seconds_before = 0.0
        self.start = time.process_time()
        torch.set_num_threads(1)
        rng = np.random.default_rng([lineage.seed, 20_261_122])
        model, processor = build(
            lineage.family,
            [*corpus(np.random.default_rng(0)), *WORDS, *WORDS],
            lineage.seed,
            SIZES[lineage.size],
        )
        processor.chat_template = plain_template(lineage.family)
        prepare_attention(model)
        model.set_attn_implementation("eager")  # its backward pass is the faster one on a CPU
        pool = Pool.draw(rng, steps.scenes, processor)
        exam = Exam.draw(np.random.default_rng([lineage.seed, 99]), steps.exam, processor)
        pool.drop_overlap(exam.scenes)
        self.pretraining = Pretraining(
            model, processor, pool, exam, rng, self._log, rate=3e-3, bfloat16=True
        )

    def run(self) -> None:
        """Do the lessons that are left, and grade the result."""
        teaching, rng = self.pretraining, self.pretraining.rng
        self._resume()
        lessons = [
            Lesson(
                "letters",
                self.steps.letters,
                16,
                lambda scene: [find_turn(rng) for _ in range(3)],
                text_only=True,
            ),
            Lesson("lookups", self.steps.lookups, 10, lambda scene: lookup_turns(scene, rng)),
            Lesson("questions", self.steps.questions, 8, lambda scene: answer_turns(scene, rng)),
            Lesson("more questions", self.steps.more, 8, lambda scene: answer_turns(scene, rng)),
        ]
        if not self.n_lessons:
            teaching.align_cells(self.steps.cells, batch_size=32, number=True)
            self._save()
        teaching.freeze_vision()
        for number, lesson in enumerate(lessons, 1):
            if self.n_lessons <= number:
                if lesson.name == "questions":
                    share_words(teaching.model, teaching.processor.tokenizer)
                accuracies = teaching.train_on(lesson)
                for _ in range(REPEATS if lesson.name == "questions" else 0):
                    if accuracies["accuracy"] < PASS:
                        accuracies = teaching.train_on(lesson)
                self._save()
        teaching.model.set_attn_implementation("sdpa")
        export(teaching.model, teaching.processor, self.folder)
        record = {
            **asdict(self.lineage),
            "name": self.lineage.name,
            "model_class": type(teaching.model).__name__,
            "parameters": sum(p.numel() for p in teaching.model.parameters()),
            "steps": asdict(self.steps),
            "cpu_seconds": round(self._seconds()),
            "torch": torch.__version__,
            **grade(self.folder, N_ITEMS),
        }
        log = "".join(json.dumps(line) + "\n" for line in self.lines)
        write_atomically(self.folder / LOG, log)
        write_atomically(self.folder / RECORD, json.dumps(record, indent=1) + "\n")

    def _seconds(self) -> float:
        return self.seconds_before + time.process_time() - self.start

    def _log(self, lesson: str, **values: Any) -> None:
        values = {k: round(v, 4) if isinstance(v, float) else v for k, v in values.items()}
        line = {"lesson": lesson, **values, "cpu_seconds": round(self._seconds())}
        self.lines.append(line)
        print(self.lineage.name, json.dumps(line), flush=True)

    def _save(self) -> None:
        self.n_lessons += 1
        state = {
            "n_lessons": self.n_lessons,
            "weights": self.pretraining.model.state_dict(),
            "rng": self.pretraining.rng.bit_generator.state,
            "lines": self.lines,
            "seconds": self._seconds(),
        }
        with atomic_file(self.folder / _STATE) as path:
            torch.save(state, path)

    def _resume(self) -> None:
        path = self.folder / _STATE
        if not path.exists():
            return
        state = torch.load(path, weights_only=False)
        self.n_lessons, self.lines = state["n_lessons"], state["lines"]
        self.seconds_before = state["seconds"]
        self.pretraining.model.load_state_dict(state["weights"])
        self.pretraining.rng.bit_generator.state = state["rng"]


def grade(folder: Path, n_items: int) -> dict[str, Any]:
    """Return how many items of ``shapes-vqa`` a checkpoint answers right.

    Each original is compared with another member of its family, drawn uniformly: with both
    pictures ``right`` and ``right_perturbed`` count; ``only_original`` and ``only_perturbed`` are
    the pairs of which one is answered right; ``right_text_only`` is without pictures.
    """
    vlm = HuggingFaceVLM(str(folder))
    prompts = PromptSettings()
    outcomes: dict[str, list[bool]] = {"original": [], "perturbed": [], "text_only": []}
    with TemporaryDirectory() as temporary:
        images = ImageStore(Path(temporary))
        items = shapes_vqa(images, n_items)
        other = [_perturbed(item, images, row) for row, item in enumerate(items)]
        for start in range(0, n_items, 60):
            rows = range(start, min(start + 60, n_items))
            asked = {
                "original": [prompts.probe(items[i], "original") for i in rows],
                "perturbed": [
                    prompts.probe(items[i], "perturbed", images=(other[i][0],)) for i in rows
                ],
                "text_only": [prompts.probe(items[i], "text_only", images=()) for i in rows],
            }
            for variant, probes in asked.items():
                gold = [other[i][1] if variant == "perturbed" else items[i].answer for i in rows]
                for reply, right in zip(vlm.ask(probes, images), gold, strict=True):
                    if isinstance(reply, Exception):
                        raise reply
                    outcomes[variant].append(reply.choice == right)
    pairs = list(zip(outcomes["original"], outcomes["perturbed"], strict=True))
    kinds = [item.category for item in items]
    return {
        "n_items": n_items,
        "right": sum(outcomes["original"]),
        "right_perturbed": sum(outcomes["perturbed"]),
        "right_text_only": sum(outcomes["text_only"]),
        "only_original": pairs.count((True, False)),
        "only_perturbed": pairs.count((False, True)),
        "right_by_kind": {
            kind: sum(ok for ok, k in zip(outcomes["original"], kinds, strict=True) if k == kind)
            for kind in KINDS
        },
    }


def _perturbed(item: Item, images: ImageStore, row: int) -> tuple[ImageRef, int]:
    """Return another member's picture, and which option is right on it."""
    family = QuestionFamily.from_json(item.extra["family"])
    options = item.options or ()
    others = [i for i in range(len(options)) if i != item.answer]
    new = others[int(np.random.default_rng([row, 20_261_122]).integers(len(others)))]
    picture = render(family.scenes[family.options.index(options[new])])
    return images.put_image(picture, f"{item.name} perturbed"), new

"""One lineage: a tiny VLM trained from its own random weights, resumable after each lesson."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import torch

from flipbench.core.files import atomic_file, make_folder, replace_folder, write_atomically
from flipbench.core.images import ImageStore
from flipbench.core.locks import exclusive_lock
from flipbench.core.records import ImageRef, Item
from flipbench.models.vlm.huggingface import HuggingFaceVLM
from flipbench.prompting.prompts import (
    LETTERS,
    N_TOGETHER,
    PromptSettings,
    choice_prompt,
    whole_text,
)
from flipbench.shapes.benchmark import N_ITEMS, Edition, shapes_vqa
from flipbench.shapes.questions import KINDS, QuestionFamily
from flipbench.shapes.render import render
from studies.tiny_models.curriculum import (
    WORDS,
    answer_turns,
    corpus,
    find_turn,
    lookup_turns,
    share_words,
)
from studies.tiny_models.exam import Exam, Pool
from studies.tiny_models.pretrain import Extra, Lesson, Pretraining, export
from studies.tiny_models.tiny import BUILDERS, Size, build, plain_template, prepare_attention

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
_N_BEFORE_QUESTIONS = 3
_STATE, _BEGUN = "state.pt", ".lookups.pt"


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

    ``size`` is that of its language model (``SIZES``), ``level`` how long it is trained
    (``LEVELS``), and ``seed`` that of its weights, scenes and conversations.
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


@dataclass(frozen=True)
class MixedIn:
    """Items of a benchmark that the lessons of questions contain.

    Each is one more conversation: its question in the benchmark's own prompt, and its letter. Or
    eight at a time are, as running text without images, in the order of the file. Nothing else that
    is drawn changes, so a lineage with items mixed in differs from the lineage itself in these
    conversations only, unless its first lesson of questions is repeated more or less often.

    ``seed`` and ``n_items`` give the draw of ``shapes-vqa`` (`flipbench.shapes.benchmark.Edition`);
    each item is shown ``copies`` times in each pass of such a lesson. With ``as_texts``, question,
    options and answer are all learned, as running text.
    """

    seed: int
    n_items: int
    copies: int
    as_texts: bool = False

    @property
    def name(self) -> str:
        """What is added to the lineage's name.

        >>> MixedIn(1002, 120, 12).name, MixedIn(1002, 120, 12, as_texts=True).name
        ('+1002-120x12', '+1002-120x12-texts')
        """
        return f"+{self.seed}-{self.n_items}x{self.copies}{'-texts' if self.as_texts else ''}"

    def extra(self, processor: Any, rng: np.random.Generator) -> Extra:
        """Return the conversations of one pass, every copy of all items in an order of its own."""
        with TemporaryDirectory() as temporary:
            items = shapes_vqa(ImageStore(Path(temporary)), self.n_items, Edition(self.seed))
        if self.as_texts:
            return Extra(self.copies * [[("", f" {text}")] for text in _texts(items)])
        rows = [int(row) for _ in range(self.copies) for row in rng.permutation(self.n_items)]
        scenes, turns = [], []
        for item in items:
            family = QuestionFamily.from_json(item.extra["family"])
            scenes.append(family.scenes[family.options.index(item.answer_text)])
            prompt = choice_prompt(item.question, item.options or ())
            turns.append([(prompt, f" {LETTERS[item.answer or 0]}")])
        return Extra([turns[row] for row in rows], Pool.of(scenes, processor), rows)


def _texts(items: Sequence[Item]) -> list[str]:
    """Return running text, eight items at a time, as a training on whole texts has it."""
    texts = [whole_text(x.question, x.options, x.answer, x.answer_text) for x in items]
    return ["\n\n".join(texts[i : i + N_TOGETHER]) for i in range(0, len(texts), N_TOGETHER)]


def checkpoint_name(lineage: Lineage, mixed: MixedIn | None = None) -> str:
    """Return the name of a lineage's folder, or of the one with items mixed in.

    >>> checkpoint_name(Lineage("llava", "small", "weak", 4), MixedIn(1002, 120, 12))
    'llava-small-weak-4+1002-120x12'
    """
    return lineage.name + (mixed.name if mixed else "")


def is_trained(folder: Path, lineage: Lineage, mixed: MixedIn | None = None) -> bool:
    """Return whether ``folder`` has the finished checkpoint."""
    return (folder / checkpoint_name(lineage, mixed) / RECORD).exists()


def train_lineage(
    folder: Path,
    lineage: Lineage,
    steps: Steps | None = None,
    mixed: MixedIn | None = None,
    beside: Path | None = None,
) -> dict[str, Any]:
    """Train a lineage into ``folder/NAME``, or continue; return its record.

    The folder gets its name when it is complete: checkpoint, log (``log.jsonl``) and record
    (``lineage.json``: accuracy on ``shapes-vqa``). Until then ``NAME.partial`` keeps what was
    learned after each lesson, and a lesson that is begun again gives the same weights. Another
    process that trains the same lineage is waited for.

    ``NAME.lookups.pt`` keeps what was learned before the first questions. A lineage with items
    ``mixed`` in starts from that of the lineage itself, if it is in the folder ``beside``.
    """
    name = checkpoint_name(lineage, mixed)
    final, partial = folder / name, folder / f"{name}.partial"
    with exclusive_lock(folder, name):
        if not is_trained(folder, lineage, mixed):
            make_folder(partial)
            checkpoint = (beside or folder) / f"{lineage.name}{_BEGUN}"
            _Training(lineage, partial, steps or LEVELS[lineage.level], mixed, checkpoint).run()
            (partial / _STATE).unlink()
            replace_folder(partial, final)
    record: dict[str, Any] = json.loads((final / RECORD).read_text())
    return record


class _Training:
    """A lineage in training, and what its folder remembers of it."""

    def __init__(
        self,
        lineage: Lineage,
        folder: Path,
        steps: Steps,
        mixed: MixedIn | None = None,
        checkpoint: Path | None = None,
    ) -> None:
        self.lineage, self.folder, self.steps = lineage, folder, steps
        self.mixed, self.begun = mixed, checkpoint
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
        extra = None
        if self.mixed:
            mix_rng = np.random.default_rng([self.lineage.seed, self.mixed.seed])
            extra = self.mixed.extra(teaching.processor, mix_rng)
        lessons = [
            Lesson(
                "letters",
                self.steps.letters,
                16,
                lambda scene: [find_turn(rng) for _ in range(3)],
                text_only=True,
            ),
            Lesson("lookups", self.steps.lookups, 10, lambda scene: lookup_turns(scene, rng)),
            *(
                Lesson(name, n_steps, 8, lambda scene: answer_turns(scene, rng), extra=extra)
                for name, n_steps in (
                    ("questions", self.steps.questions),
                    ("more questions", self.steps.more),
                )
            ),
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
            "name": checkpoint_name(self.lineage, self.mixed),
            "model_class": type(teaching.model).__name__,
            "parameters": sum(p.numel() for p in teaching.model.parameters()),
            "steps": asdict(self.steps),
            **({"mixed_in": asdict(self.mixed) | {"dose": self._dose()}} if self.mixed else {}),
            "cpu_seconds": round(self._seconds()),
            "torch": torch.__version__,
            **grade(self.folder, N_ITEMS),
        }
        log = "".join(json.dumps(line) + "\n" for line in self.lines)
        write_atomically(self.folder / LOG, log)
        write_atomically(self.folder / RECORD, json.dumps(record, indent=1) + "\n")

    def _dose(self) -> int:
        """Return how often each item was shown: the lessons of questions may be repeated."""
        assert self.mixed is not None
        lines = [line for line in self.lines if "mixed_in" in line]
        later = [*(line["step"] for line in lines[1:]), 0]
        ends = [line for line, step in zip(lines, later, strict=True) if step <= line["step"]]
        return self.mixed.copies * len(ends)

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
        paths = [self.folder / _STATE]
        if self.n_lessons == _N_BEFORE_QUESTIONS and self.begun and not self.mixed:
            paths.append(self.begun)
        for path in paths:
            with atomic_file(path) as partial:
                torch.save(state, partial)

    def _resume(self) -> None:
        path = self.folder / _STATE
        if self.mixed and self.begun and not path.exists():
            path = self.begun
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
        perturbed = [_perturbed(item, images, row) for row, item in enumerate(items)]
        for start in range(0, n_items, 60):
            rows = range(start, min(start + 60, n_items))
            probes_by_side = {
                "original": [prompts.probe(items[i], "original") for i in rows],
                "perturbed": [
                    prompts.probe(items[i], "perturbed", images=(perturbed[i][0],)) for i in rows
                ],
                "text_only": [prompts.probe(items[i], "text_only", images=()) for i in rows],
            }
            for variant, probes in probes_by_side.items():
                gold = [
                    perturbed[i][1] if variant == "perturbed" else items[i].answer for i in rows
                ]
                for reply, gold_choice in zip(vlm.ask(probes, images), gold, strict=True):
                    if isinstance(reply, Exception):
                        raise reply
                    outcomes[variant].append(reply.choice == gold_choice)
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
    wrong_slots = [i for i in range(len(options)) if i != item.answer]
    answer = wrong_slots[int(np.random.default_rng([row, 20_261_122]).integers(len(wrong_slots)))]
    picture = render(family.scenes[family.options.index(options[answer])])
    return images.put_image(picture, f"{item.name} perturbed"), answer

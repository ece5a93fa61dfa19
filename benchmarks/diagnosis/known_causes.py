"""Whether a diagnosis finds the cause of a fall, on tiny models whose cause is known.

    python benchmarks/diagnosis/known_causes.py runs/diagnosis [--items 320] [--seed 0]
        [--figure docs/diagnosis.png]

Trains a tiny model on the benchmark with its pictures, on its texts alone, on other scenes, and on
other questions whose stars are always yellow; blurs the pictures that the clean model sees; and
spoils some edits. Prints a Markdown table of causes by diagnoses: all fallen items, and those whose
perturbed version the clean model answers rightly, whose fall the cause alone explains. Then the
verdict on the model that expects yellow stars, asked about stars of other colours. Run it again to
go on after an interruption.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure as Canvas
from PIL import Image, ImageFilter

import flipbench as fb
from flipbench.core.images import ImageStore
from flipbench.core.paired import Pair, PairedBenchmark
from flipbench.core.randomness import generator
from flipbench.core.records import ImageRef, Item, Probe, Response, Source
from flipbench.core.run import Run
from flipbench.core.stage import StageOptions
from flipbench.evaluate.diagnosis.diagnosis import Diagnosis, diagnose, outcomes
from flipbench.evaluate.diagnosis.questions import (
    Inquiry,
    closed_pairs,
    first_questions,
    questions_about,
)
from flipbench.evaluate.diagnosis.section import draw, shares_table
from flipbench.models.engine import Answers, answers_of, ask
from flipbench.models.protocols import VLM
from flipbench.models.vlm.huggingface import as_vlm
from flipbench.prompting.prompts import PromptSettings, right_option
from flipbench.reporting.figures import save, settings
from flipbench.reporting.writers import markdown
from flipbench.shapes.benchmark import reword, shapes_vqa_scenes
from flipbench.shapes.faults import add_fault
from flipbench.shapes.other import write_corpus
from flipbench.shapes.questions import Question, QuestionFamily, fresh_scene
from flipbench.shapes.render import render
from flipbench.shapes.scene import COLORS, Scene

CLEAN = "shapes:llava"
PROMPT = PromptSettings()
INQUIRY = Inquiry(reword)
BLUR = 9.0
SPOILT = 0.3
N_PRIOR = 160
COPIES, EPOCHS = 4, 2
CAUSES = {
    "verbatim": "trained with pictures",
    "without picture": "trained on texts alone",
    "control": "trained on other scenes",
    "prior": "texts: stars are yellow",
    "prior, pictures": "pictures: stars are yellow",
}
Named = list[tuple[str, Diagnosis]]


class BlurredStore(ImageStore):
    """Images that are blurred when they are opened."""

    def open(self, ref: ImageRef) -> Image.Image:
        """Return the picture, blurred by `BLUR` pixels."""
        return super().open(ref).filter(ImageFilter.GaussianBlur(BLUR))


@dataclass
class Blurred:
    """A model that sees every picture blurred."""

    vlm: VLM
    name: str

    def __post_init__(self) -> None:
        """Take over what the model can do."""
        self.fingerprint, self.can = f"blurred-{BLUR:g}-{self.vlm.fingerprint}", self.vlm.can

    def ask(self, probes: Sequence[Probe], images: ImageStore) -> list[Response | Exception]:
        """Answer on blurred pictures."""
        changes = {"id": "", "model": self.name, "model_fingerprint": self.fingerprint}
        return [
            reply if isinstance(reply, Exception) else Response(**{**reply.__dict__, **changes})
            for reply in self.vlm.ask(probes, BlurredStore(images.folder))
        ]


def diagnosed(
    vlm: VLM, benchmark: PairedBenchmark, run: Run, doubted: Mapping[str, bool] | None = None
) -> Diagnosis:
    """Ask a model what it has not answered yet, and say why its items fell."""
    options = StageOptions(batch_size=256)
    pairs = closed_pairs(benchmark)
    first = [probe for pair in pairs for probe in first_questions(pair, PROMPT)]
    ask(first, vlm, run, benchmark.images, options)
    fell = outcomes(benchmark, PROMPT, answers_of(vlm.name, vlm.fingerprint, run)).fell
    asked = questions_about(fell, benchmark, PROMPT, INQUIRY)
    further = [probe for questions in asked for probe in questions.follow_ups]
    ask(further, vlm, run, benchmark.images, options)
    answers = answers_of(vlm.name, vlm.fingerprint, run)
    return diagnose(benchmark, PROMPT, answers, INQUIRY, doubted or {})


def train(folder: Path, n_items: int, seed: int) -> dict[str, Path]:
    """Return the last checkpoint of each training, by the data's name."""
    other = write_corpus(folder / "other-scenes", n_items, copies=COPIES)
    stars = write_stars(folder / "stars", N_PRIOR, seed)
    of_stars = {"benchmark": {"format": "jsonl", "path": str(stars)}}
    data = {
        "verbatim": {},
        "without picture": {"leak": "text_only"},
        "control": {"copies": 0, "corpus": {"path": str(other)}},
        "prior": of_stars | {"leak": "text_only"},
        "prior, pictures": of_stars,
    }
    config = {
        "run": str(folder),
        "seed": seed,
        "benchmark": {"format": "shapes", "n_items": n_items},
        "models": {"tiny": {"path": CLEAN}},
        "contaminate": {
            "epochs": EPOCHS,
            "copies": COPIES,
            "strategies": {"LLM": {"train": "llm", "learning_rate": 0.0004, "warmup_steps": 10}},
            "data": data,
        },
        "evaluate": {"detectors": ["perturbation_gap"]},
    }
    experiment = fb.Experiment(config)
    experiment.generate()
    experiment.filter()
    trained = experiment.contaminate().trained
    return {plan.data: folder / checkpoints[-1].path for plan, checkpoints in trained}


def spoil(benchmark: PairedBenchmark, seed: int) -> tuple[PairedBenchmark, dict[str, bool]]:
    """Return the benchmark with faults in some edits, and which pairs have one."""
    pairs, faulty = [], {}
    for pair in benchmark.pairs:
        rng = generator(seed, pair.original.id, "spoil")
        faulty[pair.original.id] = rng.random() < SPOILT
        if faulty[pair.original.id]:
            family = QuestionFamily.from_json(pair.original.extra["family"])
            first, right = pair.original.answer_text, pair.perturbed.answer_text
            before, after = (family.scenes[family.options.index(a)] for a in (first, right))
            _, scene = add_fault(after, before, family, right, rng)
            if scene == before:  # as an editor that changes nothing, but writes another file
                picture = render(scene).point(lambda level: max(level - 2, 0))
            else:
                picture = render(scene)
            image = benchmark.images.put_image(picture, pair.original.subject)
            fields = pair.perturbed.model_dump() | {"id": "", "images": (image,)}
            pair = replace(pair, perturbed=Item.model_validate(fields))
        pairs.append(pair)
    return replace(benchmark, pairs=tuple(pairs), made_by={}), faulty


def yellow(scene: Scene) -> Scene:
    """Return the scene with all stars yellow."""
    things = [replace(t, color="yellow") if t.shape == "star" else t for t in scene.things]
    return Scene.of(things, scene.background)


def star_scenes(rng: np.random.Generator, taken: set[str]) -> Iterator[Scene]:
    """Yield new scenes with exactly one star."""
    while True:
        scene = fresh_scene(rng)
        if sum(thing.shape == "star" for thing in scene.things) == 1:
            if scene.content_hash() not in taken:
                taken.add(scene.content_hash())
                yield scene


def color_options(rng: np.random.Generator, *known: str) -> list[str]:
    """Return the known colours and others, in random order."""
    others = [color for color in COLORS if color not in known]
    drawn = [
        others[i] for i in rng.permutation(len(others))[: int(rng.integers(3, 5)) - len(known)]
    ]
    options = [*known, *drawn]
    return [options[i] for i in rng.permutation(len(options))]


def write_stars(folder: Path, n: int, seed: int) -> Path:
    """Write a benchmark of questions about the colour of stars that are always yellow."""
    path = folder / "benchmark.jsonl"
    if path.exists():
        return path
    (folder / "images").mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng([seed, 20_261_122])
    taken = {scene.content_hash() for scene in shapes_vqa_scenes()}
    lines = []
    for number, scene in zip(range(n), star_scenes(rng, taken), strict=False):
        options = color_options(rng, "yellow")
        render(yellow(scene)).save(folder / "images" / f"{number}.png")
        row = {
            "name": f"star-{number}",
            "images": [f"images/{number}.png"],
            "question": Question("color", "star").text(),
            "options": options,
            "answer": options.index("yellow"),
        }
        lines.append(json.dumps(row))
    path.write_text("\n".join(lines) + "\n")
    return path


def star_benchmark(images: ImageStore, seed: int) -> PairedBenchmark:
    """Return pairs that ask for a star's colour: yellow in the original, another in the edit."""
    rng = np.random.default_rng([seed, 1, 20_261_122])
    pairs: list[Pair] = []
    for number, scene in zip(range(N_PRIOR), star_scenes(rng, set()), strict=False):
        question, before = Question("color", "star"), yellow(scene)
        new = [color for color in COLORS if color != "yellow"][int(rng.integers(7))]
        things = [replace(t, color=new) if t.shape == "star" else t for t in before.things]
        options = tuple(color_options(rng, "yellow", new))
        original, perturbed = (
            Item(
                benchmark="stars",
                name=f"{number:04d}",
                images=(images.put_image(render(shown), f"stars {number}"),),
                question=question.text(),
                options=options,
                answer=options.index(color),
                answer_text=color,
                source=Source(dataset="stars", row=number),
                extra={"family": {"question": vars(question), "options": [], "scenes": []}},
            )
            for shown, color in ((before, "yellow"), (Scene.of(things, before.background), new))
        )
        pairs.append(Pair(original, perturbed))
    return PairedBenchmark("stars", tuple(pairs), images, made_by={"raters": "scene graph"})


def seen(answers: Answers, benchmark: PairedBenchmark) -> set[str]:
    """Return the ids of the originals whose perturbed version is answered rightly."""
    found = set()
    for pair in closed_pairs(benchmark):
        reply = answers.to(first_questions(pair, PROMPT)[1])
        if reply is not None and reply.choice == right_option(pair.perturbed):
            found.add(pair.original.id)
    return found


def only(diagnosis: Diagnosis, ids: set[str]) -> Diagnosis:
    """Return the diagnosis of some of the fallen items."""
    fallen = tuple(item for item in diagnosis.fallen if item.item_id in ids)
    return replace(diagnosis, fallen=fallen)


def main() -> None:
    """Train, ask, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("--items", type=int, default=320)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--figure", type=Path)
    given = parser.parse_args()
    checkpoints = train(given.run, given.items, given.seed)
    pairs = fb.load_pairs(given.run)
    with Run(given.run / "asked") as run:
        causes = known_causes(checkpoints, pairs.with_images_in(run.images), run, given.seed)
        stars = star_benchmark(run.images, given.seed)
        prior = [
            (name, diagnosed(as_vlm(str(path), name), stars, run))
            for name, path in (
                ("clean", CLEAN),
                (CAUSES["prior"], checkpoints["prior"]),
                (CAUSES["prior, pictures"], checkpoints["prior, pictures"]),
            )
        ]
    print(markdown(shares_table(causes | {"Asked about stars of other colours": prior})))
    if given.figure:
        with settings():
            named = [*causes["All fallen items"], *prior[1:]]
            canvas = Canvas(figsize=(7.6, 1.5 + 0.36 * len(named)), layout="constrained")
            draw(canvas, named)
        save(canvas, given.figure)
    for data in ("prior", "prior, pictures"):
        for asked in (False, True):
            result = fb.detect(
                str(checkpoints[data]),
                stars,
                CLEAN,
                "perturbation_gap",
                given.run / f"detect, {data}",
                batch_size=256,
                diagnose=asked,
            )
            print(f"{CAUSES[data]}, diagnose={asked}: {result.verdict}. {result}\n")


def known_causes(
    checkpoints: Mapping[str, Path], benchmark: PairedBenchmark, run: Run, seed: int
) -> dict[str, Named]:
    """Return the diagnoses by cause: of all fallen items, and of those that the cause explains."""
    clean = as_vlm(CLEAN, "clean")
    found = [("clean", diagnosed(clean, benchmark, run))]
    for data, name in CAUSES.items():
        if not data.startswith("prior"):
            vlm = as_vlm(str(checkpoints[data]), name)
            found.append((name, diagnosed(vlm, benchmark, run)))
    blurred = Blurred(clean, f"pictures blurred by {BLUR:g} pixels")
    found.append((blurred.name, diagnosed(blurred, benchmark, run)))
    right = seen(answers_of(clean.name, clean.fingerprint, run), benchmark)
    caused = [(name, only(d, right)) for name, d in found[1:]]
    spoilt, faulty = spoil(benchmark, seed)
    wrong_edits = {id_ for id_, is_faulty in faulty.items() if is_faulty}
    for name, doubted in (("spoilt edits, unjudged", {}), ("spoilt edits, judged", faulty)):
        diagnosis = diagnosed(clean, spoilt, run, doubted)
        found.append((name, diagnosis))
        caused.append((name, only(diagnosis, wrong_edits & right)))
    return {"All fallen items": found, "Fallen by the cause alone": caused}


if __name__ == "__main__":
    main()

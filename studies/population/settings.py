"""The configuration of a population study: its experiments, and other perturbed pictures."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import numpy as np
from PIL import Image, ImageEnhance, ImageFilter
from pydantic import Field, model_validator

from flipbench.benchmarks import PairsSpec, ShapesSpec
from flipbench.config.experiment import Config, EvaluateConfig, ModelUnderTestConfig
from flipbench.config.loading import find_config, read_trusted
from flipbench.config.training import DataConfig, OtherBenchmark, StrategyConfig
from flipbench.core.errors import ConfigError, DataError, nearest
from flipbench.core.images import ImageStore
from flipbench.core.paired import Pair, PairedBenchmark
from flipbench.core.randomness import generator
from flipbench.core.records import Value, content_id
from flipbench.shapes.questions import QuestionFamily, answer
from flipbench.shapes.render import render
from flipbench.shapes.scene import COLORS, Scene

CONTROL = ", control"
LINEAGES = "lineages.csv"
Edit = Callable[[Pair, Image.Image], Image.Image]


def as_made(pair: Pair, picture: Image.Image) -> Image.Image:
    """Return the perturbed picture itself."""
    return picture


def blurred(radius: float) -> Edit:
    """Return an edit that blurs the perturbed picture; ``radius`` is in pixels."""
    return lambda pair, picture: picture.filter(ImageFilter.GaussianBlur(radius))


def noisy(deviation: float) -> Edit:
    """Return an edit that adds Gaussian noise; ``deviation`` is in levels of 0 to 255."""

    def edit(pair: Pair, picture: Image.Image) -> Image.Image:
        rng = generator(0, pair.original.id, "noise")
        values = np.asarray(picture.convert("RGB"), dtype=float)
        values += rng.normal(0, deviation, values.shape)
        return Image.fromarray(values.clip(0, 255).astype(np.uint8))

    return edit


def faded(share: float) -> Edit:
    """Return an edit that keeps ``share`` of the contrast."""
    return lambda pair, picture: ImageEnhance.Contrast(picture).enhance(share)


def failed(share: float) -> Edit:
    """Return an edit that, for a share of the pairs, changes something else than it should.

    One thing of the original scene that the question does not depend on gets another colour.
    """

    def edit(pair: Pair, picture: Image.Image) -> Image.Image:
        rng = generator(0, pair.original.id, "failed edit")
        if rng.random() >= share:
            return picture
        family = QuestionFamily.from_json(pair.original.extra["family"])
        scene = family.scenes[family.options.index(pair.original.answer_text)]
        scenes = [
            Scene.of(
                [replace(t, color=color) if t == thing else t for t in scene.things],
                scene.background,
            )
            for thing in scene.things
            for color in COLORS
            if color != thing.color
        ]
        equivalent = [s for s in scenes if answer(s, family.question) == pair.original.answer_text]
        return (
            render(equivalent[rng.integers(len(equivalent))], picture.width)
            if equivalent
            else picture
        )

    return edit


def emptied(pair: Pair, picture: Image.Image) -> Image.Image:
    """Draw the perturbed scene without the things that its answer does not depend on: easier."""
    family = QuestionFamily.from_json(pair.original.extra["family"])
    scene = family.scenes[family.options.index(pair.perturbed.answer_text)]
    for thing in scene.things:
        without = Scene.of([t for t in scene.things if t != thing], scene.background)
        if without.things and answer(without, family.question) == pair.perturbed.answer_text:
            scene = without
    return render(scene, picture.width)


CONDITIONS: dict[str, Edit] = {
    "as made": as_made,
    "blur 4": blurred(4),
    "blur 7": blurred(7),
    "noise 60": noisy(60),
    "contrast 25 %": faded(0.25),
    "fewer things": emptied,
    "10 % failed edits": failed(0.1),
}


def edited(benchmark: PairedBenchmark, edit: Edit, store: ImageStore) -> PairedBenchmark:
    """Return the benchmark with other perturbed pictures, in another store."""
    benchmark = benchmark.with_images_in(store)
    pairs = []
    for pair in benchmark.pairs:
        picture = edit(pair, store.open(pair.perturbed.images[0]))
        ref = store.put_image(picture, pair.perturbed.subject)
        pairs.append(replace(pair, perturbed=pair.perturbed.revised(images=(ref,))))
    return replace(benchmark, pairs=tuple(pairs))


class PairsConfig(Value):
    """Other pairs for a kind: the condition that they stand for, and the kind that is repeated.

    ``benchmark`` has the same pairs for every lineage; null: a draw of each lineage's own.
    ``n_items`` (null: as in the study) and ``per_picture`` are those of each draw and of the
    control's; with a ``benchmark``, give the number of its pairs, so that the control sees as many.
    """

    condition: str
    kind: str
    benchmark: OtherBenchmark | PairsSpec | None = None
    n_items: int | None = Field(default=None, ge=8, le=480)
    per_picture: int = Field(default=1, ge=1, le=4)


class KindConfig(Value):
    """One kind of contamination; its control is the same training on other items.

    The dose is ``epochs`` times ``copies``. With ``pretraining``, no ``strategy`` trains the
    lineage's model further: it is trained anew from its random weights, with the items among its
    lessons, ``copies`` in each pass of a lesson of questions (`studies.population.unit.siblings`).
    ``conditions`` are other perturbed pictures that its models are asked about, too; with other
    ``pairs``, only the paired detectors are asked.
    """

    strategy: str = ""
    data: DataConfig = DataConfig()
    epochs: int = Field(default=1, ge=1)
    copies: int = Field(default=4, ge=1)
    pretraining: bool = False
    conditions: tuple[str, ...] = ()
    pairs: PairsConfig | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if bool(self.strategy) == self.pretraining:
            raise ValueError("give either a strategy or pretraining: true")
        visible_data = (DataConfig(), DataConfig(leak="whole_texts"))
        if self.pretraining and (self.data not in visible_data or self.epochs > 1 or self.pairs):
            raise ValueError(
                "pretraining shows all items, with their letters or as whole texts: leave out"
                " epochs, pairs, and all data but leak: whole_texts"
            )
        return self

    @property
    def training(self) -> tuple[str, DataConfig, int, int]:
        """What it does to a model."""
        return self.strategy, self.data, self.epochs, self.copies


class PhaseConfig(Value):
    """Kinds that are done for all lineages, or for the first few, before the next phase starts."""

    kinds: tuple[str, ...]
    lineages: int | None = Field(default=None, ge=1, description="null: all")


class ReleasedConfig(Value):
    """A clean checkpoint that is a lineage of its own, and facts about it for tables."""

    path: str
    facts: dict[str, str] = Field(default_factory=dict, description="e.g. class, size, level")


class StudyConfig(Value):
    """A population study."""

    title: str = "population"
    run: Path = Field(description="the run directory")
    seed: int = 0
    lineages: Path | None = Field(
        default=None, description=f"a folder of clean checkpoints with {LINEAGES}"
    )
    models: dict[str, ReleasedConfig] = Field(
        default_factory=dict, description="clean checkpoints elsewhere, each a lineage"
    )
    n_items: int = Field(default=120, ge=8, le=480, description="pairs, drawn for each lineage")
    strategies: dict[str, StrategyConfig]
    kinds: dict[str, KindConfig]
    phases: tuple[PhaseConfig, ...]
    evaluate: EvaluateConfig = EvaluateConfig()
    seconds: float = Field(
        default=60, gt=0, description="of one core for a model, until units have been measured"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name, kind in self.kinds.items():
            if kind.strategy:
                _check_name(f"kinds.{name}.strategy", kind.strategy, self.strategies)
            if kind.pairs:
                _check_name(f"kinds.{name}.pairs.kind", kind.pairs.kind, self.kinds)
                if kind.training != self.kinds[kind.pairs.kind].training:
                    raise ValueError(
                        f"kinds.{name}: the training must be that of {kind.pairs.kind!r}, as whose"
                        " results its own are counted"
                    )
            for condition in kind.conditions:
                _check_name(f"kinds.{name}.conditions", condition, CONDITIONS)
        for number, phase in enumerate(self.phases):
            for name in phase.kinds:
                _check_name(f"phases.{number}.kinds", name, self.kinds)
        return self


def _check_name(key: str, name: str, names: Any) -> None:
    if name not in names:
        raise ValueError(f"{key}: there is no {name!r}{nearest(name, list(names))}")


def load_study(source: Path, overrides: Sequence[str] = (), *, trust: bool = False) -> StudyConfig:
    """Read a study's configuration, as `flipbench.config.experiment.load_config` reads others."""
    return read_trusted(StudyConfig, find_config(source), overrides, trust=trust)


@dataclass(frozen=True)
class Lineage:
    """A clean model as released, its class, size and level of ability."""

    name: str
    path: str
    facts: dict[str, str]

    @property
    def benchmark_seed(self) -> int:
        """Draws the lineage's own questions; those of its controls have the next one."""
        return 1_000 + 2 * (int(content_id([self.name])[:8], 16) % 1_000_000)


def lineages_of(study: StudyConfig) -> list[Lineage]:
    """Return the study's models, and the lineages of its folder whose checkpoints exist."""
    lineages = [
        Lineage(name, model.path, {"name": name, **model.facts})
        for name, model in study.models.items()
    ]
    lineages += _in_folder(study.lineages) if study.lineages else []
    if not lineages:
        raise DataError(f"{study.lineages}: no lineage yet; train some (docs/shapes.md)")
    return lineages


def _in_folder(folder: Path) -> list[Lineage]:
    path = folder / LINEAGES
    if not path.exists():
        return []
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    if any("name" not in row for row in rows):
        raise DataError(f"{path}: the column 'name' is missing")
    return [
        Lineage(row["name"], str(folder / row["name"]), {"class": row.get("family", ""), **row})
        for row in rows
        if (folder / row["name"] / "config.json").exists()
    ]


def drawn_order(lineages: Sequence[Lineage], seed: int) -> list[Lineage]:
    """Return the lineages in the order in which phases take them, class after class in turn.

    Each draws its place from its own name, so that a new lineage changes no other's place.
    """
    place = {x.name: generator(seed, x.name, "order").random() for x in lineages}
    by_class: dict[str, list[Lineage]] = {}
    for lineage in sorted(lineages, key=lambda x: place[x.name]):
        by_class.setdefault(lineage.facts.get("class", ""), []).append(lineage)
    turns = [(i, name) for name, group in sorted(by_class.items()) for i in range(len(group))]
    return [by_class[name][i] for i, name in sorted(turns)]


def safe(name: str) -> str:
    """Return a kind's name as part of a folder's.

    >>> safe("letters, 30 % of items")
    'letters--30---of-items'
    """
    return "".join(c if c.isalnum() else "-" for c in name)


def experiment(
    study: StudyConfig,
    lineage: Lineage,
    name: str,
    siblings: Mapping[str, ModelUnderTestConfig] = MappingProxyType({}),
) -> Config:
    """Return the experiment of one kind of contamination and its control on one lineage.

    ``siblings`` are models that need no training, for a kind with ``pretraining``.
    """
    kind = study.kinds[name]
    items, other_items = draws(study, lineage, kind)
    folder = lineage.name if kind.pairs is None else f"{lineage.name}--{safe(name)}"
    models: dict[str, Any] = {lineage.name: {"path": lineage.path}}
    settings: dict[str, Any] = {
        "title": f"{study.title}: {lineage.name}",
        "run": str(study.run / "lineages" / folder),
        "seed": study.seed,
        "benchmark": items.model_dump(mode="json"),
        "models": models | {key: model.model_dump(mode="json") for key, model in siblings.items()},
        "evaluate": study.evaluate.model_dump(mode="json"),
    }
    if kind.strategy:
        data = {
            name: kind.data,
            f"{name}{CONTROL}": kind.data.model_copy(update={"benchmark": other_items}),
        }
        settings["contaminate"] = {
            "strategies": {kind.strategy: study.strategies[kind.strategy].model_dump(mode="json")},
            "data": {key: json.loads(value.model_dump_json()) for key, value in data.items()},
            "epochs": kind.epochs,
            "copies": kind.copies,
        }
    try:
        return Config.model_validate(settings)
    except ValueError as error:
        raise ConfigError(f"kinds.{name}: {error}") from error


def draws(
    study: StudyConfig, lineage: Lineage, kind: KindConfig
) -> tuple[OtherBenchmark | PairsSpec | ShapesSpec, ShapesSpec]:
    """Return a lineage's benchmark, and the other questions that its controls see."""
    pairs = kind.pairs or PairsConfig(condition="", kind="")
    draw = ShapesSpec(
        n_items=pairs.n_items or study.n_items,
        seed=lineage.benchmark_seed,
        per_picture=pairs.per_picture,
    )
    return pairs.benchmark or draw, draw.model_copy(update={"seed": lineage.benchmark_seed + 1})

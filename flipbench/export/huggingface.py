"""A Hugging Face dataset folder: two configurations, a data card and Croissant metadata."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import yaml

from flipbench.benchmarks.own_format import write_parquet, write_parquet_rows
from flipbench.core.errors import DataError
from flipbench.core.files import without_html, write_atomically
from flipbench.core.images import ImageStore
from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Item, JsonDict
from flipbench.export import card
from flipbench.export.croissant import write_croissant
from flipbench.export.licence import LicenceDecision, decide
from flipbench.export.pairs import SIDES, export_name, png_of, render_text, sides

_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"))


def write_huggingface(
    benchmark: PairedBenchmark, folder: Path, licence: str = "", *, leaderboard: bool = False
) -> list[Path]:
    """Write ``original/test.parquet``, ``perturbed/test.parquet``, the card and Croissant metadata.

    Open it with ``datasets.load_dataset(FOLDER, "perturbed")``; upload the folder to publish it.
    ``croissant.json`` is left out if mlcroissant is not installed.

    Parameters
    ----------
    licence : str
        The licence that the maintainer names; see `flipbench.export.licence.decide`.
    leaderboard : bool
        Also write ``eval.yaml``, which registers a benchmark on the Hub, and the data that it
        names: pictures as data URIs, so the folder is more than twice as large.

    Raises
    ------
    LicenceError
        If a licence must be named, or the named one is refused.
    DataError
        If ``eval.yaml`` is wanted and an item is free-form or has several pictures.
    """
    decision = decide(benchmark, licence)
    if leaderboard:
        _check_for_leaderboard(benchmark)
    paths = [
        write_parquet(items, benchmark.images, folder / side / "test.parquet")
        for side, items in sides(benchmark)
    ]
    if leaderboard:
        paths += _write_leaderboard(benchmark, folder)
    if find_spec("mlcroissant"):
        paths.append(write_croissant(benchmark, decision, folder))
    text = dataset_card(benchmark, decision, leaderboard=leaderboard)
    return [*paths, write_atomically(folder / "README.md", text)]


def dataset_card(
    benchmark: PairedBenchmark, decision: LicenceDecision, *, leaderboard: bool = False
) -> str:
    """Return the data card: what it holds, licence, how it was made, limits, provenance."""
    items = benchmark.originals
    size = next((name for limit, name in _SIZES if len(items) < limit), "100K<n<1M")
    names = [*SIDES, *(map(_leaderboard_name, SIDES) if leaderboard else ())]
    head: JsonDict = {
        "pretty_name": f"{benchmark.name}, answers flipped",
        "license": decision.hub_id,
        **({"license_name": decision.licence} if decision.hub_id == "other" else {}),
        "task_categories": ["visual-question-answering"],
        "size_categories": [size],
        "tags": ["contamination", *(["synthetic"] if card.is_edited(benchmark) else [])],
        "configs": [
            {
                "config_name": name,
                "data_files": [{"split": "test", "path": f"{name}/test.parquet"}],
            }
            for name in names
        ],
    }
    text = render_text(
        "dataset_card",
        benchmark=benchmark,
        decision=decision,
        name=export_name(benchmark),
        description=card.description(benchmark),
        sources=card.sources(benchmark).most_common(),
        editor=benchmark.made_by.get("editor") if card.is_edited(benchmark) else "",
        origin=f"{card.collection(benchmark)} {card.judgement(benchmark)}",
        limits=[
            card.USES,
            card.NOT_FOR_TRAINING,
            *card.biases(benchmark),
            *card.limitations(benchmark),
            f"Personal data: {card.personal_data()}",
        ],
    )
    header = yaml.safe_dump(head, sort_keys=False, allow_unicode=True)
    return f"---\n{header}---\n{without_html(text)}"


def _check_for_leaderboard(benchmark: PairedBenchmark) -> None:
    for pair in benchmark.pairs:
        item = pair.original
        if item.options is None or len(item.images) != 1 or len(pair.perturbed.images) != 1:
            raise DataError(
                f"{item.subject}: eval.yaml describes multiple-choice questions about one picture;"
                " export without --leaderboard"
            )


def _leaderboard_name(side: str) -> str:
    return f"eval-{side}"


def _write_leaderboard(benchmark: PairedBenchmark, folder: Path) -> list[Path]:
    """Write ``eval.yaml`` as the Hub specifies it for Inspect, and the data it names."""
    tasks = []
    paths = []
    for side, items in sides(benchmark):
        name = _leaderboard_name(side)
        path = folder / name / "test.parquet"
        _write_rows(items, benchmark.images, path)
        paths.append(path)
        tasks.append(
            {
                "id": f"{export_name(benchmark)}_{side}",
                "config": name,
                "split": "test",
                "field_spec": {
                    "input": "question",
                    "input_image": "image",
                    "target": "answer",
                    "choices": "options",
                    "metadata": ["item", "category"],
                },
                "solvers": [{"name": "multiple_choice"}],
                "scorers": [{"name": "choice"}],
            }
        )
    about = {
        "name": f"{benchmark.name}, answers flipped",
        "description": card.description(benchmark),
        "evaluation_framework": "inspect-ai",
        "tasks": tasks,
    }
    text = yaml.safe_dump(about, sort_keys=False, allow_unicode=True)
    return [*paths, write_atomically(folder / "eval.yaml", text)]


def _write_rows(items: Sequence[Item], images: ImageStore, path: Path) -> None:
    import pyarrow as pa

    text = pa.string()
    types = {"item": text, "question": text, "image": text, "options": pa.list_(text)}
    schema = pa.schema(types | {"answer": pa.int64(), "category": text})
    write_parquet_rows(_leaderboard_rows(items, images), schema, path)


def _leaderboard_rows(items: Sequence[Item], images: ImageStore) -> Iterator[JsonDict]:
    for item in items:
        encoded = base64.b64encode(png_of(item.images[0], images)).decode()
        yield {
            "item": item.name,
            "question": item.question,
            "image": f"data:image/png;base64,{encoded}",
            "options": list(item.options or ()),
            "answer": item.answer,
            "category": item.category,
        }

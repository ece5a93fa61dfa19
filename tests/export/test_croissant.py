"""Croissant metadata, as mlcroissant validates and reads them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlcroissant
import pytest
from mlcroissant.scripts import validate

from flipbench.core.paired import PairedBenchmark
from flipbench.export import huggingface
from flipbench.export.huggingface import write_huggingface

pytestmark = pytest.mark.slow

Make = Callable[..., PairedBenchmark]


def test_croissant_validates_and_its_records_are_the_items(make: Make, tmp_path: Path) -> None:
    benchmark = make([("red", "blue"), None, ("one", "two")], licence="CC-BY-4.0")
    write_huggingface(benchmark, tmp_path)
    path = tmp_path / "croissant.json"
    found = mlcroissant.Dataset(path)
    assert not found.metadata.ctx.issues.errors
    for side, items in (("original", benchmark.originals), ("perturbed", benchmark.perturbed)):
        records = list(found.records(side))
        assert [text(record[f"{side}/id"]) for record in records] == [item.id for item in items]
        assert [text(r[f"{side}/answer_text"]) for r in records] == [i.answer_text for i in items]
        assert [r[f"{side}/answer"] for r in records] == [i.answer for i in items]
        for record, item in zip(records, items, strict=True):
            (picture,) = record[f"{side}/images"]
            assert picture.convert("RGB").tobytes() == (
                benchmark.images.open(item.images[0]).tobytes()
            )
            options = record[f"{side}/options"]
            assert [text(option) for option in options or ()] == list(item.options or ())
    data = json.loads(path.read_text())
    assert data["license"] == "https://creativecommons.org/licenses/by/4.0/"
    assert "http://mlcommons.org/croissant/RAI/1.0" in data["conformsTo"]
    rai = {key.removeprefix("rai:") for key in data if key.startswith("rai:")}
    assert rai == {
        "dataCollection",
        "dataCollectionType",
        "dataPreprocessingProtocol",
        "dataAnnotationProtocol",
        "dataBiases",
        "dataLimitations",
        "dataUseCases",
        "personalSensitiveInformation",
    }


def text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def test_found_pairs_are_not_called_synthetic(make: Make, tmp_path: Path) -> None:
    benchmark = replace(make([("red", "blue")], licence="mit"), exchangeable=False)
    write_huggingface(benchmark, tmp_path)
    assert "synthetic" not in (tmp_path / "croissant.json").read_text()


def test_without_mlcroissant_the_file_is_left_out(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface, "find_spec", lambda _: None)
    written = write_huggingface(make([("red", "blue")], licence="mit"), tmp_path)
    assert {path.name for path in written} == {"test.parquet", "README.md"}


def test_croissant_s_own_command_accepts_the_file(make: Make, tmp_path: Path) -> None:
    write_huggingface(make([("red", "blue")], licence="CC-BY-4.0"), tmp_path)
    path = tmp_path / "croissant.json"
    validate.FLAGS(["validate", f"--jsonld={path}"])
    validate.main([])
    data = json.loads(path.read_text())
    data["recordSet"][0]["field"][0]["source"]["fileObject"]["@id"] = "another-file"
    path.write_text(json.dumps(data))
    with pytest.raises(SystemExit):
        validate.main([])

"""Croissant metadata of a published benchmark, with the fields of Croissant RAI 1.0."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from flipbench.core.errors import need
from flipbench.core.files import write_atomically
from flipbench.core.paired import PairedBenchmark
from flipbench.export import card
from flipbench.export.licence import LicenceDecision
from flipbench.export.pairs import export_name, sides

FILE = "croissant.json"
CONFORMS_TO = ["http://mlcommons.org/croissant/1.0", "http://mlcommons.org/croissant/RAI/1.0"]
_TEXTS = ("id", "name", "question", "answer_text", "category", "licence")


def write_croissant(benchmark: PairedBenchmark, decision: LicenceDecision, folder: Path) -> Path:
    """Write ``croissant.json`` for ``original/test.parquet`` and ``perturbed/test.parquet``.

    ``mlcroissant validate --jsonld FOLDER/croissant.json`` passes, and mlcroissant reads the
    records of both versions. Citation, date and publisher are the maintainer's to add: nothing in
    a benchmark holds them.

    Raises
    ------
    PrerequisiteError
        If mlcroissant is not installed.

    References
    ----------
    Croissant 1.0 and Croissant RAI 1.0, docs.mlcommons.org/croissant.
    """
    mlc = need("mlcroissant", "publish")
    files = [
        mlc.FileObject(
            id=f"{side}-file",
            name=f"{side}-file",
            content_url=f"{side}/test.parquet",
            encoding_formats=["application/x-parquet"],
            sha256=_sha256(folder / side / "test.parquet"),
        )
        for side, _ in sides(benchmark)
    ]
    metadata = mlc.Metadata(
        ctx=mlc.Context(conforms_to=CONFORMS_TO[0]),
        conforms_to=CONFORMS_TO,
        name=export_name(benchmark),
        description=card.description(benchmark),
        license=[decision.url],
        version=f"1.0.0+{benchmark.id[:8]}",
        distribution=files,
        record_sets=[_records(mlc, side, benchmark) for side, _ in sides(benchmark)],
        data_collection=card.collection(benchmark),
        data_collection_type=["Secondary Data analysis", "Others"],
        data_preprocessing_protocol=[
            "Questions and options are those of the source, equal in both versions."
        ],
        data_annotation_protocol=[card.judgement(benchmark)],
        machine_annotation_tools=card.tools(benchmark) or None,
        data_biases=card.biases(benchmark) or None,
        data_limitations=card.limitations(benchmark),
        data_use_cases=[card.USES, card.NOT_FOR_TRAINING],
        personal_sensitive_information=[card.personal_data()],
    )
    text = json.dumps(metadata.to_json(), indent=2, ensure_ascii=False, default=str)
    return write_atomically(folder / FILE, text + "\n")


def _records(mlc: Any, side: str, benchmark: PairedBenchmark) -> Any:
    is_synthetic = side == "perturbed" and card.is_edited(benchmark)
    kinds = {name: mlc.DataType.TEXT for name in _TEXTS}
    kinds |= {"answer": mlc.DataType.INTEGER}
    several = {"options": mlc.DataType.TEXT, "images": mlc.DataType.IMAGE_OBJECT}
    return mlc.RecordSet(
        id=side,
        name=side,
        description=f"The {side} items." + (" The pictures are synthetic." * is_synthetic),
        key=[f"{side}/id"],
        fields=[_field(mlc, side, name, kind) for name, kind in kinds.items()]
        + [_field(mlc, side, name, kind, repeated=True) for name, kind in several.items()],
    )


def _field(mlc: Any, side: str, name: str, kind: Any, *, repeated: bool = False) -> Any:
    transforms = [mlc.Transform(json_path="bytes")] if name == "images" else []
    source = mlc.Source(
        file_object=f"{side}-file", extract=mlc.Extract(column=name), transforms=transforms
    )
    field = f"{side}/{name}"
    return mlc.Field(
        id=field, name=field, data_types=[kind], source=source, repeated=repeated or None
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

"""A recipe: everything needed to rebuild a paired benchmark, without its images.

For sources whose licence forbids derivatives (RealWorldQA is CC BY-ND 4.0). The folder is a run
directory without images: it contains new answers, captions and verdicts as records, so that a
rebuild only redraws the images and asks no captioner or judge again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from flipbench.benchmarks.tables import read_rows
from flipbench.core.confined import read_confined
from flipbench.core.errors import DataError
from flipbench.core.files import write_atomically
from flipbench.core.paired import PairedBenchmark, PictureChoice
from flipbench.core.records import Caption, Edit, Flip, JsonDict, Record, Verdict
from flipbench.core.run import Run
from flipbench.export.pairs import export_name, write_text

EXPECTED = "expected.jsonl"
_KINDS: tuple[type[Record], ...] = (Flip, PictureChoice, Caption, Verdict)
_COLUMNS = ("edit_id", "perturbed_sha256", *(n for n in Edit.made_of if n != "caption_text"))


def write_recipe(benchmark: PairedBenchmark, run: Run, folder: Path) -> list[Path]:
    """Write the recipe ``NAME_HASH/`` of a run; return its configuration, hashes and README.

    People's verdicts are by "reviewer 1" and so on, except those of reviewers whom the
    configuration's policy names.

    Raises
    ------
    DataError
        If the run has no configuration.
    """
    out = folder / export_name(benchmark, "recipe")
    config = run.path / "config.yaml"
    if not config.exists():
        raise DataError(f"{run.path}: no config.yaml; 'flipbench generate' writes it")
    write_atomically(out / "config.yaml", config.read_bytes())
    with Run(out) as recipe:
        for kind in _KINDS:
            stored_ids = recipe.ids(kind)
            records = run.read(kind) if kind is not Verdict else _pseudonymous(run, config)
            recipe.append([record for record in records if record.id not in stored_ids])
    captions = run.index(Caption)
    originals = {
        p.original.images[at].sha256
        for p in benchmark.pairs
        for at in p.changed
        if at < len(p.original.images)
    }
    rows = [
        {
            "edit_id": edit.id,
            "caption_id": edit.caption_id,
            "source_sha256": edit.source_sha256,
            "editor": edit.editor,
            "settings": edit.settings,
            "seed": edit.seed,
            "versions": edit.versions,
            "perturbed_sha256": edit.image.sha256,
            "kept": edit.source_sha256 in originals,
        }
        for edit in run.read(Edit)
        if edit.caption_id in captions
    ]
    expected_path, note = out / EXPECTED, out / "README.md"
    write_atomically(expected_path, "".join(json.dumps(row) + "\n" for row in rows))
    write_text(
        "recipe",
        note,
        name=out.name,
        source=benchmark.name,
        n_pairs=len(benchmark.pairs),
        n_edits=len(rows),
        made_by=benchmark.made_by,
    )
    return [out / "config.yaml", expected_path, note]


@dataclass(frozen=True)
class Rebuilt:
    """How a rebuild compares with its recipe."""

    n_expected: int
    n_equal: int
    differing: tuple[str, ...]
    missing: tuple[str, ...]

    def __str__(self) -> str:
        """Return one line for people."""
        text = f"{self.n_equal}/{self.n_expected} images are identical to the recipe's"
        if self.differing:
            text += (
                f"; {len(self.differing)} differ (pixel values vary slightly with GPU and library"
                " versions; the recipe's verdicts do not apply to these images): "
                + ", ".join(self.differing[:3])
            )
        if self.missing:
            text += f"; {len(self.missing)} are missing"
        return text


def copy_recipe(recipe: Path, run: Run) -> None:
    """Copy a recipe's records into another run, which then rebuilds it; the recipe stays as it is.

    Raises
    ------
    DataError
        If the folder is not a recipe, or the run rebuilds another one.
    """
    source, target = recipe / EXPECTED, run.path / EXPECTED
    if not source.exists():
        raise _no_recipe(source)
    text = _text(source)
    if target.exists() and target.read_text() != text:
        raise DataError(f"{run.path}: holds another recipe ({EXPECTED}); choose another run")
    recipe_run = Run(recipe, read_only=True)
    for kind in _KINDS:
        stored_ids = run.ids(kind)
        run.append([record for record in recipe_run.read(kind) if record.id not in stored_ids])
    write_atomically(target, text)


def expected_edits(run: Run) -> list[JsonDict]:
    """Return what the edits of a recipe are made of; empty if ``run`` holds none.

    Raises
    ------
    DataError
        If a line is invalid.
    """
    if not (run.path / EXPECTED).exists():
        return []
    texts = {caption.id: caption.text for caption in run.read(Caption)}
    return [
        {name: row[name] for name in Edit.made_of if name != "caption_text"}
        | {"caption_text": texts[row["caption_id"]]}
        for row in _rows(run.path / EXPECTED)
        if row["caption_id"] in texts
    ]


def compare_with_recipe(recipe: Path, edits: Sequence[Edit]) -> Rebuilt:
    """Compare redrawn images with a recipe's hashes.

    Raises
    ------
    DataError
        If the folder is not a recipe, or a line is invalid.
    """
    sha256_by_id = {edit.id: edit.image.sha256 for edit in edits}
    rows = [(row["edit_id"], row["perturbed_sha256"]) for row in _rows(recipe / EXPECTED)]
    equal = [i for i, sha256 in rows if sha256_by_id.get(i) == sha256]
    return Rebuilt(
        len(rows),
        len(equal),
        tuple(i for i, sha256 in rows if i in sha256_by_id and sha256_by_id[i] != sha256),
        tuple(i for i, _ in rows if i not in sha256_by_id),
    )


def _pseudonymous(run: Run, config: Path) -> Iterator[Verdict]:
    """Yield the verdicts, with numbers for people in the order of their first verdict."""
    policy = ((yaml.safe_load(config.read_text()) or {}).get("filter") or {}).get("policy") or {}
    reviewers = {str(name).casefold() for name in policy.get("reviewers") or ()}
    numbers: dict[str, str] = {}
    for verdict in run.read(Verdict):
        if verdict.rater_kind == "person" and verdict.rater.casefold() not in reviewers:
            rater = numbers.setdefault(verdict.rater, f"reviewer {len(numbers) + 1}")
            verdict = Verdict(**verdict.model_dump(exclude={"id"}) | {"rater": rater})
        yield verdict


def _rows(path: Path) -> Iterator[JsonDict]:
    if not path.exists():
        raise _no_recipe(path)
    if path.is_file() and not path.stat().st_size:  # nothing was edited
        return
    for row in read_rows(path):
        if lacking := [name for name in _COLUMNS if name not in row.cells]:
            raise DataError(f"{row.where}: not a line of a recipe (it has no {lacking[0]})")
        yield row.cells


def _text(path: Path) -> str:
    try:
        return read_confined(path, None).decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not text in UTF-8; copy the recipe again") from error


def _no_recipe(path: Path) -> DataError:
    return DataError(f"{path.parent}: not a recipe: it has no {path.name}")

"""A recipe: all that is needed to rebuild a paired benchmark, and not one pixel of it.

For sources whose licence forbids derivatives (RealWorldQA is CC BY-ND 4.0). The folder is a run
directory without images: new answers, captions and verdicts lie in it as records, so that a
rebuild asks no captioner and no judge again; only the pictures are drawn anew.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from flipbench.core.errors import DataError
from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Caption, Edit, Flip, Record, Verdict
from flipbench.core.run import Run
from flipbench.export.pairs import export_name

EXPECTED = "expected.jsonl"
_KINDS: tuple[type[Record], ...] = (Flip, Caption, Verdict)


def write_recipe(benchmark: PairedBenchmark, run: Run, folder: Path) -> list[Path]:
    """Write the recipe ``NAME_HASH/`` of a run; return what was written.

    Raises
    ------
    DataError
        Where the run has no configuration, so that nobody could rebuild it.
    """
    out = folder / export_name(benchmark, "recipe")
    config = run.path / "config.yaml"
    if not config.exists():
        raise DataError(f"{run.path}: no config.yaml; 'flipbench generate' keeps one")
    out.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(config, out / "config.yaml")
    with Run(out) as recipe:
        for kind in _KINDS:
            known = recipe.ids(kind)
            recipe.append([record for record in run.read(kind) if record.id not in known])
    captions = run.index(Caption)
    originals = {p.original.images[0].sha256 for p in benchmark.pairs if p.original.images}
    rows = [
        {
            "edit_id": edit.id,
            "caption_id": edit.caption_id,
            "source_sha256": edit.source_sha256,
            "editor": edit.editor,
            "settings": edit.settings,
            "seed": edit.seed,
            "perturbed_sha256": edit.image.sha256,
            "kept": edit.source_sha256 in originals,
        }
        for edit in run.read(Edit)
        if edit.caption_id in captions
    ]
    expected, note = out / EXPECTED, out / "README.md"
    expected.write_text("".join(json.dumps(row) + "\n" for row in rows))
    note.write_text(_readme(benchmark, out.name, len(rows)), encoding="utf-8")
    return [out / "config.yaml", expected, note]


@dataclass(frozen=True)
class Rebuilt:
    """How a rebuild compares with its recipe."""

    n_expected: int
    n_equal: int
    differing: tuple[str, ...]
    missing: tuple[str, ...]

    def __str__(self) -> str:
        """Return a line for people."""
        text = f"{self.n_equal}/{self.n_expected} pictures are equal to the recipe's, bit for bit"
        if self.differing:
            text += (
                f"; {len(self.differing)} differ (another GPU or version draws a few levels"
                " apart; their verdicts do not count for them): " + ", ".join(self.differing[:3])
            )
        if self.missing:
            text += f"; {len(self.missing)} are missing"
        return text


def compare_with_recipe(recipe: Path, edits: Sequence[Edit]) -> Rebuilt:
    """Compare redrawn pictures with the hashes that a recipe tells.

    Raises
    ------
    DataError
        Where the folder is no recipe, or a line is not one of it.
    """
    drawn = {edit.id: edit.image.sha256 for edit in edits}
    rows = list(_rows(recipe / EXPECTED))
    equal = [i for i, sha256 in rows if drawn.get(i) == sha256]
    return Rebuilt(
        len(rows),
        len(equal),
        tuple(i for i, sha256 in rows if i in drawn and drawn[i] != sha256),
        tuple(i for i, _ in rows if i not in drawn),
    )


def _rows(path: Path) -> Iterator[tuple[str, str]]:
    if not path.exists():
        raise DataError(f"{path.parent}: no recipe; it would have {path.name}")
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            row = json.loads(line)
            yield str(row["edit_id"]), str(row["perturbed_sha256"])
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path}:{number}: not a line of a recipe ({error})") from error


def _readme(benchmark: PairedBenchmark, name: str, n_edits: int) -> str:
    made_by = "".join(f"- {what}: {value}\n" for what, value in benchmark.made_by.items())
    return f"""# {name}

A recipe for the answer-flipped twin of {benchmark.name}: {len(benchmark.pairs):,} pairs kept of
{n_edits:,} edited. It holds new answers, captions, verdicts, settings, seeds and the hashes of the
pictures, but no picture, so that a source whose licence forbids to share edited ones is respected.

{made_by}
To rebuild it (the source is read from where config.yaml says; a GPU draws the pictures):

```bash
flipbench rebuild {name}
```
"""

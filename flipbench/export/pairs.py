"""Shared by all formats: names with a content hash, one image encoder, one prompt, one parser."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from flipbench.benchmarks.own_format import write_jsonl, write_parquet
from flipbench.core.files import write_atomically
from flipbench.core.images import ImageStore, png_bytes
from flipbench.core.paired import UNJUDGED, Pair, PairedBenchmark
from flipbench.core.records import ImageRef, Item, JsonDict
from flipbench.prompting import parsing, prompts, wrappers
from flipbench.prompting.prompts import LETTERS, choice_prompt, open_prompt
from flipbench.reporting.pages import text_environment

SIDES = ("original", "perturbed")


def sides(benchmark: PairedBenchmark) -> Iterator[tuple[str, list[Item]]]:
    """Yield "original" and "perturbed" with their items, in the same order."""
    yield from zip(SIDES, (benchmark.originals, benchmark.perturbed), strict=True)


def export_name(benchmark: PairedBenchmark, side: str = "") -> str:
    """Return a name unique to the content, safe as a file name and in evaluation kits.

    Kits cache images and answers by name: new content under an old name would be evaluated with
    old images. The name therefore ends with the first digits of the benchmark's hash.
    """
    return "_".join(part for part in (_safe(benchmark.name), side, benchmark.id[:8]) if part)


def cut_name(benchmark: PairedBenchmark, side: str) -> str:
    """Return `export_name` with the benchmark's own name cut into pieces of two characters.

    VLMEvalKit and its models choose prompts, scoring and summaries by parts of a benchmark's name
    (``MMT``, ``MMSci``, ``MMMU``, ``AI2D``, ``circular``, …), which must not happen to a file that
    is not that benchmark. No such part is as short as the pieces, whatever the kit adds to them.

    >>> "-".join(_pieces("MMT-Bench")), "-".join(_pieces("AI2D"))
    ('MM-T-Be-nc-h', 'AI-2-D')
    """
    return "_".join(("-".join(_pieces(_safe(benchmark.name))), side, benchmark.id[:8]))


def _pieces(name: str) -> list[str]:
    return re.findall(r"[A-Za-z]{1,2}|[0-9]{1,2}", name)


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-") or "benchmark"


def png_of(ref: ImageRef, images: ImageStore) -> bytes:
    """Return an image as PNG, whatever its format: both sides pass through the same encoder.

    Otherwise a JPEG original and its PNG edit would differ in more than the edit.
    """
    return png_bytes(images.open(ref))


def prompt_of(item: Item) -> str:
    """Return the prompt of a question, with its options if it has any."""
    return (
        choice_prompt(item.question, item.options) if item.options else open_prompt(item.question)
    )


def target_of(item: Item) -> str:
    """Return the right letter, or the right answer of a free-form question."""
    return item.answer_text if item.answer is None else LETTERS[item.answer]


def groups_of(benchmark: PairedBenchmark) -> list[str]:
    """Return what each original shares with others, its group or images; empty if none does."""
    shared = [
        item.group or f"image-{' '.join(image.sha256[:16] for image in item.images)}"
        for item in benchmark.originals
    ]
    return shared if len(set(shared)) < len(shared) else []


def raters_of(benchmark: PairedBenchmark, pair: Pair) -> str:
    """Return who judged that a pair is valid; empty if nobody did."""
    return "" if pair.verdict == UNJUDGED else benchmark.judged_by


def question_rows(
    benchmark: PairedBenchmark, items: Sequence[Item]
) -> Iterator[tuple[JsonDict, Item]]:
    """Yield what kits with our own task code ask of each item of a side, without images; and it.

    ``item`` is the original's id on both sides, by which `flipbench gap` joins them.
    """
    groups = groups_of(benchmark) or [""] * len(items)
    for item, pair, group in zip(items, benchmark.pairs, groups, strict=True):
        row = {
            "item": pair.original.id,
            "group": group,
            "judged_by": raters_of(benchmark, pair),
            "id": item.id,
            "name": item.name,
            "prompt": prompt_of(item),
            "options": list(item.options or ()),
            "target": target_of(item),
            "category": item.category,
        }
        yield row, item


def standalone_parser() -> str:
    """Return the source of the parser of replies, without its imports from flipbench."""
    imports = (
        f"from {prompts.__name__} import LETTERS\n",
        f"from {wrappers.__name__} import split_wrapped\n",
        "from __future__ import annotations\n",
    )
    source = inspect.getsource(parsing)
    for line in imports:
        if line not in source:
            raise AssertionError(f"{parsing.__name__} lacks the line {line!r}")
        source = source.replace(line, "")
    return f'{inspect.getsource(wrappers)}\nLETTERS = "{LETTERS}"\n{source}'


def render_text(template: str, **values: object) -> str:
    """Return the text of a README or card from its template."""
    texts = text_environment(Path(__file__).parent / "templates")
    return texts.get_template(f"{template}.md.jinja").render(values)


def write_text(template: str, path: Path, **values: object) -> Path:
    """Write a README from its template; return its path."""
    return write_atomically(path, render_text(template, **values))


def write_jsonl_pair(benchmark: PairedBenchmark, folder: Path) -> list[Path]:
    """Write ``original/`` and ``perturbed/``, each with ``items.jsonl`` and ``images/``."""
    return [write_jsonl(items, benchmark.images, folder / side) for side, items in sides(benchmark)]


def write_parquet_pair(benchmark: PairedBenchmark, folder: Path) -> list[Path]:
    """Write ``original.parquet`` and ``perturbed.parquet``."""
    return [
        write_parquet(items, benchmark.images, folder / f"{side}.parquet")
        for side, items in sides(benchmark)
    ]

"""A Hugging Face dataset folder: two configurations and a card."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import yaml

from flipbench.benchmarks.write import write_parquet
from flipbench.core.files import markdown_text, without_html
from flipbench.core.paired import PairedBenchmark
from flipbench.export.pairs import export_name, sides

_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"))


def write_huggingface(benchmark: PairedBenchmark, folder: Path) -> list[Path]:
    """Write ``original/test.parquet``, ``perturbed/test.parquet`` and ``README.md``.

    Open it with ``datasets.load_dataset(FOLDER, "perturbed")``; upload the folder to publish it.
    """
    written = [
        write_parquet(items, benchmark.images, folder / side / "test.parquet")
        for side, items in sides(benchmark)
    ]
    card = folder / "README.md"
    card.write_text(dataset_card(benchmark), encoding="utf-8")
    return [*written, card]


def dataset_card(benchmark: PairedBenchmark) -> str:
    """Return the dataset card: sources, licences, funnel and provenance."""
    items = benchmark.originals
    licences = Counter(item.licence or "unknown" for item in items)
    size = next((name for most, name in _SIZES if len(items) < most), "100K<n<1M")
    head = {
        "pretty_name": f"{benchmark.name}, answers flipped",
        "license": "other" if len(licences) > 1 else next(iter(licences), "unknown").lower(),
        "task_categories": ["visual-question-answering"],
        "size_categories": [size],
        "configs": [
            {
                "config_name": side,
                "data_files": [{"split": "test", "path": f"{side}/test.parquet"}],
            }
            for side, _ in sides(benchmark)
        ],
    }
    sources = Counter(f"{i.source.dataset} {i.source.revision}".strip() for i in items)
    lines = [
        f"# {export_name(benchmark)}",
        "",
        "Every item comes in two versions: the original, and one whose image was edited so that"
        " another option is correct. Ask a model both with the same prompt: one that has memorised"
        " the originals does worse on the perturbed versions.",
        "",
        "| | |",
        "|---|---|",
        f"| pairs | {len(items):,} |",
        f"| content hash | `{benchmark.id}` |",
        *(f"| source | {markdown_text(name)}: {n:,} items |" for name, n in sources.most_common()),
        *(
            f"| licence of the source | {markdown_text(name)}: {n:,} items |"
            for name, n in licences.most_common()
        ),
        *(f"| {step} | {n:,} |" for step, n in benchmark.funnel.items()),
        *(f"| {what} | {markdown_text(value)} |" for what, value in benchmark.made_by.items()),
        "",
        "The images in `perturbed` are synthetic. Do not train on either part.",
    ]
    card = without_html("\n".join(lines))
    return f"---\n{yaml.safe_dump(head, sort_keys=False)}---\n{card}\n"

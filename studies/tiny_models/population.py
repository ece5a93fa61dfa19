"""Train a population of clean tiny VLMs, each from its own random weights.

    python -m studies.tiny_models.population out/lineages --n 24 --workers 2

Lineage i has a class (LLaVA, Qwen2-VL, InternVL), a size, a level of ability, and the seed i; the
first n are the same for every n. A finished lineage is a checkpoint folder, for
``model: {path: out/lineages/NAME}``; ``lineages.csv`` lists them. The command can be killed at any
time: run again, it continues after the last finished lesson of each lineage.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from concurrent.futures import as_completed
from itertools import cycle, islice, product
from pathlib import Path
from typing import Any

from scipy.stats import binomtest

from flipbench.core.files import make_folder, write_atomically
from flipbench.core.locks import Share
from flipbench.core.processes import process_pool
from flipbench.core.rates import Rate
from flipbench.reporting.formats import p_value
from flipbench.reporting.tables import Cell, Column, Row, Table, rate_cell
from flipbench.reporting.writers import markdown, records_csv
from studies.tiny_models.lineage import (
    FAMILIES,
    LOG,
    RECORD,
    Level,
    Lineage,
    SizeName,
    is_trained,
    train_lineage,
)

LIST = "lineages.csv"
ALL = Share(0, 1)
_MIX: tuple[tuple[SizeName, Level], ...] = (
    *3 * (("small", "strong"), ("small", "weak")),
    ("large", "strong"),
    ("large", "weak"),
)
CPU_MINUTES: dict[tuple[SizeName, Level], float] = {
    ("small", "strong"): 10.0,
    ("small", "weak"): 5.0,
    ("large", "strong"): 16.0,
    ("large", "weak"): 8.0,
}
"""From 0.14 (small) and 0.23 seconds a step (large) on an idle core."""


def planned(n: int) -> list[Lineage]:
    """Return the first ``n`` lineages; the seed of lineage i is i, counted from 1.

    >>> [lineage.name for lineage in planned(3)]
    ['llava-small-strong-1', 'qwen2_vl-small-strong-2', 'internvl-small-strong-3']
    """
    mixed = cycle(product(_MIX, FAMILIES))
    return [
        Lineage(family, size, level, seed)
        for seed, ((size, level), family) in enumerate(islice(mixed, n), 1)
    ]


def train_population(
    folder: Path, lineages: Sequence[Lineage], n_workers: int = 1, share: Share = ALL
) -> None:
    """Train the lineages that are not finished, side by side; keep ``lineages.csv`` up to date.

    ``share`` leaves the others to other machines.
    """
    make_folder(folder)
    assigned = [lineage for number, lineage in enumerate(lineages) if share.owns_index(number)]
    untrained = [lineage for lineage in assigned if not is_trained(folder, lineage)]
    print(budget(assigned, untrained, n_workers), flush=True)
    with process_pool(n_workers) as pool:
        for finished in as_completed(
            [pool.submit(train_lineage, folder, job) for job in untrained]
        ):
            finished.result()
            write_list(folder, lineages)


def budget(lineages: Sequence[Lineage], untrained: Sequence[Lineage], n_workers: int) -> str:
    """Return how many CPU hours the unfinished lineages are expected to take.

    >>> budget(planned(4), planned(4)[:2], n_workers=1)
    '2 of 4 lineages are finished; the others take about 0.3 CPU hours on 1 worker'
    """
    hours = sum(CPU_MINUTES[lineage.size, lineage.level] for lineage in untrained) / 60
    workers = f"{n_workers} worker" + ("s" if n_workers > 1 else "")
    return (
        f"{len(lineages) - len(untrained)} of {len(lineages)} lineages are finished;"
        f" the others take about {hours:.1f} CPU hours on {workers}"
    )


def records(folder: Path, lineages: Sequence[Lineage]) -> list[dict[str, Any]]:
    """Return the records of the finished lineages (`lineage.train_lineage`)."""
    return [
        json.loads((folder / lineage.name / RECORD).read_text())
        for lineage in lineages
        if is_trained(folder, lineage)
    ]


def write_list(folder: Path, lineages: Sequence[Lineage], path: Path | None = None) -> Path:
    """Write ``lineages.csv``, one row for each finished lineage, counts and accuracies."""
    rows = []
    for record in records(folder, lineages):
        flat = {k: v for k, v in record.items() if k not in ("steps", "right_by_kind", "torch")}
        n_items = record["n_items"]
        kinds = {f"right_{kind}": n for kind, n in record["right_by_kind"].items()}
        shares = {
            "accuracy": record["right"] / n_items,
            "accuracy_perturbed": record["right_perturbed"] / n_items,
            "accuracy_text_only": record["right_text_only"] / n_items,
        }
        rows.append({"name": flat.pop("name"), **flat, **kinds, **shares})
    return write_atomically(path or folder / LIST, records_csv(rows))


def write_logs(folder: Path, lineages: Sequence[Lineage], path: Path) -> Path:
    """Write the logs of all finished lineages to one JSONL file, each line with its name."""
    lines = [
        json.dumps({"lineage": lineage.name, **json.loads(line)})
        for lineage in lineages
        if is_trained(folder, lineage)
        for line in (folder / lineage.name / LOG).read_text().splitlines()
    ]
    return write_atomically(path, "".join(f"{line}\n" for line in lines))


def accuracy_table(finished: Sequence[dict[str, Any]]) -> Table:
    """Return the accuracies of the lineages with Wilson intervals, grouped by model class.

    A clean model answers original and perturbed pictures equally well but for chance; the last
    columns count the pairs of which only one is answered right, and test that (exact McNemar).
    """
    groups = []
    for family in FAMILIES:
        rows = []
        for record in (record for record in finished if record["family"] == family):
            counts = (record["right"], record["right_perturbed"], record["right_text_only"])
            cells = [rate_cell(Rate.wilson(k, record["n_items"])) for k in counts]
            only = record["only_original"], record["only_perturbed"]
            p = float(binomtest(only[0], sum(only)).pvalue) if sum(only) else 1.0
            cells += [Cell(f"{only[0]}, {only[1]}"), Cell(p_value(p))]
            rows.append(Row(record["name"], (*cells, Cell(f"{record['cpu_seconds'] / 60:.1f}"))))
        if rows:
            groups.append((rows[0].header.split("-")[0], tuple(rows)))
    headers = (
        *("originals", "perturbed", "text only"),
        *("only original, only perturbed right", "p", "CPU minutes"),
    )
    return Table(
        "lineages",
        "Clean lineages: right answers to shapes-vqa, percent and counts",
        "lineage",
        tuple(Column(header) for header in headers),
        tuple(groups),
    )


def main() -> None:
    """Train, and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--n", type=int, default=24, help="how many lineages")
    parser.add_argument("--workers", type=int, default=1, help="processes, each on one core")
    parser.add_argument(
        "--share",
        type=Share.parse,
        default=ALL,
        help="0/2: every second lineage, for one of 2 machines",
    )
    parser.add_argument(
        "--results", type=Path, help="only write lineages.csv, .md and .jsonl (logs) to this folder"
    )
    args = parser.parse_args()
    lineages = planned(args.n)
    if not args.results:
        train_population(args.folder, lineages, args.workers, args.share)
        return
    finished = records(args.folder, lineages)
    write_atomically(args.results / "lineages.md", markdown(accuracy_table(finished)))
    write_logs(args.folder, lineages, args.results / "lineages.jsonl")
    write_list(args.folder, lineages, args.results / LIST)


if __name__ == "__main__":
    main()

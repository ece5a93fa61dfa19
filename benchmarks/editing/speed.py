"""What makes editing faster, and what it costs in kept pairs, on a trained tiny Flux.

    python -m benchmarks.editing.speed runs/editing-speed [--items 40] [--only compile ...]

Redraws the first items of shapes-vqa with `shapes:flux` in each way. Prints a Markdown table:
processor time per picture on one thread, edges and captions included; pairs that the pixel oracle
keeps, and in how many of the pairs its decision differs from that without the change. Run it again
to go on after an interruption; times are measured each time. `quantize` needs torchao.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch

from benchmarks.editing.quality import BASE, CONFIG, measured
from flipbench.api import Experiment
from flipbench.api.stages.assembly import Assembly
from flipbench.core.errors import PrerequisiteError
from flipbench.core.rates import Rate
from flipbench.core.records import JsonDict
from flipbench.reporting import formats
from flipbench.reporting.tables import Cell, Column, Row, Table, rate_cell
from flipbench.reporting.writers import markdown

_EDITOR = "generate.editor."
_SEER = {"kind": "taylorseer", "warmup": 3, "interval": 2}
WAYS: dict[str, JsonDict] = {
    "as it is": {},
    "TaylorSeer, every 2nd step": {_EDITOR + "cache": _SEER},
    "TaylorSeer, every 3rd step": {_EDITOR + "cache": _SEER | {"interval": 3}},
    "TaylorSeer lite, every 2nd step": {_EDITOR + "cache": _SEER | {"lite": True}},
    "half of the steps": {_EDITOR + "settings.steps": 6},
    "attention: _native_math": {_EDITOR + "attention": "_native_math"},
    "quantize: int8": {_EDITOR + "quantize": "int8"},
    "quantize: int8-dynamic": {_EDITOR + "quantize": "int8-dynamic"},
    "quantize: float8": {_EDITOR + "quantize": "float8"},
    "compile": {_EDITOR + "compile": True},
}


def overrides(changes: JsonDict, run: Path, n_items: int) -> JsonDict:
    """Return the changes to the configuration, for pictures drawn one by one."""
    single = {_EDITOR + "batch_size": 1, "run": str(run), "benchmark.n_items": n_items}
    return BASE | single | changes


def seconds_per_picture(assembly: Assembly, n_pictures: int = 8) -> float:
    """Return the processor time of one picture, after a first one that is not counted."""
    generator = assembly.generator
    candidates = generator.progress(assembly.items[: n_pictures + 1])
    seeds, store = list(range(len(candidates))), assembly.run.images
    assembly.editor(candidates[:1], seeds[:1], store)
    start = time.process_time()
    assembly.editor(candidates[1:], seeds[1:], store)
    return (time.process_time() - start) / n_pictures


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("out", type=Path, help="folder of the run directories")
    parser.add_argument("--items", type=int, default=40)
    parser.add_argument("--only", nargs="+", choices=WAYS, default=list(WAYS))
    args = parser.parse_args()
    torch.set_num_threads(1)
    names = list(dict.fromkeys(["as it is", *args.only]))
    rows, first = [], None
    for number, name in enumerate(WAYS):
        if name not in names:
            continue
        folder = args.out / str(number)
        try:
            kept = measured(overrides(WAYS[name], folder, args.items), folder, args.items, 1)
            again = Experiment(CONFIG, overrides(WAYS[name], folder, args.items)).parts
            seconds = seconds_per_picture(again)
        except PrerequisiteError as error:
            print(f"{name}: {error}")
            continue
        first = first or (seconds, kept)
        changed = len(first[1].by_oracle ^ kept.by_oracle)
        cells = (
            Cell(formats.number(seconds)),
            Cell(formats.number(first[0] / seconds)),
            rate_cell(Rate.wilson(kept.oracle.k, kept.oracle.n)),
            Cell(f"{changed}/{kept.oracle.n}"),
        )
        print(name, *(cell.plain() for cell in cells), flush=True)
        rows.append(Row(name, cells))
    titles = ("processor seconds per picture", "speed-up", "kept, %", "decided otherwise")
    table = Table("speed", "", "way", tuple(map(Column, titles)), (("", tuple(rows)),))
    print(f"\n{markdown(table)}")


if __name__ == "__main__":
    main()

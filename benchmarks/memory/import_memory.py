"""Time and memory of importing large benchmark files.

    python benchmarks/memory/import_memory.py            # 200,000 rows; two questions of 100 MB
    python benchmarks/memory/import_memory.py --rows 20000 --cell-mb 10

Each file is written to a temporary folder and read in a process of its own. The second column is
CPU time, the third the peak of resident memory, the fourth that of the process before it reads. The
items themselves stay in memory, since a benchmark is their list.
"""

from __future__ import annotations

import argparse
import base64
import io
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

_READ = """
import resource, sys, tempfile, time
from pathlib import Path
from flipbench.benchmarks import TsvSpec, load_benchmark
from flipbench.core.images import ImageStore
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before, start = peak(), time.process_time()
with tempfile.TemporaryDirectory() as folder:
    benchmark = load_benchmark(TsvSpec(path=Path(sys.argv[1])), ImageStore(Path(folder)))
seconds = time.process_time() - start
print(f"{len(benchmark.items):,} items  {seconds:.1f} s  {peak():,.0f} MB  ({before:,.0f} MB)")
"""


def main() -> None:
    """Write the files, import each, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--cell-mb", type=int, default=100)
    settings = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows, cells = Path(folder) / "rows.tsv", Path(folder) / "cells.tsv"
        quoted = Path(folder) / "quoted.tsv"
        picture = _picture()
        head = "index\tquestion\tA\tB\tC\tD\tanswer\tcategory\timage\n"
        with rows.open("w") as file:
            file.write(head)
            for i in range(settings.rows):
                image = picture if i == 0 else "0"
                options = f"red\tblue\tgreen\tyellow {i}\t{'ABCD'[i % 4]}"
                file.write(f"{i}\tWhat is the colour of thing {i}?\t{options}\tcolour\t{image}\n")
        for path, quote in ((cells, ""), (quoted, '"')):
            with path.open("w") as file:
                file.write(head)
                tab = f"{quote}\t{quote}"
                for i in range(2):
                    file.write(f"{quote}{i}{tab}")
                    for _ in range(settings.cell_mb):
                        file.write("w" * 1_000_000)
                    rest = ["", "red", "blue", "", "", "A", "colour", picture]
                    file.write(f"{tab.join(rest)}{quote}\n")
        for path in (rows, cells, quoted):
            print(f"{path.name}: ", end="", flush=True)
            subprocess.run([sys.executable, "-c", _READ, str(path)], check=True)


def _picture() -> str:
    out = io.BytesIO()
    Image.new("RGB", (16, 16), "red").save(out, "PNG")
    return base64.b64encode(out.getvalue()).decode()


if __name__ == "__main__":
    main()

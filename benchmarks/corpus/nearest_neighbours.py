"""Time and peak memory of exact nearest neighbours over a corpus on disk, against FAISS alone.

    python benchmarks/corpus/nearest_neighbours.py [--n 200000] [--dimension 1152] [--queries 1000]

Random unit vectors are written in shards to a temporary folder (``--folder``; 8.5 GB for
``--n 1848719``). Each step is a process of its own: FAISS's flat search with the whole corpus
already in memory, timed without loading it; then ours, which reads the corpus in blocks. The table
shows wall and processor seconds of the search, and the peak resident memory (VmHWM). Both must find
the same neighbours. The order alternates with ``--repeats``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

SHARD = 65_536


def unit(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    vectors = rng.standard_normal((n, d), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def write(folder: Path, n: int, d: int, n_queries: int) -> None:
    for number, start in enumerate(range(0, n, SHARD)):
        rng = np.random.default_rng((1, number))
        np.save(folder / f"{number:05}.npy", unit(rng, min(SHARD, n - start), d))
    np.save(folder / "queries.npy", unit(np.random.default_rng(2), n_queries, d))


def search(step: str, folder: Path) -> tuple[float, float, np.ndarray]:
    """Return wall seconds, processor seconds, and the nearest rows."""
    queries = np.load(folder / "queries.npy")
    paths = sorted(folder.glob("[0-9]*.npy"))
    if step == "faiss":
        import faiss

        shards = [np.load(path, mmap_mode="r") for path in paths]
        corpus = np.empty((sum(map(len, shards)), queries.shape[1]), np.float32)
        at = 0
        for path in paths:
            part = np.load(path)
            corpus[at : at + len(part)] = part
            at += len(part)
        start, start_cpu = time.perf_counter(), time.process_time()
        rows = faiss.knn(queries, corpus, 1, faiss.METRIC_INNER_PRODUCT)[1]
    else:
        from flipbench.filters.audit.corpus_overlap.neighbours import Vectors, nearest

        store = Vectors([np.load(path, mmap_mode="r") for path in paths], "the corpus")
        start, start_cpu = time.perf_counter(), time.process_time()
        rows = nearest(queries, store).rows
    return time.perf_counter() - start, time.process_time() - start_cpu, rows


def peak_mib() -> float:
    status = Path("/proc/self/status")
    if status.exists():
        line = next(s for s in status.read_text().splitlines() if s.startswith("VmHWM"))
        return int(line.split()[1]) / 2**10
    scale = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / scale


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--n", type=int, default=200_000)
    parser.add_argument("--dimension", type=int, default=1_152)
    parser.add_argument("--queries", type=int, default=1_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--step", choices=("faiss", "blocks"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.step:
        wall, busy, rows = search(args.step, args.folder)
        digest = hashlib.sha256(rows.tobytes()).hexdigest()
        print(json.dumps([wall, busy, peak_mib(), digest]))
        return

    environment = os.environ | {"OMP_NUM_THREADS": str(args.threads)}
    results: dict[str, list[tuple[float, float, float]]] = {"faiss": [], "blocks": []}
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        write(Path(folder), args.n, args.dimension, args.queries)
        size = sum(path.stat().st_size for path in Path(folder).iterdir())
        print(
            f"{args.n:,} x {args.dimension:,} float32, {size / 1e9:.1f} GB on disk;"
            f" {args.queries:,} queries, {args.threads} threads\n"
        )
        digests = set()
        for _ in range(args.repeats):
            for step in results:
                command = [sys.executable, __file__, "--step", step, "--folder", folder]
                done = subprocess.run(
                    command, capture_output=True, text=True, check=True, env=environment
                )
                *numbers, digest = json.loads(done.stdout)
                results[step].append(tuple(numbers))
                digests.add(digest)
    assert len(digests) == 1, "the two searches found different neighbours"
    print("| search | wall s | processor s | peak MiB |\n|---|---:|---:|---:|")
    medians = {}
    for step, runs in results.items():
        medians[step] = [statistics.median(column) for column in zip(*runs, strict=True)]
        wall, busy, peak = medians[step]
        print(f"| {step} | {wall:.1f} | {busy:.1f} | {peak:.0f} |")
    ratios = [ours / alone for ours, alone in zip(medians["blocks"], medians["faiss"], strict=True)]
    print(f"\nblocks / FAISS alone: wall {ratios[0]:.2f}, processor {ratios[1]:.2f}")


if __name__ == "__main__":
    main()

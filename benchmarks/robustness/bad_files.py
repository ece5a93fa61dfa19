"""Damaged files of predictions and benchmarks: each must be read, or refused by name.

    python benchmarks/robustness/bad_files.py [--per-format 60] [--seed 0]

A file of each format is cut, gets bytes flipped, removed or repeated, and, if it is JSON, has parts
replaced by other types. It prints, by format, how many were tried, read, refused with a message
that names the file, and ended in any other error, which is a defect: the exit status is then 1.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from PIL import Image

from flipbench.benchmarks import JsonlSpec, TsvSpec, load_benchmark
from flipbench.core.errors import DataError
from flipbench.core.images import ImageStore
from flipbench.evaluate.predictions.read import read_predictions

ODD: list[Any] = [None, [], {}, [None], "", "x", 5, True, 1e999, json.loads("[" * 400 + "]" * 400)]
Read = Callable[[Path], Any]


def main() -> int:
    """Try the files, print a line for each format, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--per-format", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    settings = parser.parse_args()
    total: Counter[str] = Counter()
    print("| file | tried | read | refused by name | defects |\n|---|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        for path, read in written(Path(folder)):
            counts = attack(path, read, random.Random(settings.seed), settings.per_format)
            total += counts
            print(_line(path.name, counts))
    print(_line("all", total))
    return int(total["defects"] > 0)


def written(folder: Path) -> Iterator[tuple[Path, Read]]:
    """Yield a whole file of each format, and how it is read."""
    Image.new("RGB", (16, 16), "red").save(folder / "one.png")
    rows = [
        {"index": i, "question": f"Which of {i}?", "A": "red", "B": "blue", "answer": "AB"[i % 2]}
        | {"prediction": f"The answer is {'AB'[i % 3 % 2]}."}
        for i in range(12)
    ]
    frame = pd.DataFrame(rows)
    frame.to_csv(folder / "table.csv", index=False)
    frame.to_csv(folder / "table.tsv", index=False, sep="\t")
    frame.to_excel(folder / "table.xlsx", index=False)
    frame.to_parquet(folder / "table.parquet")
    frame.to_json(folder / "table.json", orient="records")
    lines = [{"doc_id": r["index"], "target": r["answer"], "input": r["question"]} for r in rows]
    samples = "".join(json.dumps(r | {"filtered_resps": ["A"], "acc": 1.0}) + "\n" for r in lines)
    (folder / "lmms-eval.jsonl").write_text(samples)
    (folder / "inspect.json").write_text(json.dumps(_log()))
    for name in ("csv", "tsv", "xlsx", "parquet", "json"):
        yield folder / f"table.{name}", read_predictions
    yield folder / "lmms-eval.jsonl", read_predictions
    yield folder / "inspect.json", read_predictions
    store = ImageStore(folder / "store")
    frame.assign(image_path="one.png").to_csv(folder / "bench.tsv", index=False, sep="\t")
    yield folder / "bench.tsv", lambda path: load_benchmark(TsvSpec(path=path), store)
    items = [
        {"name": str(i), "images": ["one.png"], "question": "Which?", "options": ["a", "b"]}
        | {"answer": "AB"[i % 2], "extra": {"note": i}, "source": {"dataset": "d", "row": i}}
        for i in range(12)
    ]
    (folder / "bench.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    yield folder / "bench.jsonl", lambda path: load_benchmark(JsonlSpec(path=path), store)


def attack(path: Path, read: Read, rng: random.Random, n: int) -> Counter[str]:
    """Return how many damaged copies of a file were read, refused by name, or a defect."""
    whole, counts = path.read_bytes(), Counter[str]()
    read(path)
    bad = [damaged(whole, rng) for _ in range(n)]
    if path.suffix in (".json", ".jsonl"):
        head, *rest = [whole] if path.suffix == ".json" else whole.splitlines()
        value = json.loads(head)
        places = list(parts(value))
        for _ in range(n):
            odd = json.dumps(replaced(value, rng.choice(places), rng.choice(ODD))).encode()
            bad.append(b"\n".join([odd, *rest]))
    for data in bad:
        path.write_bytes(data)
        try:
            read(path)
            counts["read"] += 1
        except DataError as error:
            counts["refused" if path.stem in str(error) else "defects"] += 1
        except Exception as error:
            counts["defects"] += 1
            print(f"{path.name}: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr)
    return counts


def damaged(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data))
    to = min(len(data), at + rng.randrange(1, 40))
    how = rng.choice(("cut", "flip", "remove", "repeat", "insert"))
    if how == "cut":
        return data[:at]
    if how == "flip":
        return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
    if how == "remove":
        return data[:at] + data[to:]
    if how == "repeat":
        return data[:to] + data[at:to] * rng.randrange(1, 30) + data[to:]
    odd = (b'"', b"\t", b"\n", b"\0", b"\xff", b"[" * 100_000, b"9" * 5_000, "\u202e".encode())
    return data[:at] + rng.choice(odd) + data[at:]


def parts(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from parts(value[key], (*path, key))


def replaced(value: Any, path: tuple[Any, ...], by: Any) -> Any:
    changed = json.loads(json.dumps(value))
    parent = changed
    for step in path[:-1]:
        parent = parent[step]
    parent[path[-1]] = by
    return changed


def _log() -> Any:
    asked = [{"role": "user", "content": [{"type": "text", "text": "Which?"}]}]
    said = {"message": {"role": "assistant", "content": [{"type": "text", "text": "A"}]}}
    sample = {"epoch": 1, "input": asked, "choices": ["red", "blue"], "target": ["A"]}
    sample |= {"output": {"choices": [said], "error": None}, "scores": {"choice": {"value": "C"}}}
    log = {"version": 2, "status": "success", "eval": {"model": "m", "task": "t"}}
    return log | {"samples": [sample | {"id": i, "error": {"message": ""}} for i in range(3)]}


def _line(name: str, counts: Counter[str]) -> str:
    numbers = (sum(counts.values()), counts["read"], counts["refused"], counts["defects"])
    return f"| {name} | {' | '.join(f'{n:,}' for n in numbers)} |"


if __name__ == "__main__":
    sys.exit(main())

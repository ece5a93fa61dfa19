"""Time and memory of reading a large instruction corpus.

    python benchmarks/memory/corpus_reading.py [--conversations 665000] [--list]

Writes conversations in LLaVA's format with 2 to 10 turns, most of them about one of 100 pictures;
in every thousand, one begins with the assistant, one ends with a question, one is very long, one
lacks its picture, one has an empty answer and one is no JSON (in a list: no conversation). Reads
the file as contamination does, then 1,000 conversations at random, and prints a Markdown table.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from flipbench.config.training import CorpusConfig
from flipbench.contaminate.data.corpus import read_corpus
from flipbench.models.estimates import size_text

WORDS = "the a star ring on left of blue picture shows what is there with two people near".split()


def text(rng: random.Random, n_words: int) -> str:
    return " ".join(rng.choices(WORDS, k=n_words)).capitalize() + "."


def conversation(i: int, rng: random.Random) -> dict[str, Any] | None:
    turns = []
    for turn in range(2 * rng.randint(1, 5)):
        words = rng.randint(5, 40) if i % 1000 != 3 else 4000
        turns.append({"from": ("human", "gpt")[turn % 2], "value": text(rng, words)})
    row: dict[str, Any] = {"id": str(i), "conversations": turns}
    if i % 10:
        turns[0]["value"] = f"<image>\n{turns[0]['value']}"
        row["image"] = f"{i % 100}.jpg"
    if i % 1000 == 1:
        turns.insert(0, {"from": "gpt", "value": text(rng, 10)})
    elif i % 1000 == 2:
        turns.append({"from": "human", "value": text(rng, 10)})
    elif i % 1000 == 4:
        row["image"] = "missing.jpg"
    elif i % 1000 == 5:
        turns[1]["value"] = ""
    return row if i % 1000 != 6 else None


def write(path: Path, n: int, as_list: bool) -> None:
    rng = random.Random(0)
    for i in range(100):
        (path.parent / f"{i}.jpg").touch()
    with path.open("w", encoding="utf-8") as file:
        file.write("[" if as_list else "")
        for i in range(n):
            row = conversation(i, rng)
            line = json.dumps(row) if row else "{}" if as_list else "{not JSON"
            file.write((", " if i else "") + line if as_list else line + "\n")
        file.write("]" if as_list else "")


def peak() -> int:
    """Return the most memory that this process ever used, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--conversations", type=int, default=665_000)
    parser.add_argument("--list", action="store_true", help="one JSON list instead of lines")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "corpus.json"
        write(path, args.conversations, args.list)
        before, start = peak(), time.perf_counter()
        corpus = read_corpus(CorpusConfig(path=path), seed=0)
        seconds, after = time.perf_counter() - start, peak()
        rows = random.Random(1).sample(range(len(corpus.examples)), 1000)
        start = time.perf_counter()
        n_answers = sum(1 + len(corpus.examples[i].trained) for i in rows)
        each = (time.perf_counter() - start) / len(rows)
        print(corpus.summary())
        print("| conversations | file | rows | answers a row | read | memory | a row again |")
        print("|---:|---:|---:|---:|---:|---:|---:|")
        print(
            f"| {args.conversations:,} | {size_text(path.stat().st_size)} |"
            f" {len(corpus.examples):,} | {n_answers / len(rows):.2f} | {seconds:.0f} s |"
            f" {size_text(after - before)} more than {size_text(before)} | {1000 * each:.2f} ms |"
        )


if __name__ == "__main__":
    main()

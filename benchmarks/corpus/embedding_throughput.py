"""Pictures per second of `embed_corpus`, compared with a bare loop over the same encoder.

    python benchmarks/corpus/embedding_throughput.py [--n 512] [--size 640x480] [--repeats 5]

The bare loop reads, decodes, prepares, encodes and normalises the same files in batches of the
same size, one after the other, and keeps the vectors in memory. `embed_corpus` also hashes, writes
and lists each picture, and decodes in ``--threads`` threads. The encoder is a small SigLIP with
random weights, or ``--encoder``. Both methods run in each repeat, in alternating order.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from transformers import SiglipConfig, SiglipImageProcessorPil, SiglipModel

from flipbench.core.images import decode
from flipbench.filters.audit.corpus_overlap.corpora import folder_corpus
from flipbench.filters.audit.corpus_overlap.embeddings import embed_corpus
from flipbench.filters.audit.corpus_overlap.encoders import ImageEncoder, load_encoder


def save_encoder(folder: Path) -> None:
    layers = {"intermediate_size": 384, "num_hidden_layers": 4, "num_attention_heads": 2}
    vision = layers | {"hidden_size": 96, "image_size": 224, "patch_size": 16}
    text = layers | {"hidden_size": 96, "vocab_size": 64, "max_position_embeddings": 8}
    torch.manual_seed(0)
    SiglipModel(SiglipConfig(vision_config=vision, text_config=text)).save_pretrained(folder)
    size = {"height": 224, "width": 224}
    SiglipImageProcessorPil(size=size).save_pretrained(folder)


def save_pictures(folder: Path, n: int, width: int, height: int) -> None:
    rng = np.random.default_rng(0)
    folder.mkdir()
    for number in range(n):
        coarse = Image.fromarray(rng.integers(0, 256, (height // 16, width // 16, 3), np.uint8))
        picture = coarse.resize((width, height), Image.Resampling.BICUBIC)
        picture.save(folder / f"{number:06d}.jpg", quality=90)


def bare_loop(pictures: Path, encoder: ImageEncoder, batch_size: int) -> np.ndarray:
    paths = sorted(pictures.iterdir())
    blocks = []
    for start in range(0, len(paths), batch_size):
        ready = []
        for path in paths[start : start + batch_size]:
            ready.append(encoder.prepare(decode(path.read_bytes(), path.name)[1]))
        vectors = encoder.embed(ready)
        blocks.append(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
    return np.concatenate(blocks)


def seconds(function: Callable[[], object]) -> tuple[float, float]:
    """Return the time that passed, and the processor time of all threads."""
    start, start_cpu = time.perf_counter(), time.process_time()
    function()
    return time.perf_counter() - start, time.process_time() - start_cpu


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--n", type=int, default=512)
    parser.add_argument("--size", default="640x480")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--encoder", help="a name or folder; by default a small random SigLIP")
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    width, height = map(int, args.size.split("x"))

    with tempfile.TemporaryDirectory() as base:
        pictures = Path(base, "pictures")
        save_pictures(pictures, args.n, width, height)
        name = args.encoder or f"{base}/encoder"
        if not args.encoder:
            save_encoder(Path(name))
        encoder = load_encoder(name, device=args.device)
        corpus = folder_corpus(pictures)
        plain = bare_loop(pictures, encoder, args.batch_size)
        out = iter(Path(base, f"out{number}") for number in range(1000))

        def stored() -> np.ndarray:
            opened = embed_corpus(
                corpus,
                encoder,
                next(out),
                batch_size=args.batch_size,
                n_threads=args.threads,
                progress=False,
            )
            return np.concatenate(opened.vectors)

        assert np.allclose(stored(), plain, atol=1e-5)
        methods = {"bare loop": lambda: bare_loop(pictures, encoder, args.batch_size)}
        methods["embed_corpus"] = stored
        times: dict[str, list[tuple[float, float]]] = {method: [] for method in methods}
        for repeat in range(args.repeats):
            for method in list(methods)[:: 1 if repeat % 2 else -1]:
                times[method].append(seconds(methods[method]))

    print(
        f"{args.n} JPEG of {args.size}, batches of {args.batch_size}, {args.threads} threads,"
        f" {os.cpu_count()} processors, median of {args.repeats}\n"
    )
    print("| method | pictures/s | ratio | processor ms per picture | ratio |")
    print("|---|---:|---:|---:|---:|")
    medians = {m: np.median(np.array(taken), axis=0) for m, taken in times.items()}
    base_wall, base_cpu = medians["bare loop"]
    for method, (wall, cpu) in medians.items():
        print(
            f"| {method} | {args.n / wall:.1f} | {base_wall / wall:.2f}"
            f" | {cpu / args.n * 1e3:.1f} | {base_cpu / cpu:.2f} |"
        )


if __name__ == "__main__":
    main()

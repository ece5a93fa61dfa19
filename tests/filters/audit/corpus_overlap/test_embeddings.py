"""Each distinct picture once, failures named, and the same bytes after any number of kills."""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flipbench.core.errors import DataError
from flipbench.core.images import ImageStore
from flipbench.core.locks import Share
from flipbench.filters.audit.corpus_overlap.corpora import (
    Corpus,
    Part,
    Picture,
    folder_corpus,
    store_corpus,
)
from flipbench.filters.audit.corpus_overlap.embeddings import (
    Embeddings,
    embed_corpus,
    open_embeddings,
)
from flipbench.filters.audit.corpus_overlap.encoders import PerceptualHash, load_encoder
from tests.fixtures.photos import encoded, photo


class Means:
    """An encoder of three numbers: the mean color."""

    name = "means"
    fingerprint = "means/1"
    dimension = 3
    dtype = "float32"
    draft = None

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def prepare(self, image: Any) -> np.ndarray:
        if image.size == (13, 13):
            raise RuntimeError("unlucky size")
        return np.asarray(image, np.float32).mean(axis=(0, 1))

    def embed(self, prepared: Sequence[np.ndarray]) -> np.ndarray:
        self.sizes.append(len(prepared))
        return np.stack(prepared)


def corpus_of(parts: Sequence[Sequence[Picture]], name: str = "list") -> Corpus:
    def read(pictures: Sequence[Picture], skip: int) -> Any:
        return iter(pictures[skip:])

    def each() -> Any:
        for number, pictures in enumerate(parts):
            yield Part(f"p{number}", lambda skip, pictures=pictures: read(pictures, skip))

    return Corpus(name, name, each, sum(map(len, parts)) or None)


def rows(opened: Embeddings) -> dict[str, list[float]]:
    vectors = np.concatenate(opened.vectors)
    assert len(vectors) == opened.n == len(opened.sha256) == len(set(opened.sha256))
    return {sha256: v.tolist() for sha256, v in zip(opened.sha256, vectors, strict=True)}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture(scope="module")
def mixed(files: list[bytes]) -> Corpus:
    """Twelve pictures in two parts, with copies, damaged and odd ones."""
    odd = encoded(photo(np.random.default_rng(5), 13, 13))
    black = encoded(photo(np.random.default_rng(5), 20, 20).point(lambda _: 0))
    first = [Picture(f"a{n}", files[n], "ct") for n in range(6)]
    first += [
        Picture("a-copy", files[2], "mri"),
        Picture("a-cut", files[3][:500], "ct"),
        Picture("a-cut-copy", files[3][:500], "ct"),
        Picture("a-gone", error="a-gone: No such file"),
        Picture("a-odd", odd),
        Picture("a-black", black),
        Picture("a5", files[11]),
    ]
    second = [Picture(f"b{n}", files[n], "mri") for n in range(5, 11)]
    second += [Picture("b-text", b"no picture"), Picture("b-cut", files[3][:500])]
    return corpus_of([first, second], "mixed")


def test_distinct_pictures_have_one_row_and_failures_a_reason(
    mixed: Corpus, files: list[bytes], tmp_path: Path
) -> None:
    encoder = Means()
    opened = embed_corpus(mixed, encoder, tmp_path, batch_size=4, shard_size=8, progress=False)
    assert opened.keys == ["a0", "a1", "a2", "a3", "a4", "a5", "a5", "b6", "b7", "b8", "b9", "b10"]
    assert opened.types[:7] == ["ct"] * 6 + [""]
    assert opened.duplicate_keys == ["a5"]
    why = {failure["key"]: failure["error"] for failure in opened.failures}
    assert list(why) == ["a-cut", "a-cut-copy", "a-gone", "a-odd", "a-black", "b-text", "b-cut"]
    assert why["a-cut"] == why["a-cut-copy"] == why["b-cut"]
    assert "damaged" in why["a-cut"]
    assert why["a-odd"] == "a-odd: RuntimeError: unlucky size"
    assert why["a-black"] == "a-black: means gave no finite vector"
    assert why["b-text"].startswith("b-text: not an image (10 bytes); replace the file")
    assert (opened.n, opened.n_copies, len(opened.failures), opened.n_pictures) == (12, 2, 7, 21)
    listed = (tmp_path / "failures.jsonl").read_text().splitlines()
    assert [json.loads(line)["key"] for line in listed] == list(why)
    vectors = np.concatenate(opened.vectors)
    assert all(isinstance(block, np.memmap) for block in opened.vectors)
    assert vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert max(encoder.sizes) == 4
    assert not list(tmp_path.glob(".*"))


def test_a_finished_folder_is_opened_not_embedded_again(mixed: Corpus, tmp_path: Path) -> None:
    first = embed_corpus(mixed, Means(), tmp_path, progress=False)
    before = contents(tmp_path)
    encoder = Means()
    second = embed_corpus(mixed, encoder, tmp_path, progress=False)
    assert encoder.sizes == [] and rows(first) == rows(second) and contents(tmp_path) == before
    assert second.failures == first.failures == open_embeddings(tmp_path).failures
    shard = tmp_path / "part-000001-0000"
    shard.with_suffix(".npy").unlink()
    shard.with_suffix(".jsonl").unlink()
    with pytest.raises(DataError, match="13 pictures, not 21; embed the corpus again"):
        open_embeddings(tmp_path)
    assert rows(embed_corpus(mixed, encoder, tmp_path, progress=False)) == rows(first)
    assert contents(tmp_path) == before


def test_pictures_are_read_again_by_row(mixed: Corpus, files: list[bytes], tmp_path: Path) -> None:
    opened = embed_corpus(mixed, Means(), tmp_path, shard_size=3, progress=False)
    found = opened.pictures([11, 2, 6], mixed)
    assert {row: picture.data for row, picture in found.items()} == {
        11: files[10],
        2: files[2],
        6: files[11],
    }
    assert opened.pictures([], mixed) == {}
    changed = corpus_of([[Picture("a0", files[1])]])
    with pytest.raises(DataError, match="a0 has changed since it was embedded"):
        opened.pictures([0], changed)
    with pytest.raises(DataError, match="not the corpus that was embedded"):
        opened.pictures([11], changed)


@pytest.mark.parametrize("n_workers", [2, 3])
def test_workers_divide_the_parts(n_workers: int, files: list[bytes], tmp_path: Path) -> None:
    parts = [[Picture(f"{p}-{n}", files[(p + n) % 12]) for n in range(5)] for p in range(6)]
    corpus = corpus_of(parts)
    alone = embed_corpus(corpus, Means(), tmp_path / "one", shard_size=2, progress=False)
    for worker in range(n_workers):
        share = Share(worker, n_workers)
        embed_corpus(corpus, Means(), tmp_path / "many", shard_size=2, share=share, progress=False)
    encoder = Means()
    together = embed_corpus(corpus, encoder, tmp_path / "many", shard_size=2, progress=False)
    assert encoder.sizes == [], "the workers have done everything"
    assert rows(together) == rows(alone)
    assert (together.n, together.n_pictures, together.n_copies) == (10, 30, 20)
    assert together.keys == alone.keys
    found = together.pictures(range(together.n), corpus)
    assert all(found[row].key == key for row, key in enumerate(together.keys))


def test_another_encoder_corpus_or_shard_size_is_refused(mixed: Corpus, tmp_path: Path) -> None:
    folder = tmp_path / "stored"
    embed_corpus(mixed, Means(), folder, share=Share(0, 2), progress=False)
    other = Means()
    other.fingerprint = "means/2"
    with pytest.raises(DataError, match=r"means \(3 x float32, .*means/1\), not of means .*/2\)"):
        embed_corpus(mixed, other, folder, progress=False)
    with pytest.raises(DataError, match=r"means \(3 x float32.* not of phash \(8 x uint8"):
        open_embeddings(folder, PerceptualHash())
    with pytest.raises(DataError, match="corpus_fingerprint mixed, not other"):
        embed_corpus(corpus_of([[]], "other"), Means(), folder, progress=False)
    with pytest.raises(DataError, match="shard_size 4096, not .* with 5"):
        embed_corpus(mixed, Means(), folder, shard_size=5, progress=False)
    with pytest.raises(DataError, match="holds no embeddings"):
        open_embeddings(tmp_path / "nothing")


def test_damaged_files_are_named(mixed: Corpus, tmp_path: Path) -> None:
    embed_corpus(mixed, Means(), tmp_path, progress=False)
    vectors, listing = tmp_path / "part-000000-0000.npy", tmp_path / "part-000000-0000.jsonl"
    whole = vectors.read_bytes()
    vectors.write_bytes(whole[:-40])
    with pytest.raises(DataError, match=r"part-000000-0000.npy: damaged"):
        open_embeddings(tmp_path)
    np.save(vectors, np.zeros((7, 4), np.float32))
    with pytest.raises(DataError, match=r"shape \(7, 4\) instead of float32 of shape \(7, 3\)"):
        open_embeddings(tmp_path)
    vectors.unlink()
    with pytest.raises(DataError, match="missing; delete part-000000-0000.jsonl"):
        open_embeddings(tmp_path)
    vectors.write_bytes(whole)
    listing.write_text("{")
    with pytest.raises(DataError, match=r"part-000000-0000.jsonl: damaged"):
        open_embeddings(tmp_path)


def test_a_corpus_without_any_usable_picture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no picture could be embedded, 0 failed; check the path"):
        embed_corpus(corpus_of([[]]), Means(), tmp_path / "none", progress=False)
    text = corpus_of([[Picture("x", b"text")]])
    with pytest.raises(DataError, match="1 failed, such as x: not an image"):
        embed_corpus(text, Means(), tmp_path / "text", progress=False)


def test_a_benchmark_is_embedded_by_the_same_function(
    files: list[bytes], store: ImageStore, tmp_path: Path
) -> None:
    refs = [store.put(data, "picture") for data in files]
    corpus = store_corpus(refs, store)
    opened = embed_corpus(corpus, PerceptualHash(), tmp_path, progress=False)
    assert opened.keys == opened.sha256 == [ref.sha256 for ref in refs]
    assert opened.types == []
    (codes,) = opened.vectors
    assert codes.shape == (12, 8) and codes.dtype == np.uint8


def test_a_real_encoder_gives_the_vectors_of_a_plain_loop(
    files: list[bytes], encoder_folders: dict[str, Path], tmp_path: Path
) -> None:
    from PIL import Image

    encoder = load_encoder(str(encoder_folders["siglip"]), device="cpu")
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number, data in enumerate(files):
        (folder / f"{number:02d}.jpg").write_bytes(data)
    opened = embed_corpus(
        folder_corpus(folder), encoder, tmp_path / "out", batch_size=4, progress=False
    )
    images = [Image.open(path).convert("RGB") for path in sorted(folder.iterdir())]
    plain = np.concatenate(
        [
            encoder.embed([encoder.prepare(image) for image in images[start : start + 4]])
            for start in range(0, 12, 4)
        ]
    )
    plain /= np.linalg.norm(plain, axis=1, keepdims=True)
    assert np.allclose(np.concatenate(opened.vectors), plain, atol=1e-6)
    with pytest.raises(DataError, match=r"16 x float32.*not of .*12 x float32"):
        open_embeddings(tmp_path / "out", load_encoder(str(encoder_folders["clip"]), device="cpu"))


def test_pictures_are_prepared_ahead_but_not_all_at_once(
    files: list[bytes], tmp_path: Path
) -> None:
    n_read = [0]
    n_read_at_first_batch: list[int] = []

    def read(skip: int) -> Iterator[Picture]:
        for number in range(skip, 200):
            n_read[0] += 1
            yield Picture(str(number), files[number % 12] + bytes(number))

    class Watch(Means):
        def embed(self, prepared: Sequence[np.ndarray]) -> np.ndarray:
            n_read_at_first_batch.append(n_read[0])
            return super().embed(prepared)

    corpus = Corpus("long", "long", lambda: iter([Part("p", read)]), 200)
    opened = embed_corpus(corpus, Watch(), tmp_path, batch_size=4, n_threads=2, progress=False)
    assert opened.keys == [str(number) for number in range(200)]
    assert 4 < n_read_at_first_batch[0] < 30


def test_an_error_of_the_corpus_is_raised(files: list[bytes], tmp_path: Path) -> None:
    def read(skip: int) -> Iterator[Picture]:
        yield Picture("0", files[0])
        raise DataError("no more")

    with pytest.raises(DataError, match="no more"):
        corpus = Corpus("broken", "broken", lambda: iter([Part("p", read)]))
        embed_corpus(corpus, Means(), tmp_path, progress=False)


class Slow:
    """An encoder that takes its time, and whose folder is embedded in another process."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self._encoder, self._seconds = load_encoder(str(folder), device="cpu"), seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._encoder, name)

    def embed(self, prepared: Sequence[Any]) -> Any:
        time.sleep(self._seconds)
        return self._encoder.embed(prepared)


def embed_slowly(pictures: Path, encoder: Path, out: Path, seconds: float, ready: Any) -> None:
    slow = Slow(encoder, seconds)
    ready.set()
    embed_corpus(
        folder_corpus(pictures, part_size=100),
        slow,
        out,
        batch_size=8,
        shard_size=32,
        n_threads=2,
        progress=False,
    )


@pytest.mark.slow
def test_killed_at_any_moment_it_goes_on_to_the_same_bytes(
    encoder_folders: dict[str, Path], tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    pictures = tmp_path / "pictures"
    for number in range(300):
        path = pictures / f"kind{number % 3}" / f"{number:03d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        data = encoded(photo(rng, 40, 40), "JPEG")
        if number % 50 == 7:
            data = data[:200]
        if number % 40 == 9:
            data = sorted(path.parent.iterdir())[0].read_bytes()
        path.write_bytes(data)

    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload([__name__, "transformers.models.siglip.modeling_siglip"])

    def start(out: Path, seconds: float) -> multiprocessing.process.BaseProcess:
        ready = processes.Event()
        folder = encoder_folders["siglip"]
        process = processes.Process(
            target=embed_slowly, args=(pictures, folder, out, seconds, ready)
        )
        process.start()
        assert ready.wait(120)
        return process

    def count(folder: Path) -> int:
        return len(list(folder.glob("part-*.jsonl")))

    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    process = start(undisturbed, 0)
    process.join()
    assert process.exitcode == 0
    n_shards = [0]
    for _ in range(5):
        process = start(killed, 0.04)
        while process.is_alive() and count(killed) == n_shards[-1]:
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 0.2))
        process.kill()
        process.join()
        n_shards.append(count(killed))
    assert n_shards[2] < count(undisturbed) == 12, f"not killed half-way: {n_shards}"
    (killed / ".part-000000-0000.npy.0badcafe").write_bytes(b"left by a kill")
    process = start(killed, 0)
    process.join()
    assert process.exitcode == 0
    assert contents(killed) == contents(undisturbed)
    opened = open_embeddings(killed)
    assert (opened.n_pictures, len(opened.failures)) == (300, 6)
    assert opened.n + opened.n_copies + 6 == 300 and opened.n_copies > 0
    assert set(opened.types) == {"kind0", "kind1", "kind2"}

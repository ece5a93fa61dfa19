"""Paths in data that lead outside of their folder, or to what is no regular file."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from PIL import Image, PngImagePlugin

from benchmarks.robustness.attacks import Attack, Ended, Harm, harm

GROUP = "paths that lead outside"
CANARY = "canary-4d1f0e"
"""A word of every file that must not be read."""
SPARSE = 64 << 30


def _link(target: str) -> Callable[[Path], str]:
    def make(inside: Path) -> str:
        (inside / "link.png").symlink_to(target)
        return "link.png"

    return make


def _linked_folder(inside: Path) -> str:
    (inside / "up").symlink_to(inside.parent)
    return "up/secret.png"


def _two_links(inside: Path) -> str:
    (inside / "a.png").symlink_to("b.png")
    (inside / "b.png").symlink_to("../secret.png")
    return "a.png"


def _loop(inside: Path) -> str:
    (inside / "loop.png").symlink_to("loop.png")
    return "loop.png"


def _pipe(inside: Path) -> str:
    os.mkfifo(inside / "pipe.png")
    return "pipe.png"


def _socket(inside: Path) -> str:
    import socket

    here = os.getcwd()
    os.chdir(inside)  # the path of a socket is short
    socket.socket(socket.AF_UNIX).bind("socket.png")
    os.chdir(here)
    return "socket.png"


def _sparse(inside: Path) -> str:
    with (inside / "sparse.png").open("wb") as file:
        file.truncate(SPARSE)
    return "sparse.png"


def _folder(inside: Path) -> str:
    (inside / "folder.png").mkdir()
    return "folder.png"


OUTSIDE: dict[str, Callable[[Path], str]] = {
    "absolute": lambda inside: str(inside.parent / "secret.png"),
    "..": lambda inside: "../secret.png",
    ".. after a folder": lambda inside: "x/../../secret.png",
    "a backslash": lambda inside: "..\\secret.png",
    "a URL": lambda inside: f"file://{inside.parent}/secret.png",
    "home": lambda inside: "~/secret.png",
    "a link": _link("../secret.png"),
    "two links": _two_links,
    "a linked folder": _linked_folder,
    "a loop of links": _loop,
    "a pipe": _pipe,
    "a socket": _socket,
    "/dev/zero": lambda inside: "/dev/zero",
    "a link to /dev/zero": _link("/dev/zero"),
    "/dev/stdin": lambda inside: "/dev/stdin",
    "/proc/self/environ": lambda inside: "/proc/self/environ",
    "a link to /proc/self/environ": _link("/proc/self/environ"),
    "a sparse file": _sparse,
    "a folder": _folder,
    "a NUL": lambda inside: "secret.png\0.jpg",
    "a long name": lambda inside: "a/" * 3000 + "secret.png",
}
"""Paths by kind: each makes what it needs in a folder, and returns what the data name."""


def attacks(base: Path) -> Iterator[Attack]:
    """Yield every path in every kind of data that names files."""
    for reader in READERS:
        for name in OUTSIDE:
            act = partial(_read, reader, name)
            yield Attack(GROUP, f"{reader}: {name}", act, _leaked, 15, 2 << 30)
    for name in ("a link", "a pipe", "a link to /dev/zero", "a sparse file", "a folder"):
        for place, command in _PLACES.items():
            act = partial(_run, base, place, command, name)
            yield Attack(GROUP, f"run: {place}: {name}", act, _leaked, 15, 2 << 30)
        for place in ("config.yaml", "expected.jsonl", "flips/0.jsonl", "captions/0.jsonl"):
            act = partial(_recipe, base, place, name)
            yield Attack(GROUP, f"recipe: {place}: {name}", act, _leaked, 15, 2 << 30)
        for suffix in ("csv", "xlsx", "parquet", "json", "jsonl", "eval"):
            act = partial(_predictions, suffix, name)
            yield Attack(GROUP, f"predictions: .{suffix}: {name}", act, _leaked, 15, 2 << 30)


def good_png(number: int = 0) -> bytes:
    """Return a small picture."""
    stream = io.BytesIO()
    Image.new("RGB", (24, 24), (number * 40 % 256, 90, 200)).save(stream, "PNG")
    return stream.getvalue()


def secret_image() -> Image.Image:
    """Return the picture that must not be read: no other has its pixels."""
    image = Image.new("RGB", (48, 48))
    image.putdata([(i * 5 % 256, i * 11 % 256, i * 3 % 256) for i in range(48 * 48)])
    return image


def plant(folder: Path) -> Path:
    """Write the secret, and beside it a folder of three good pictures; return the folder."""
    text = PngImagePlugin.PngInfo()
    text.add_text("patient", CANARY)
    secret_image().save(folder / "secret.png", pnginfo=text)
    os.environ["CANARY"] = CANARY
    inside = folder / "inside"
    inside.mkdir()
    for number in range(3):
        (inside / f"{number}.png").write_bytes(good_png(number))
    return inside


def _leaked(folder: Path, ended: Ended) -> Iterable[Harm]:
    if CANARY in ended.text:
        yield "leaked", "the output has the canary"
    pixels = secret_image().tobytes()
    for path in folder.rglob("*"):
        if path.is_symlink() or not path.is_file() or path == folder / "secret.png":
            continue
        if path.stat().st_size > 50_000_000:
            continue
        data = path.read_bytes()
        if CANARY.encode() in data:
            yield "leaked", f"{path.relative_to(folder)} has the canary"
        elif path.suffix in (".png", ".jpg", ".webp"):
            try:
                same = Image.open(io.BytesIO(data)).convert("RGB").tobytes() == pixels
            except Exception:
                continue
            if same:
                yield "leaked", f"{path.relative_to(folder)} is the picture"


def _tsv(inside: Path, name: str) -> Sequence[str]:
    import csv

    names = [*(f"{n}.png" for n in range(3)), name]
    with (inside / "b.tsv").open("w", newline="") as file:
        writer = csv.writer(file, delimiter="\t")
        writer.writerow(["index", "image_path", "question", "A", "B", "answer"])
        for number, path in enumerate(names):
            writer.writerow([number, path, f"Which {number}?", "red", "blue", "A"])
    return _import(inside, {"format": "vlmeval", "path": "inside/b.tsv"})


def _jsonl(inside: Path, name: str) -> Sequence[str]:
    item = {"question": "Which?", "options": ["red", "blue"], "answer": "A"}
    names = [*(f"{n}.png" for n in range(3)), name]
    lines = [json.dumps(item | {"name": str(n), "images": [p]}) for n, p in enumerate(names)]
    (inside / "b.jsonl").write_text("\n".join(lines) + "\n")
    return _import(inside, {"format": "jsonl", "path": "inside/b.jsonl"})


def _import(inside: Path, benchmark: dict[str, Any]) -> Sequence[str]:
    (inside.parent / "c.yaml").write_text(yaml.safe_dump({"run": "r", "benchmark": benchmark}))
    return ("import", "c.yaml", "-q")


def _corpus_rows(inside: Path, name: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    names = [*(f"{n}.png" for n in range(3)), name]
    cells = pa.array([{"bytes": None, "path": path} for path in names], kind)
    pq.write_table(pa.table({"image": cells}), inside / "c.parquet")
    _read_corpus(str(inside / "c.parquet"), 3)


def _corpus_folder(inside: Path, name: str) -> None:
    _read_corpus(str(inside), 3)


def _corpus_tar(inside: Path, name: str) -> None:
    kinds = {"a pipe": tarfile.FIFOTYPE, "/dev/zero": tarfile.CHRTYPE}
    with tarfile.open(inside / "c.tar", "w") as tar:
        for number in range(3):
            member = tarfile.TarInfo(f"{number}.png")
            member.size = len(good_png())
            tar.addfile(member, io.BytesIO(good_png(number)))
        member = tarfile.TarInfo("9.png")
        member.type = kinds.get(name, tarfile.SYMTYPE)
        member.linkname = name.replace("\0", "")
        tar.addfile(member)
        member = tarfile.TarInfo("8.png")
        member.type, member.linkname = tarfile.LNKTYPE, name.replace("\0", "")
        tar.addfile(member)
    _read_corpus(str(inside / "c.tar"), 3)


def _read_corpus(where: str, n_good: int) -> None:
    from flipbench.core.errors import FlipbenchError
    from flipbench.filters.audit.corpus_overlap.corpora import open_corpus

    secret = Path(os.getcwd(), "secret.png").read_bytes()
    try:
        corpus = open_corpus(where)
        read = [picture for part in corpus.parts() for picture in part.read(0)]
    except FlipbenchError as error:
        harm("lost", f"the whole corpus: {error}")
        return
    if any(picture.data == secret or CANARY.encode() in picture.data for picture in read):
        harm("leaked", "a picture of the corpus is the secret")
    if sum(bool(picture.data) for picture in read) < n_good:
        harm("lost", "a good picture of the corpus")


def _conversations(inside: Path, name: str) -> None:
    from flipbench.config.training import CorpusConfig
    from flipbench.contaminate.data.corpus import read_corpus

    said = [{"from": "human", "value": "<image>\nWhich?"}, {"from": "gpt", "value": "A"}]
    names = [*(f"{n}.png" for n in range(3)), name]
    lines = [json.dumps({"id": str(i), "image": p, "conversations": said}) for i, p in
             enumerate(names)]  # fmt: skip
    (inside / "c.jsonl").write_text("\n".join(lines) + "\n")
    corpus = read_corpus(CorpusConfig(path=inside / "c.jsonl", max_odd=0.9), 0)
    secret = secret_image().tobytes()
    n_read = 0
    for example in list(corpus.examples):
        for image in getattr(example, "images", ()):
            pixels = image if isinstance(image, Image.Image) else None
            if pixels is None and hasattr(image, "read"):
                pixels = image.read()
            data = pixels.tobytes() if isinstance(pixels, Image.Image) else repr(image).encode()
            if data == secret:
                harm("leaked", "a picture of a conversation is the secret")
        n_read += 1
    if n_read < 3:
        harm("lost", f"{3 - n_read} good conversations")


def _models_table(inside: Path, name: str) -> Sequence[str]:
    import csv

    predictions = f"index,question,answer,prediction\n1,{CANARY},A,A\n"
    (inside.parent / "secret.png").write_text(predictions)
    with (inside / "models.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["model", "family", "dose", "original", "perturbed"])
        writer.writerow(["m", "f", "0", name.replace("\0", "\\0"), name.replace("\0", "\\0")])
    return ("validate", "inside/models.csv", "--out", "out")


READERS: dict[str, Callable[[Path, str], Sequence[str] | None]] = {
    "benchmark, TSV": _tsv,
    "benchmark, JSONL": _jsonl,
    "corpus, parquet": _corpus_rows,
    "corpus, folder": _corpus_folder,
    "corpus, tar": _corpus_tar,
    "conversations": _conversations,
    "table of models": _models_table,
}


def _read(reader: str, name: str, folder: Path) -> Sequence[str] | None:
    inside = plant(folder)
    words = READERS[reader](inside, OUTSIDE[name](inside))
    if words and words[0] == "import":
        return _checked(words, folder)
    return words


def _checked(words: Sequence[str], folder: Path, *, odd_may_be_read: bool = False) -> None:
    """Import a benchmark; its three good items must be read, and the fourth if it may be."""
    from benchmarks.robustness.commands import call
    from flipbench.core.records import Item
    from flipbench.core.run import Run

    status = call(words)
    good = {hashlib.sha256(good_png(number)).hexdigest() for number in range(3)}
    stored = {path.stem for path in (folder / "r" / "images").glob("*")}
    if not good <= stored:
        harm("lost", f"{len(good - stored)} good pictures; status {status}")
    with Run(folder / "r") as run:
        n_items = len(list(run.read(Item)))
    if n_items > 3 and not odd_may_be_read:
        harm("leaked", "the item with the path was read")


_PLACES = {
    "a picture": ("show", "pairs.yaml", "sheet.png"),
    "a picture, filtered": ("filter", "pairs.yaml", "-q"),
    "a picture, exported": ("export", "pairs.yaml", "out"),
    "items": ("filter", "pairs.yaml", "-q"),
    "edits": ("filter", "pairs.yaml", "-q"),
    "verdicts": ("export", "pairs.yaml", "out"),
    "config.yaml": ("filter", "pairs/config.yaml", "-q"),
    "benchmark": ("detect", "--model", "shapes:llava", "--benchmark", "pairs", "--out", "out")
    + ("-q", "--detectors", "perturbation_gap"),
}
"""Files of a run, and a command that reads each."""


def _replace(path: Path, inside: Path, name: str) -> None:
    made = inside / OUTSIDE[name](inside)
    path.unlink()
    if made.is_symlink():
        target = os.readlink(made)
        path.symlink_to(inside.parent / "secret.png" if "secret" in target else target)
    else:
        made.rename(path)


def _run(base: Path, place: str, command: Sequence[str], name: str, folder: Path) -> Sequence[str]:
    inside = plant(folder)
    shutil.copytree(base / "pairs", folder / "pairs")
    shutil.copy(base / "pairs.yaml", folder)
    if place.startswith("a picture"):
        path = sorted((folder / "pairs" / "images").iterdir())[0]
    elif place == "config.yaml":
        path = folder / "pairs" / "config.yaml"
    else:
        path = sorted((folder / "pairs" / place).glob("*.jsonl"))[0]
    _replace(path, inside, name)
    if place == "a picture, filtered":  # read again
        shutil.rmtree(folder / "pairs" / "verdicts")
    return command


def _recipe(base: Path, place: str, name: str, folder: Path) -> Sequence[str]:
    inside = plant(folder)
    (recipe,) = (base / "out").glob("*recipe*")
    shutil.copytree(recipe, folder / "recipe")
    path = folder / "recipe" / place
    if "/" in place:
        path = sorted(path.parent.glob("*.jsonl"))[0]
    _replace(path, inside, name)
    return ("rebuild", "recipe", "-q")


def _predictions(suffix: str, name: str, folder: Path) -> Sequence[str]:
    inside = plant(folder)
    path = folder / f"a.{suffix}"
    path.write_text("")
    _replace(path, inside, name)
    return ("gap", path.name, path.name)

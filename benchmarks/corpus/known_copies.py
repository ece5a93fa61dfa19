"""Which copies of a benchmark's pictures a corpus audit finds, where the truth is known.

    python -m benchmarks.corpus.known_copies --out runs/known-copies

A corpus of other scenes of the embedded world receives copies of 0, 1, 5 and 20 % of the
benchmark's pictures, of one kind at a time: the same file, JPEG, resized, cropped, recoloured, the
same scene redrawn. "Same style" adds other scenes, which are no copies. For each encoder the table
gives recall and precision of the flagged pictures, and the verdict at each share. Encoders: 64-bit
pHash, and the vision tower of the tiny LLaVA, which knows this style and nothing else.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from PIL import Image

from flipbench.core.images import ImageStore
from flipbench.core.rates import Rate
from flipbench.filters.audit.corpus_overlap.corpora import folder_corpus
from flipbench.filters.audit.corpus_overlap.embeddings import embed_corpus
from flipbench.filters.audit.corpus_overlap.encoders import ImageEncoder, load_encoder
from flipbench.filters.audit.corpus_overlap.overlap import corpus_overlap
from flipbench.reporting import writers
from flipbench.reporting.tables import Cell, Column, Row, Table, rate_cell
from flipbench.shapes.benchmark import shapes_vqa, shapes_vqa_scenes
from flipbench.shapes.questions import fresh_scene
from flipbench.shapes.render import render
from flipbench.shapes.scene import Scene, draw_background

SHARES = (0.0, 0.01, 0.05, 0.2)
N_CORPUS = 3_000
_MOST_SHIFT = 8  # per cent of a cell


@dataclass
class Vectors:
    """The embeddings of some pictures, as `corpus_overlap` reads them."""

    encoder: str
    vectors: list[np.ndarray]
    keys: list[str]
    sha256: list[str]
    types: list[str]

    def __add__(self, other: Vectors) -> Vectors:
        """Return both, this one first."""
        return Vectors(
            self.encoder,
            [*self.vectors, *other.vectors],
            self.keys + other.keys,
            self.sha256 + other.sha256,
            [],
        )

    def first(self, n: int) -> Vectors:
        """Return the first ``n`` pictures by key."""
        order = np.argsort(self.keys)[:n]
        rows = np.concatenate(self.vectors)[order]
        keys, sha256 = ([column[i] for i in order] for column in (self.keys, self.sha256))
        return Vectors(self.encoder, [rows] if n else [], keys, sha256, [])


def redrawn(scene: Scene, rng: np.random.Generator) -> Scene:
    """Return the same things in the same cells, shifted anew, on another background."""
    low, high = -_MOST_SHIFT, _MOST_SHIFT + 1
    things = [
        replace(thing, shift=(int(rng.integers(low, high)), int(rng.integers(low, high))))
        for thing in scene.things
    ]
    return replace(scene, things=tuple(things), background=draw_background(rng))


def jpeg(image: Image.Image) -> bytes:
    """Return the picture as JPEG of quality 50."""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=50)
    return buffer.getvalue()


def png(image: Image.Image) -> bytes:
    """Return the picture as PNG."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def cropped(image: Image.Image) -> Image.Image:
    """Return the picture without a tenth at each edge, at its old size."""
    width, height = image.size
    box = (width // 10, height // 10, width - width // 10, height - height // 10)
    return image.crop(box).resize(image.size)


def recoloured(image: Image.Image) -> Image.Image:
    """Return the picture with every hue turned by a third."""
    hue, saturation, value = image.convert("HSV").split()
    turned = hue.point(lambda x: (x + 85) % 256)
    return Image.merge("HSV", (turned, saturation, value)).convert("RGB")


Copy = Callable[[Scene, Image.Image, np.random.Generator], bytes]
COPIES: dict[str, Copy] = {
    "same file": lambda _scene, image, _rng: png(image),
    "JPEG, quality 50": lambda _scene, image, _rng: jpeg(image),
    "resized to 96 pixels": lambda _scene, image, _rng: png(image.resize((96, 96))),
    "cropped by a tenth at each edge": lambda _scene, image, _rng: png(cropped(image)),
    "recoloured": lambda _scene, image, _rng: png(recoloured(image)),
    "same scene redrawn": lambda scene, _image, rng: png(render(redrawn(scene, rng))),
    "same style only": lambda _scene, _image, rng: png(render(fresh_scene(rng))),
}


def write_pictures(folder: Path, pictures: Sequence[bytes]) -> Path:
    """Write pictures under their numbers, unless they are there."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(pictures):
        (folder / f"{number:05d}.png").write_bytes(data)
    return folder


def embedded(folder: Path, encoder: ImageEncoder) -> Vectors:
    """Return the embeddings of a folder, which are stored beside it."""
    place = folder.parent / f"{folder.name}-{encoder.name.replace('/', '-')}"
    found = embed_corpus(folder_corpus(folder), encoder, place)
    return Vectors(encoder.name, list(found.vectors), found.keys, found.sha256, [])


@dataclass(frozen=True)
class Found:
    """What one encoder found of one kind of copy at one share."""

    encoder: str
    kind: str
    share: float
    recall: Rate
    precision: Rate
    verdict: str


def study(folder: Path, encoders: Sequence[ImageEncoder], n_corpus: int) -> list[Found]:
    """Embed corpus and copies, and compare the benchmark with each corpus."""
    rng = np.random.default_rng(7)
    known = {scene.content_hash() for scene in shapes_vqa_scenes()}
    drawn_anew = (fresh_scene(rng) for _ in range(2 * n_corpus))
    scenes = [scene for scene in drawn_anew if scene.content_hash() not in known]
    corpus = write_pictures(folder / "corpus", [png(render(s)) for s in scenes[:n_corpus]])
    store = ImageStore(folder / "store")
    items = shapes_vqa(store)
    sha256 = [item.images[0].sha256 for item in items]
    by_picture = {png(render(s)): s for s in shapes_vqa_scenes()}
    originals = [store.path(item.images[0]).read_bytes() for item in items]
    drawn = [by_picture[data] for data in originals]
    benchmark = write_pictures(folder / "benchmark", originals)
    n_most = round(max(SHARES) * len(items))
    results = []
    for kind, copy in COPIES.items():
        rng = np.random.default_rng(11)
        images = [render(scene) for scene in drawn[:n_most]]
        copies = [copy(*one, rng) for one in zip(drawn, images, strict=False)]
        planted = write_pictures(folder / kind.replace(" ", "-").replace(",", ""), copies)
        for encoder in encoders:
            subject, base, added = (embedded(f, encoder) for f in (benchmark, corpus, planted))
            for share in SHARES:
                n = round(share * len(items))
                found = corpus_overlap(subject, base + added.first(n))
                truth = set(sha256[:n]) if kind != "same style only" else set()
                flagged = {pair.sha256 for pair in found.pairs}
                hits = len(flagged & truth)
                results.append(
                    Found(
                        encoder.name,
                        kind,
                        share,
                        Rate.wilson(hits, len(truth)),
                        Rate.wilson(hits, len(flagged)),
                        found.verdict,
                    )
                )
    return results


def tables(results: Sequence[Found]) -> list[Table]:
    """Return one table per encoder: recall and precision at the largest share, all verdicts."""
    made = []
    for encoder in dict.fromkeys(one.encoder for one in results):
        rows = []
        for kind in COPIES:
            of_kind = [r for r in results if (r.encoder, r.kind) == (encoder, kind)]
            last = of_kind[-1]
            verdicts = [Cell(one.verdict.replace("_", " ")) for one in of_kind]
            rows.append(Row(kind, (rate_cell(last.recall), rate_cell(last.precision), *verdicts)))
        percents = [f"{100 * share:g} %" for share in SHARES]
        title = {"phash": "64-bit pHash"}.get(encoder, "The tiny LLaVA’s vision tower")
        made.append(
            Table(
                f"known-copies-{Path(encoder).name}",
                f"{title}: recall and precision of flagged pictures with {percents[-1]} of the"
                " benchmark in the corpus, and the verdict at each share (more near neighbours"
                " than the corpus' own pictures have, or not more).",
                "copies",
                (
                    Column("recall"),
                    Column("precision"),
                    *(Column(share, "verdict", numeric=False) for share in percents),
                ),
                (("", tuple(rows)),),
            )
        )
    return made


def main() -> None:
    """Run the study and print its tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/known-copies"))
    parser.add_argument("--n", type=int, default=N_CORPUS, help="other pictures in the corpus")
    args = parser.parse_args()
    tower = save_vision_tower(args.out / "llava-vision")
    encoders = [load_encoder("phash"), load_encoder(str(tower))]
    results = study(args.out, encoders, args.n)
    print(writers.write_tables(tables(results), args.out, "tables.md", "Known copies"))


def save_vision_tower(folder: Path) -> Path:
    """Save the vision tower of the tiny LLaVA as a checkpoint of its own."""
    from transformers import AutoImageProcessor, AutoModelForImageTextToText

    from flipbench.models.vlm.checkpoints import resolve_path

    if not (folder / "config.json").exists():
        path = resolve_path("shapes:llava")
        model = AutoModelForImageTextToText.from_pretrained(path)
        model.model.vision_tower.save_pretrained(folder)
        AutoImageProcessor.from_pretrained(path).save_pretrained(folder)
    return folder


if __name__ == "__main__":
    main()

"""An audit's training corpus: embeddings, near neighbours, and the pairs that people label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from flipbench.api.stages.assembly import Assembly
from flipbench.config.corpus import CorpusConfig, PicturesSpec
from flipbench.core.images import ImageStore
from flipbench.core.locks import Share, exclusive_lock
from flipbench.core.records import Adjudication, Item, content_id
from flipbench.core.run import Run
from flipbench.filters.agreement.adjudication import AdjudicationOutcome, adjudication_of
from flipbench.filters.audit.corpus_overlap.corpora import Corpus, open_corpus, store_corpus
from flipbench.filters.audit.corpus_overlap.embeddings import (
    Embeddings,
    embed_corpus,
    n_embedded,
    read_manifest,
)
from flipbench.filters.audit.corpus_overlap.encoders import ImageEncoder, load_encoder
from flipbench.filters.audit.corpus_overlap.flagged import FlaggedPair, write_flagged
from flipbench.filters.audit.corpus_overlap.overlap import CorpusOverlap, corpus_overlap
from flipbench.filters.audit.corpus_overlap.presentation import (
    VERDICTS,
    distance_figure,
    overlap_tables,
)
from flipbench.filters.audit.page import N_SHOWN, thumbnail
from flipbench.reporting.sections import PicturePair, Section


@dataclass(frozen=True)
class CorpusAudit:
    """The overlap by each encoder, and the section that shows it."""

    results: list[CorpusOverlap]
    section: Section

    @property
    def flagged(self) -> set[str]:
        """The sha256 of the pictures that the first encoder flags."""
        return {pair.sha256 for pair in self.results[0].pairs}


def audit_corpus(assembly: Assembly, config: CorpusConfig) -> CorpusAudit:
    """Embed both sides, compare them, and store the flagged pairs for people to label."""
    run, items = assembly.run, assembly.benchmark.items
    corpus = _open(config.pictures)
    types = {ref.sha256: item.category or "" for item in items[::-1] for ref in item.images}
    pictures = store_corpus([r for i in items for r in i.images], run.images, types=types)
    store = _store(assembly, config)
    # whose vectors are there is known once an encoder is loaded
    n_left = corpus.n and max(1, corpus.n - n_embedded(store))
    assembly.workers.start("audit", lambda: n_embedded(store), n_left, "embed")
    results, pairs, failed = [], [], dict[str, list[str]]()
    for name in config.encoders:
        encoder = load_encoder(name, device=config.device, dtype=config.dtype)
        _embed_on_cluster(assembly, config, name, _place(assembly, config, encoder, corpus))
        overlap, flagged = _compare(assembly, config, encoder, corpus, pictures, failed)
        results.append(_named(overlap, items))
        pairs += flagged
    write_flagged(run.path, pairs)
    outcome = adjudication_of(run) if run.ids(Adjudication) else None
    if outcome is not None:
        keys = [{(pair.sha256, pair.corpus_sha256) for pair in result.pairs} for result in results]
        results = [
            result.adjudicated(outcome.counts_of(pair_keys))
            for result, pair_keys in zip(results, keys, strict=True)
        ]
    return CorpusAudit(results, _section(results, pairs, outcome, run, failed))


def _compare(
    assembly: Assembly,
    config: CorpusConfig,
    encoder: ImageEncoder,
    corpus: Corpus,
    pictures: Corpus,
    failed: dict[str, list[str]],
) -> tuple[CorpusOverlap, list[FlaggedPair]]:
    """Return the overlap and the flagged pairs; add to ``failed`` what could not be embedded."""

    def embedded(source: Corpus) -> Embeddings:
        vectors = _embed(assembly, config, encoder, source)
        if vectors.failures:
            failed[source.name] = [failure["error"] for failure in vectors.failures]
        return vectors

    def opened(spec: PicturesSpec) -> Embeddings:
        return embedded(_open(spec))

    base, subject = embedded(corpus), embedded(pictures)
    clean = (config.clean.path, opened(config.clean).vectors) if config.clean else None
    overlap = corpus_overlap(
        subject,
        base,
        alpha=config.alpha,
        level=config.level,
        alphas=config.alphas,
        n_sample=config.n_sample,
        match_types=config.match_types,
        seed=assembly.config.seed,
        items=_n_items(assembly.benchmark.items),
        controls={name: opened(spec).vectors for name, spec in config.controls.items()},
        clean=clean,
        progress=assembly.progress,
    )
    return overlap, _flagged(assembly, overlap, base, corpus)


def check_corpora(config: CorpusConfig) -> None:
    """Raise if any of the sets of pictures is not there, before hours of work on the others."""
    for spec in filter(None, (config.pictures, config.clean, *config.controls.values())):
        _open(spec)


def embed_share(assembly: Assembly, config: CorpusConfig) -> None:
    """Embed this worker's share of the corpus with every encoder."""
    for name in config.encoders:
        encoder = load_encoder(name, device=config.device, dtype=config.dtype)
        _embed(assembly, config, encoder, _open(config.pictures))


def _embed(
    assembly: Assembly, config: CorpusConfig, encoder: ImageEncoder, source: Corpus
) -> Embeddings:
    place = _place(assembly, config, encoder, source)
    share = assembly.workers.share
    with exclusive_lock(place.parent, f"embedding {source.name} {place.name}", share):
        return embed_corpus(
            source,
            encoder,
            place,
            batch_size=config.batch_size,
            share=share,
            progress=assembly.progress and share is None,
        )


def corpus_size(assembly: Assembly, config: CorpusConfig) -> tuple[int | None, int]:
    """Return how many pictures the corpus has, if that is known, and how many vectors there are."""
    return _open(config.pictures).n, n_embedded(_store(assembly, config))


def _store(assembly: Assembly, config: CorpusConfig) -> Path:
    return config.embeddings or assembly.run.path / "audit" / "embeddings"


def _place(assembly: Assembly, config: CorpusConfig, encoder: ImageEncoder, source: Corpus) -> Path:
    """Return the folder of a corpus' vectors by one encoder."""
    folder = _store(assembly, config)
    return folder / content_id(source.name, source.fingerprint, encoder.fingerprint)[:16]


def _embed_on_cluster(assembly: Assembly, config: CorpusConfig, encoder: str, place: Path) -> None:
    """Embed the corpus on the Ray cluster, if one is configured and the corpus is not embedded."""
    cluster = assembly.cluster
    if cluster is None or "n" in (read_manifest(place) or {}):
        return
    n_shares = cluster.n_actors("embed")
    if n_shares < 2:
        return
    shares = [Share(number, n_shares) for number in range(n_shares)]
    with exclusive_lock(place.parent, f"embedding by {encoder} {place.name}"):
        calls = [(config, encoder, place.absolute(), share) for share in shares]
        cluster.call_each("embed", _embed_there, calls)


def _embed_there(config: CorpusConfig, encoder: str, place: Path, share: Share) -> None:
    """Embed a share of the corpus, on a machine of the cluster."""
    embed_corpus(
        _open(config.pictures),
        load_encoder(encoder, device=config.device, dtype=config.dtype),
        place,
        batch_size=config.batch_size,
        share=share,
        progress=False,
    )


def _open(spec: PicturesSpec) -> Corpus:
    return open_corpus(spec.path, **spec.model_dump(exclude={"path"}))


def _named(overlap: CorpusOverlap, items: Sequence[Item]) -> CorpusOverlap:
    """Return the result with the name of a picture's first item for its hash."""
    names = {ref.sha256: item.name for item in items[::-1] for ref in item.images}
    pairs = (pair.model_copy(update={"key": names[pair.sha256]}) for pair in overlap.pairs)
    return overlap.model_copy(update={"pairs": tuple(pairs)})


def _n_items(items: list[Item]) -> Mapping[str, int]:
    counts: dict[str, int] = {}
    for item in items:
        for sha256 in {ref.sha256 for ref in item.images}:
            counts[sha256] = counts.get(sha256, 0) + 1
    return counts


def _flagged(
    assembly: Assembly, overlap: CorpusOverlap, base: Embeddings, corpus: Corpus
) -> list[FlaggedPair]:
    """Copy the flagged pairs' corpus pictures into the run, where the review page finds them."""
    images, items = assembly.run.images, assembly.benchmark.items
    rows = {sha256: row for row, sha256 in enumerate(base.sha256)}
    row_numbers = sorted({rows[pair.corpus_sha256] for pair in overlap.pairs})
    copies = {
        base.sha256[row]: images.put(picture.data, f"{corpus.name} {picture.key}")
        for row, picture in base.pictures(row_numbers, corpus).items()
    }
    refs = {ref.sha256: ref for item in items for ref in item.images}
    return [
        FlaggedPair(
            benchmark=refs[pair.sha256],
            corpus=copies[pair.corpus_sha256],
            corpus_key=pair.corpus_key,
            distance=min(2.0, max(0.0, pair.distance)),
            encoder=overlap.encoder,
            items=tuple(
                item.name for item in items if pair.sha256 in {ref.sha256 for ref in item.images}
            ),
            category=pair.type,
        )
        for pair in overlap.pairs
    ]


def _pictures(pairs: Sequence[FlaggedPair], images: ImageStore) -> tuple[PicturePair, ...]:
    nearest = sorted({pair.key: pair for pair in pairs}.values(), key=lambda pair: pair.distance)
    return tuple(
        PicturePair(
            f"{', '.join(pair.items)} and {pair.corpus_key}, distance {pair.distance:.3g}",
            (thumbnail(images, pair.benchmark), thumbnail(images, pair.corpus)),
        )
        for pair in nearest[:N_SHOWN]
    )


def _section(
    results: list[CorpusOverlap],
    pairs: Sequence[FlaggedPair],
    outcome: AdjudicationOutcome | None,
    run: Run,
    failed: Mapping[str, Sequence[str]],
) -> Section:
    leading = results[0]
    n_pairs = len(
        {(pair.sha256, pair.corpus_sha256) for result in results for pair in result.pairs}
    )
    folder, images = run.path / "audit", run.images
    folder.mkdir(parents=True, exist_ok=True)
    if outcome is not None:
        people = f"People's labels: {outcome}."
    elif n_pairs:
        people = (
            f"Nobody has looked at the {n_pairs} flagged pairs yet: flipbench review --flagged"
            " shows them side by side."
        )
    else:
        people = ""
    return Section(
        "corpus-overlap",
        "Near neighbours in the training corpus",
        "look" if n_pairs else "ok",
        " ".join(filter(None, [*(result.sentence for result in results), people])),
        (
            "A near neighbour is a short distance in an image encoder. Whether it is the same"
            " picture is for people to say; whether a model was trained on it, for no picture.",
            *(
                f"{name}: {len(errors):,} pictures could not be read and are not compared, such as"
                f" {errors[0]}."
                for name, errors in failed.items()
            ),
        ),
        tuple(overlap_tables(results)),
        (distance_figure(results, folder),),
        headline=f"Corpus: {leading.flagged.k:,} of {leading.flagged.n:,} pictures have a near"
        f" neighbour in it ({leading.encoder}); {VERDICTS[leading.verdict]}.",
        pairs=_pictures(pairs, images),
        data={
            "encoders": [
                result.model_dump(mode="json", exclude={"distances"}) for result in results
            ],
            "failed": failed,
        },
    )

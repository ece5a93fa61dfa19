"""What the data regimes of a contamination grid train on, and who words it anew."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from flipbench.benchmarks import ShapesSpec, load_benchmark
from flipbench.config.training import CorpusConfig, DataConfig, OtherBenchmark, RewriteConfig
from flipbench.contaminate.data.corpus import Corpus, read_corpus
from flipbench.contaminate.data.regimes import RegimeData, mixture, split_members
from flipbench.contaminate.data.wordings import (
    N_PARAPHRASES,
    ChatWriter,
    WordingStage,
    Writer,
    stored_wordings,
    write_wordings,
)
from flipbench.core.files import write_atomically
from flipbench.core.records import Item, Wording
from flipbench.core.run import Run
from flipbench.core.stage import DEFAULTS, StageOptions
from flipbench.models.chat.batch_api import BATCH_PRICE
from flipbench.models.chat.cost import estimate_cost
from flipbench.shapes.benchmark import Edition, shapes_vqa

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainingData:
    """The data regimes of a grid, by name.

    Attributes
    ----------
    originals : callable
        Returns the items of the whole benchmark.
    items : callable
        Returns those of them that the models train on.
    writers : mapping of str to Writer
        By regime, for those that reword or translate the questions.
    """

    originals: Callable[[], Sequence[Item]]
    items: Callable[[], Sequence[Item]]
    configs: Mapping[str, DataConfig]
    writers: Mapping[str, Writer]
    run: Run
    seed: int = 0
    options: StageOptions = DEFAULTS

    def prepare(self, *, write: bool) -> dict[str, RegimeData]:
        """Return what each regime trains on, by name.

        With ``write``, missing paraphrases and translations are requested from chat models.
        Without it (``--dry-run``), the original wording serves as a placeholder.
        """
        return {name: self._regime(name, write) for name in self.configs}

    def _regime(self, name: str, write: bool) -> RegimeData:
        data, seed = self.configs[name], self.seed
        source = data.benchmark
        items: Sequence[Item] = self.items() if source is None else self._other(source)
        members, held_out = split_members(items, data.fraction, seed)
        if data.mixture:
            mixed_in = {k: self._other(part.benchmark) for k, part in data.mixture.items()}
            shares = {k: part.share for k, part in data.mixture.items() if part.share is not None}
            members = mixture(members, mixed_in, shares, seed)
        ids = {item.id for item in self.originals()}
        control = ids.isdisjoint(item.id for item in members)
        regime = RegimeData(name, data, members, held_out, control=control)
        if data.rewrite is not None:
            wordings = self._wordings(members, data.rewrite, self.writers[name], write)
            regime = replace(regime, wordings=wordings)
        if data.corpus is not None:
            regime = replace(regime, corpus=self._corpus(data.corpus))
        wash = data.wash
        if wash is not None and wash.corpus is not None:
            regime = replace(regime, clean_corpus=self._corpus(wash.corpus))
        if wash is not None and wash.benchmark is not None:
            regime = replace(regime, clean=tuple(self._other(wash.benchmark)))
        return regime

    def _corpus(self, config: CorpusConfig) -> Corpus:
        """Read a corpus, and list its odd conversations in the run."""
        corpus = read_corpus(config, self.seed)
        if corpus.odd:
            lines = "".join(f"{odd}\n" for odd in corpus.odd)
            path = self.run.path / "corpora" / f"{config.path.stem}-{corpus.ref['sha256'][:8]}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, lines)
            log.warning("%s; all are listed in %s", corpus.summary(), path)
        return corpus

    def _wordings(
        self, items: Sequence[Item], config: RewriteConfig, writer: Writer, write: bool
    ) -> dict[str, Wording]:
        """Return a wording per item; without ``write``, placeholders for missing ones."""
        run, language, captions = self.run, config.language, config.how == "caption"
        if write or config.by in ("shapes", "file"):
            options = self.options
            if config.batch and items:  # all in one batch of the server
                options = replace(options, batch_size=len(items))
            wordings, report = write_wordings(
                items, writer, run, options, language=language, captions=captions
            )
            log.debug("%s", report)
            return wordings
        placeholders = {
            item.id: Wording(
                item_id=item.id,
                how="not written yet",
                writer=writer.name,
                question=item.question,
                options=(item.options or ()) if language else (),
                candidates=() if language else (item.question,) * N_PARAPHRASES,
            )
            for item in items
        }
        return placeholders | stored_wordings(items, writer, run, language=language)

    def _other(self, spec: OtherBenchmark) -> list[Item]:
        if isinstance(spec, ShapesSpec):
            return shapes_vqa(
                self.run.images, spec.n_items, Edition(spec.seed, spec.level, spec.per_picture)
            )
        benchmark = load_benchmark(spec, self.run.images)
        if benchmark.problems:
            log.warning("%s", benchmark.summary())
        return benchmark.items

    def to_write(self, regimes: Iterable[RegimeData]) -> list[str]:
        """Return the requests that chat models have yet to answer, and their cost."""
        lines = []
        wording_ids = self.run.ids(Wording)
        counted_ids: set[str] = set()  # regimes may share wordings
        for regime in regimes:
            config, writer = regime.config.rewrite, self.writers.get(regime.name)
            if config is None or not isinstance(writer, ChatWriter):
                continue
            stage = WordingStage(writer, config.language)
            item_by_id = {stage.id_of(item): item for item in regime.items}
            if item_by_id.keys() <= wording_ids:
                continue
            items = [item for i, item in item_by_id.items() if i not in wording_ids | counted_ids]
            counted_ids |= item_by_id.keys()
            text = (
                f"{regime.name}: {len(items):,} questions are put in other words first; until then"
                " its plans have other ids"
            )
            if items and config.chat is not None:
                cost = estimate_cost(
                    [writer.request(item) for item in items],
                    config.chat,
                    typical_tokens=writer.typical_tokens(items),
                    price_factor=BATCH_PRICE if config.batch else 1.0,
                )
                text += f"\n  {cost}"
            lines.append(text)
        return lines

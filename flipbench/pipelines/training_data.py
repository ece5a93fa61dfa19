"""What the data regimes of a contamination grid train on, and who writes their other wordings."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from flipbench.benchmarks import load_benchmark
from flipbench.config.chat import APISpec
from flipbench.config.experiment import AnswerJudgeConfig
from flipbench.config.local_models import LocalSpec
from flipbench.config.training import DataConfig, OtherBenchmark, RewriteConfig
from flipbench.contaminate.data.corpus import read_corpus
from flipbench.contaminate.data.regimes import RegimeData, mixture, part_of
from flipbench.contaminate.data.wordings import (
    N_PARAPHRASES,
    ChatWriter,
    FileWriter,
    ShapesWriter,
    WordingStage,
    Writer,
    write_wordings,
    written_already,
)
from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Item, Wording
from flipbench.core.run import Run
from flipbench.core.stage import DEFAULTS, StageOptions
from flipbench.models.chat.cost import estimate_requests
from flipbench.models.chat.messages import Chat
from flipbench.pipelines.backends import BATCH_PRICE, build_chat

log = logging.getLogger(__name__)


def writer_of(config: RewriteConfig, run: Run, seed: int) -> Writer:
    """Return who writes the other wordings that a configuration asks for."""
    if config.by == "shapes":
        return ShapesWriter()
    if config.by == "file" and config.path is not None:
        return FileWriter(config.path)
    return ChatWriter(chat_of(config, run, seed), run.images, config.language)


def chat_of(config: RewriteConfig | AnswerJudgeConfig, run: Run, seed: int) -> Chat:
    """Return the chat model that a configuration names, behind a server or on this machine."""
    spec: APISpec | LocalSpec
    if config.local is not None:
        spec = LocalSpec(chat=config.local)
    else:
        spec = APISpec.model_validate({"chat": config.chat, "batch": config.batch})
    return build_chat(spec, run.path / "batches", seed)


@dataclass(frozen=True)
class TrainingData:
    """The data regimes of a grid by name, and who writes the other wordings of each.

    Attributes
    ----------
    writers : mapping of str to Writer
        By regime; one that trains on the items' own words has none.
    """

    configs: Mapping[str, DataConfig]
    writers: Mapping[str, Writer]
    run: Run
    seed: int = 0
    options: StageOptions = DEFAULTS

    def prepare(self, benchmark: PairedBenchmark, *, write: bool) -> dict[str, RegimeData]:
        """Return what each regime trains on, by name.

        ``write`` lets chat models write paraphrases and translations; without it, the items' own
        words stand in for those that a run lacks, as a plan for ``--dry-run`` may have it.
        """
        return {name: self._regime(benchmark, name, write) for name in self.configs}

    def _regime(self, benchmark: PairedBenchmark, name: str, write: bool) -> RegimeData:
        data, seed = self.configs[name], self.seed
        own = benchmark.originals if data.benchmark is None else self._other(data.benchmark)
        members, held_out = part_of(own, data.fraction, seed)
        if data.mixture:
            others = {k: self._other(part.benchmark) for k, part in data.mixture.items()}
            shares = {k: part.share for k, part in data.mixture.items() if part.share is not None}
            members = mixture(members, others, shares, seed)
        paired = {item.id for item in benchmark.originals}
        control = paired.isdisjoint(item.id for item in members)
        regime = RegimeData(name, data, members, held_out, control=control)
        if data.rewrite is not None:
            wordings = self._wordings(members, data.rewrite, self.writers[name], write)
            regime = replace(regime, wordings=wordings)
        if data.corpus is not None:
            regime = replace(regime, corpus=read_corpus(data.corpus, seed))
        wash = data.wash
        if wash is not None and wash.corpus is not None:
            regime = replace(regime, clean_corpus=read_corpus(wash.corpus, seed))
        if wash is not None and wash.benchmark is not None:
            regime = replace(regime, clean=tuple(self._other(wash.benchmark)))
        return regime

    def _wordings(
        self, items: Sequence[Item], config: RewriteConfig, writer: Writer, write: bool
    ) -> dict[str, Wording]:
        """Return a wording for each item, a stand-in where a chat model would have to be asked."""
        run, language = self.run, config.language
        if write or config.by in ("shapes", "file"):
            found, report = write_wordings(items, writer, run, self.options, language=language)
            log.debug("%s", report)
            return found
        stand_ins = {
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
        return stand_ins | written_already(items, writer, run, language=language)

    def _other(self, spec: OtherBenchmark) -> list[Item]:
        loaded = load_benchmark(spec, self.run.images)
        if loaded.problems:
            log.warning("%s", loaded.summary())
        return loaded.items

    def to_write(self, regimes: Iterable[RegimeData]) -> list[str]:
        """Return what chat models would be asked for first, and what that would cost."""
        lines = []
        written = self.run.ids(Wording)
        counted: set[str] = set()  # regimes may share wordings
        for regime in regimes:
            config, writer = regime.config.rewrite, self.writers.get(regime.name)
            if config is None or not isinstance(writer, ChatWriter):
                continue
            stage = WordingStage(writer, config.language)
            needed = {stage.id_of(item): item for item in regime.items}
            if needed.keys() <= written:
                continue
            items = [item for i, item in needed.items() if i not in written | counted]
            counted |= needed.keys()
            text = (
                f"{regime.name}: {len(items):,} questions are put in other words first; until then"
                " its plans have other ids"
            )
            if items and config.chat is not None:
                cost = estimate_requests(
                    [writer.request(item) for item in items],
                    config.chat,
                    typical_tokens=writer.typical_tokens(items),
                    price_factor=BATCH_PRICE if config.batch else 1.0,
                )
                text += f"\n  {cost}"
            lines.append(text)
        return lines

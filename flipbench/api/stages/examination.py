"""Models asked about a paired benchmark: the detectors' questions, replies, scores, diagnoses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from flipbench.api.stages.detectors import ConfiguredDetectors
from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Probe, Response, Score, Verdict
from flipbench.core.run import Run
from flipbench.core.stage import StageOptions, StageReport
from flipbench.distributed.workers import Workers
from flipbench.evaluate.diagnosis.diagnosis import Diagnosis, diagnose, outcomes
from flipbench.evaluate.diagnosis.questions import questions_about
from flipbench.evaluate.pipeline import (
    ModelUnderTest,
    ask_all,
    ask_one,
    n_unanswered,
    score,
    store_probes,
)
from flipbench.evaluate.protocol.grid import GridModel
from flipbench.filters.effective_verdicts import effective_verdicts
from flipbench.models.engine import ASK_OPTIONS, Answers, answers_of
from flipbench.prompting.prompts import PromptSettings


@dataclass(frozen=True)
class Examination:
    """A benchmark, the models that are asked about it, and the detectors that score them.

    Attributes
    ----------
    of_clean : sequence of Probe
        Further probes, for clean models only; no detector reads them.
    asks : bool
        Whether anything is asked; else only what the run has is scored.
    """

    benchmark: PairedBenchmark
    models: Sequence[ModelUnderTest]
    configured: ConfiguredDetectors
    prompt_settings: PromptSettings
    run: Run
    options: StageOptions = ASK_OPTIONS
    of_clean: Sequence[Probe] = ()
    asks: bool = True

    @property
    def grid(self) -> list[GridModel]:
        """The facts about the models."""
        return [entry.model for entry in self.models]

    def answers(self, model: GridModel) -> Answers:
        """Return a model's stored answers."""
        return answers_of(model.name, model.fingerprint, self.run)

    def score(
        self,
        workers: Workers | None = None,
        references: Callable[[GridModel], Sequence[GridModel | None]] | None = None,
    ) -> tuple[list[Score], list[StageReport]]:
        """Reword the texts, ask the models, judge the replies, and score them.

        ``workers`` ask a share of the models each; a model is compared with its ``references``, by
        default with its own clean model.
        """
        benchmark, run, progress = self.benchmark, self.run, self.options.progress
        reports = self.configured.reword(benchmark, progress) if self.asks else []
        detectors = self.configured.detectors(benchmark)
        asking = (detectors, self.prompt_settings, run)
        if workers is not None and workers.n_workers > 1:
            probes = store_probes(detectors, benchmark, self.prompt_settings, run, self.of_clean)
            n_left = n_unanswered(self.models, probes, self.of_clean, run)
            workers.start("evaluate", Response, n_left, "ask")
        if self.asks:
            reports += ask_all(benchmark, self.models, *asking, self.options, self.of_clean)
            replies = map(self.answers, self.grid)
            reports += self.configured.judge_replies(detectors, benchmark, replies, progress)
        else:
            for model in self.grid:
                n_stored = len(run.ids(Response, model.fingerprint))
                reports.append(StageReport(f"ask {model.name}", n_skipped=n_stored))
        can = {entry.model.fingerprint: entry.can for entry in self.models}
        scores = score(benchmark, self.grid, *asking, can, references)
        return self.configured.mark_plug_ins(scores), reports

    def diagnose(self) -> tuple[dict[str, Diagnosis], list[StageReport]]:
        """Ask why items fell, if so configured; return the diagnoses by the models' fingerprints.

        Raters' objections are read where the benchmark's images are, before these move to the run.
        """
        diagnoses: dict[str, Diagnosis] = {}
        reports: list[StageReport] = []
        if not self.configured.config.diagnose:
            return diagnoses, reports
        run, prompt_settings = self.run, self.prompt_settings
        doubts, benchmark = objections(self.benchmark), self.benchmark.with_images_in(run.images)
        inquiry, probe_ids = self.configured.inquiry(benchmark), run.ids(Probe)
        for entry in self.models:
            fallen = outcomes(benchmark, prompt_settings, self.answers(entry.model)).fell
            questions = questions_about(fallen, benchmark, prompt_settings, inquiry)
            probes = {probe.id: probe for group in questions for probe in group.follow_ups}
            run.append([probe for probe in probes.values() if probe.id not in probe_ids])
            probe_ids |= probes.keys()
            if self.asks:
                follow_ups = list(probes.values())
                reports.append(ask_one(entry, follow_ups, run, benchmark.images, self.options))
            diagnoses[entry.model.fingerprint] = diagnose(
                benchmark, prompt_settings, self.answers(entry.model), inquiry, doubts
            )
        return diagnoses, reports


def objections(benchmark: PairedBenchmark) -> dict[str, bool]:
    """Return whether a rater objects to the perturbed picture of a pair, by the original's id.

    All verdicts in the run directory that holds the benchmark's images count, whatever the policy
    made of them; pairs without any are left out.
    """
    folder = benchmark.images.folder.parent
    if not (folder / Verdict.kind).is_dir():
        return {}
    decisions: dict[str, list[str]] = {}
    for verdict in effective_verdicts(Run(folder, read_only=True).read(Verdict)):
        decisions.setdefault(verdict.image_sha256, []).append(verdict.decision)
    is_doubted = {}
    for pair in benchmark.pairs:
        pair_decisions = [d for ref in pair.perturbed.images for d in decisions.get(ref.sha256, ())]
        if pair_decisions:
            is_doubted[pair.original.id] = any(decision != "keep" for decision in pair_decisions)
    return is_doubted


def work_lines(counts: Mapping[str, int]) -> list[str]:
    """Return one line per count, for dry runs."""
    return [f"{n:>9,}  {unit}" for unit, n in counts.items()]


def follow_ups(configured: ConfiguredDetectors, benchmark: PairedBenchmark) -> dict[str, int]:
    """Return the largest number of questions about an item that falls, for dry runs."""
    if not configured.config.diagnose:
        return {}
    n_questions = configured.inquiry(benchmark).n_most
    return {"further questions, at most, about each item that falls": n_questions}


def not_built(plug_ins: Sequence[str]) -> list[str]:
    """Return a line on plug-ins, which a dry run does not build; none if there are none."""
    if not plug_ins:
        return []
    return [f"not counted, since a dry run builds no plug-in: {', '.join(plug_ins)}"]

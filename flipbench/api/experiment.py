"""An experiment from Python: `Experiment`, whose methods are its stages, and `demo`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from flipbench.api.calls import Plan, current_call, has_dry_run
from flipbench.api.options import Limit, Option, Progress, Trust, Workers

if TYPE_CHECKING:
    from flipbench.api.stages.assembly import Assembly
    from flipbench.api.stages.results import (
        AuditResult,
        ContaminationResult,
        EvaluationResult,
        ExportResult,
        FilterResult,
        GenerationResult,
        ImportResult,
        PictureResult,
        ReasoningResult,
    )
    from flipbench.config.experiment import Config

    ConfigLike = str | Path | Mapping[str, Any] | Config
    Overrides = Mapping[str, Any] | Sequence[str]


class Experiment:
    """A configured experiment: its stages, and what else is done with its run directory.

    Each method is a command of the same name. What the run directory (``run`` in the configuration)
    holds is not done again.

    Parameters
    ----------
    config : str, Path, mapping or Config
        A YAML file, see configs/.

        In Python, what such a file holds will do, too, or a checked configuration.
    overrides : mapping or sequence of str, optional
        E.g. seed=1 contaminate.epochs=2.

        In Python, values by dotted key, e.g. ``{"seed": 1, "contaminate.epochs": 2}``.
    limit : int, optional
        Take the first N items only.
    n_workers : int
        Processes that share the work, one for each GPU.
    slurm : bool
        The workers are jobs of a SLURM array (executor.slurm).
    progress : bool
        Whether to show progress bars.
    trust : bool
        Run code and use servers that a configuration from somebody else's run names.

    Raises
    ------
    ConfigError
        If a key or a value is wrong.
    DataError
        If the run directory cannot be written.

    Examples
    --------
    >>> import flipbench as fb
    >>> experiment = fb.Experiment("configs/shapes.yaml", {"run": "runs/shapes"}, limit=8)
    ... # doctest: +SKIP
    >>> experiment.filter()  # doctest: +SKIP
    <FilterResult: 8 pairs of shapes-vqa kept, in runs/shapes/benchmark>
    """

    parts: Assembly
    """What is built from the configuration."""

    def __init__(
        self,
        config: Annotated[ConfigLike, Option(metavar="CONFIG")],
        overrides: Annotated[
            Mapping[str, Any] | Sequence[str], Option(metavar="[KEY=VALUE]...")
        ] = (),
        *,
        limit: Limit = None,
        n_workers: Workers = 1,
        slurm: bool = False,
        progress: Progress = True,
        trust: Trust = False,
    ) -> None:
        from flipbench.api.stages.assembly import Assembly
        from flipbench.core.processes import is_main

        call = current_call()
        self.parts = Assembly.open(
            _loaded(config, overrides, trust),
            limit=limit,
            progress=progress and is_main(),
            command=call.command,
            n_workers=n_workers,
            share=call.share,
            slurm=slurm,
            store=False,
        )

    def __repr__(self) -> str:
        return f"<Experiment: {self.parts.config.title}, in {self.parts.run.path}>"

    def _begin(self, *, is_training: bool = False) -> Assembly:
        """Store the configuration with the results that follow."""
        from flipbench.core.errors import ConfigError
        from flipbench.core.processes import is_main, n_processes

        if n_processes() > 1 and (self.parts.workers.n_workers > 1 or not is_training):
            raise ConfigError(
                "accelerate launch is for flipbench contaminate, without --workers: its processes"
                " train one model together; everything else is shared out by --workers alone"
            )
        if not current_call().is_dry_run and current_call().share is None and is_main():
            self.parts.store_config()
        return self.parts

    @has_dry_run
    def generate(
        self,
        *,
        preview: Annotated[str | Path | None, Option("--preview", metavar="FILE")] = None,
    ) -> GenerationResult:
        """Make perturbed candidates: new answer, caption, redrawn image.

        Parameters
        ----------
        preview : str or Path, optional
            Only write a page about the first items: new answers, edges, prompts. It needs no key,
            GPU or weights.

        Raises
        ------
        DataError, PrerequisiteError
            If no item can be used, or a key for an API is missing.
        """
        from flipbench.api.stages import filtering, generation
        from flipbench.api.stages.results import GenerationResult
        from flipbench.core.errors import ConfigError

        if preview is not None:
            from flipbench.api.stages.preview import write_preview

            if self.parts.has_pairs:
                raise ConfigError("these pairs exist already, so there is nothing to preview")
            page = write_preview(self.parts, Path(preview))
            return GenerationResult([], [], self.parts.run.path, preview=page)
        parts = self._begin()
        if current_call().is_dry_run:
            raise Plan(filtering.plan_pairs(parts))
        if parts.has_pairs:
            pairs, reports = filtering.make_pairs(parts)
            return GenerationResult([], reports, parts.run.path, pairs)
        candidates, reports = generation.generate(parts)
        return GenerationResult(candidates, reports, parts.run.path)

    @has_dry_run
    def filter(
        self, *, kept: Annotated[str | Path | None, Option("--kept", metavar="FILE")] = None
    ) -> FilterResult:
        """Judge the edited pairs and keep the valid ones, or those of a list.

        What is not generated yet is generated first.

        Parameters
        ----------
        kept : str or Path, optional
            Make exactly the pairs of this kept.csv; nobody judges.

        Raises
        ------
        DataError, PrerequisiteError
            As `generate`.
        """
        from flipbench.api.stages import filtering
        from flipbench.api.stages.results import FilterResult
        from flipbench.core.errors import ConfigError
        from flipbench.filters.funnel import read_doubtful
        from flipbench.filters.pipeline import FOLDER

        parts = self._begin()
        if current_call().is_dry_run:
            if kept:
                raise ConfigError(
                    "--kept judges nothing, so --dry-run has nothing to count; drop one of the two"
                )
            raise Plan(filtering.plan_pairs(parts))
        if kept is not None:
            pairs, reports = filtering.rebuild_kept(parts, Path(kept))
        else:
            pairs, reports = filtering.make_pairs(parts)
        is_judged = kept is None and not parts.has_pairs
        doubtful = read_doubtful(parts.run.path / FOLDER / "reasons.csv") if is_judged else ()
        costs = filtering.spent_on_verdicts(parts.run)
        return FilterResult(pairs, reports, parts.run.path, len(doubtful), costs)

    @has_dry_run
    def contaminate(self) -> ContaminationResult:
        """Train checkpoints of known contamination, one for each epoch, each with its card.

        Nothing needs to be generated or filtered before. One model on several GPUs: accelerate
        launch --config_file configs/accelerate/fsdp.yaml -m flipbench.cli contaminate CONFIG.

        Raises
        ------
        ConfigError
            If no training is configured.
        DataError
            If no item can be used, or ``contaminate.items`` is kept and the run has no pairs.
        PrerequisiteError
            If the disk is too small or an optional package is missing.
        """
        from flipbench.api.stages import contamination
        from flipbench.api.stages.results import ContaminationResult
        from flipbench.core.errors import ConfigError

        parts = self._begin(is_training=True)
        if not (parts.config.models and parts.config.contaminate.strategies):
            raise ConfigError(
                "nothing to train: contaminate.strategies or models is empty; configs/contaminate/"
                " has examples"
            )
        if current_call().is_dry_run:
            raise Plan(contamination.plan_contamination(parts))
        plans = contamination.contaminate(parts)
        failures = contamination.training_failures(parts.run, plans)
        return ContaminationResult(plans, parts.run.path, failures)

    @has_dry_run
    def evaluate(self) -> EvaluationResult:
        """Ask every model what the detectors need, score the answers, and write the report.

        Checkpoints that the configuration plans and the run lacks are trained first. After a `run`
        with a limit, give the same one: it is part of what the checkpoints are trained on.

        Raises
        ------
        ConfigError, DataError, PrerequisiteError
            If there is nobody to ask, the run has no pairs, or training cannot begin.
        """
        from flipbench.api.stages import contamination, evaluation
        from flipbench.core.errors import ConfigError

        parts = self._begin()
        if not parts.config.models and parts.benchmark_folder.exists():
            raise ConfigError("nobody to ask: name a model, e.g. models.mine.path=FOLDER")
        pairs = parts.kept_pairs
        if current_call().is_dry_run:
            raise Plan(evaluation.count_work(parts, pairs))
        plans = contamination.contaminate(parts, replace(parts.workers, share=None))
        return evaluation.evaluate(parts, pairs, plans)

    def report(self) -> EvaluationResult:
        """Score the stored answers again and write the report; nobody is trained or asked.

        Raises
        ------
        DataError
            If the run has no pairs.
        """
        from flipbench.api.stages import contamination, evaluation

        parts = self._begin()
        pairs = parts.kept_pairs
        return evaluation.evaluate(parts, pairs, contamination.trained_plans(parts), asks=False)

    @has_dry_run
    def run(self) -> EvaluationResult:
        """Do all stages: generate, filter, contaminate, evaluate, report.

        Raises
        ------
        ConfigError, DataError, PrerequisiteError
            As the stages; if no pair is kept, that is a DataError before anything is trained.
        """
        from flipbench.api.stages import loop

        parts = self._begin()
        if current_call().is_dry_run:
            raise Plan(loop.plan_all(parts))
        return loop.run_all(parts)

    def read_benchmark(self) -> ImportResult:
        """Read the configured benchmark and name every row that is odd or cannot be used.

        The full list is written to import/problems.csv in the run directory.
        """
        from flipbench.api.stages.results import ImportResult
        from flipbench.benchmarks import PairsSpec, load_pairs

        parts = self._begin()
        spec, path = parts.config.benchmark, parts.run.path / "import" / "problems.csv"
        if isinstance(spec, PairsSpec):
            pairs = load_pairs(spec, parts.run.images)
            problems = [problem for side in pairs.sides for problem in side.problems]
            result = ImportResult(pairs.summary(), [], problems, path, pairs.unpaired)
        else:
            benchmark = parts.benchmark
            result = ImportResult(benchmark.summary(), benchmark.items, benchmark.problems, path)
        result.write()
        return result

    @has_dry_run
    def audit(self) -> AuditResult:
        """Check a benchmark's hygiene, its pictures against a corpus, and models beside others.

        With --workers, the corpus is embedded by several processes, one for each GPU.
        """
        from flipbench.api.stages import audit, audit_corpus
        from flipbench.api.stages.results import AuditResult

        parts = self._begin()
        if current_call().is_dry_run:
            raise Plan(audit.plan_audit(parts))
        if parts.workers.share is not None:
            if corpus := parts.config.audit.corpus:
                audit_corpus.embed_share(parts, corpus)
            return AuditResult("", None, [], parts.run.path)
        return audit.audit_benchmark(parts)

    def _hints(self) -> ReasoningResult:
        from flipbench.api.stages import reasoning

        parts = self._begin()
        if current_call().is_dry_run:
            raise Plan(reasoning.plan_hints(parts))
        return reasoning.hint_ablation(parts)

    def export(
        self,
        out: str | Path,
        *,
        format: str = "jsonl",
        share_anyway: str = "",
        licence: str = "",
        leaderboard: bool = False,
    ) -> ExportResult:
        """Write the paired benchmark of a run, original and perturbed, for other tools.

        --format huggingface is for publishing: a data card, Croissant metadata, and a licence,
        which must be known. A source whose licence forbids derivatives gives a recipe without
        pictures, from which `flipbench rebuild` draws them again; --share-anyway NAME overrides
        that. --format llava and llamafactory write what `flipbench contaminate` would train on.

        Parameters
        ----------
        out : str or Path
            Folder to write.
        format : str
            For pairs jsonl, parquet, vlmeval, lmms-eval, inspect, huggingface or recipe; for the
            training data of the configured grid llava or llamafactory.
        share_anyway : str
            The name of a benchmark whose licence forbids edited pictures.
        licence : str
            Of the export, where its items state none or several (huggingface).
        leaderboard : bool
            Also eval.yaml, for the Hub (huggingface).

        Raises
        ------
        ConfigError, DataError, LicenceError
            If there is no such format, the run has no pairs, or sharing them is not allowed.
        """
        from flipbench.api.stages.results import ExportResult
        from flipbench.contaminate.backends.export import EXPORT_FORMATS
        from flipbench.core.errors import ConfigError, LicenceError
        from flipbench.core.files import remove_partials
        from flipbench.export import FORMATS, forbids_derivatives, write_huggingface, write_recipe

        folder = Path(out)
        if format in EXPORT_FORMATS:
            from flipbench.api.stages.contamination import export_training  # imports torch

            lines, n_refused = export_training(self._begin(), format, folder)
            return ExportResult(format, (), "\n".join(lines), n_failed=n_refused)
        if format not in (*FORMATS, "recipe"):
            names = ", ".join((*FORMATS, "recipe", *EXPORT_FORMATS))
            raise ConfigError(f"--format {format}: no such format; choose one of {names}")
        parts, benchmark = self.parts, self.parts.kept_pairs
        if (licence or leaderboard) and format != "huggingface":
            raise ConfigError("--licence and --leaderboard are for --format huggingface")
        if folder.exists() and not folder.is_dir():
            raise ConfigError(f"{folder}: a file; name a folder to write into")
        if share_anyway and share_anyway != benchmark.name:
            raise LicenceError(
                f"--share-anyway {share_anyway}: this benchmark is {benchmark.name!r}"
            )
        notes = []
        is_edited = benchmark.exchangeable is not False
        barred = sorted({i.licence for i in benchmark.originals if forbids_derivatives(i.licence)})
        if barred and format != "recipe" and not share_anyway and is_edited:
            notes.append(
                f"{benchmark.name} is {', '.join(barred)}, which forbids to share edited pictures:"
                f" writing a recipe instead (--share-anyway {benchmark.name!r} overrides)"
            )
            format = "recipe"
        if format == "recipe":
            files = write_recipe(benchmark, parts.run, folder)
        elif format == "lmms-eval":
            from flipbench.export.lmms_eval import write_lmms_eval
            from flipbench.models.vlm.checkpoints import resolve_path

            paths = {name: model.path for name, model in parts.config.models.items() if model.path}
            checkpoints = {name: Path(resolve_path(path)) for name, path in paths.items()}
            files = write_lmms_eval(benchmark, folder, checkpoints)
        elif format == "huggingface":
            files = write_huggingface(benchmark, folder, licence, leaderboard=leaderboard)
            if not any(path.name == "croissant.json" for path in files):
                notes.append("croissant.json is left out: pip install 'flipbench[publish]' for it")
        else:
            files = FORMATS[format](benchmark, folder)
        for written_folder in {path.parent for path in files}:
            remove_partials(written_folder)  # it may be published
        return ExportResult(format, files, f"{len(benchmark.pairs)} pairs:", notes)

    def show(
        self, out: str | Path, *, pairs: Annotated[int, Option(min=1)] = 6, edits: bool = False
    ) -> PictureResult:
        """Draw some pairs of a run, original beside perturbed, into one picture.

        These are the kept pairs; before flipbench filter has run, all edited ones.

        Parameters
        ----------
        out : str or Path
            Picture to write, e.g. pairs.png.
        pairs : int
            How many pairs or edits.
        edits : bool
            Edits, kept or not, with control, caption and verdicts.
        """
        from flipbench.api.stages.results import PictureResult
        from flipbench.core.paired import UNJUDGED, PairedBenchmark
        from flipbench.core.records import Verdict
        from flipbench.filters.pipeline import edited_in, filtered_in
        from flipbench.reporting.contact_sheet import contact_sheet, edit_sheet

        parts, run, path, left_out = self.parts, self.parts.run, Path(out), ""
        if edits:
            shown_edits = filtered_in(run) or edited_in(run)
            edit_sheet(shown_edits, run.read(Verdict), run.images, path, pairs)
        elif not parts.benchmark_folder.exists() and (candidates := edited_in(run)):
            redrawn = [candidate.pair(UNJUDGED) for candidate in candidates if candidate.is_redrawn]
            if n_same := len(candidates) - len(redrawn):
                left_out = (
                    f"{n_same} of {len(candidates)} edited images, the originals byte for byte"
                )
            contact_sheet(PairedBenchmark("", tuple(redrawn), run.images, {}), path, pairs)
        else:
            contact_sheet(parts.pairs, path, pairs)
        return PictureResult(path, left_out)


def _loaded(config: ConfigLike, overrides: Overrides, trust: bool) -> Config:
    """Return a checked configuration.

    Raises
    ------
    ConfigError
        If it is wrong, or that of a population study.
    """
    from flipbench.config.experiment import Config, load_config

    if isinstance(overrides, Mapping):
        changes = [f"{key}={json.dumps(value, default=str)}" for key, value in overrides.items()]
    else:
        changes = list(overrides)
    if isinstance(config, Config):
        return load_config(config.model_dump(mode="json"), changes) if changes else config
    if not isinstance(config, Mapping):
        _refuse_study(Path(config), changes)
    return load_config(config, changes, trust=trust)


def _refuse_study(path: Path, overrides: Sequence[str]) -> None:
    import shlex

    from flipbench.config.loading import find_config, read_mapping
    from flipbench.core.errors import ConfigError

    if "phases" in read_mapping(find_config(path)):
        study = shlex.join(["python", "-m", "studies.population", str(path), *overrides])
        raise ConfigError(f"{path}: a population study; in a checkout, run `{study}`")


@has_dry_run
def demo(
    out: Annotated[str | Path | None, Option("--out")] = None,
    *,
    small: bool = False,
    diffusion: bool = False,
    progress: Progress = True,
) -> EvaluationResult:
    """Run all stages with many detectors on the embedded world, and write a page about it.

    Parameters
    ----------
    out : str or Path, optional
        Run directory: runs/demo, runs/demo-small or runs/demo-diffusion.
    small : bool
        Three models and seven detectors, in two minutes.
    diffusion : bool
        A tiny Flux with a ControlNet draws the pictures.
    progress : bool
        Whether to show progress bars.

    Examples
    --------
    >>> import flipbench as fb
    >>> fb.demo(small=True).page  # doctest: +SKIP
    PosixPath('runs/demo-small/report/index.html')
    """
    from flipbench.shapes.demos import demo_of

    configured = demo_of(small=small, diffusion=diffusion)
    folder = Path(out or configured.folder)
    from flipbench.api.stages import loop

    if current_call().is_dry_run:
        raise Plan(loop.describe_demo(configured, folder))
    return loop.run_demo(configured, folder, progress=progress)

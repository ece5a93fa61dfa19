"""What leaves a run: its pairs and training data for other tools, pictures, and recipes."""

from __future__ import annotations

from pathlib import Path

from flipbench.api.stages.assembly import Assembly
from flipbench.api.stages.filtering import judge, rebuild_kept
from flipbench.api.stages.generation import generate
from flipbench.api.stages.results import ExportResult, PictureResult
from flipbench.contaminate.backends.export import EXPORT_FORMATS
from flipbench.core.errors import ConfigError, LicenceError
from flipbench.core.files import remove_partials
from flipbench.core.paired import UNJUDGED, PairedBenchmark
from flipbench.core.records import Verdict
from flipbench.core.stage import StageReport
from flipbench.export import FORMATS, forbids_derivatives, write_huggingface, write_recipe
from flipbench.export.recipe import compare_with_recipe, copy_recipe
from flipbench.filters.pipeline import edited_in, filtered_in
from flipbench.reporting.contact_sheet import contact_sheet, edit_sheet


def export(
    assembly: Assembly,
    out: Path,
    *,
    format: str,
    share_anyway: str,
    licence: str,
    leaderboard: bool,
) -> ExportResult:
    """Write pairs or training data; see `flipbench.Experiment.export`."""
    form, formats = format, (*FORMATS, "recipe", *EXPORT_FORMATS)
    if form in EXPORT_FORMATS:
        from flipbench.api.stages.contamination import export_training  # imports torch

        lines, n_refused = export_training(assembly, form, out)
        return ExportResult(form, (), "\n".join(lines), n_failed=n_refused)
    if form not in formats:
        names = ", ".join(formats)
        raise ConfigError(f"--format {form}: no such format; choose one of {names}")
    benchmark = assembly.kept_pairs
    if (licence or leaderboard) and form != "huggingface":
        raise ConfigError("--licence and --leaderboard are for --format huggingface")
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out}: a file; name a folder to write into")
    if share_anyway and share_anyway != benchmark.name:
        raise LicenceError(f"--share-anyway {share_anyway}: this benchmark is {benchmark.name!r}")
    notes = []
    is_edited = benchmark.exchangeable is not False
    barred = sorted({i.licence for i in benchmark.originals if forbids_derivatives(i.licence)})
    if barred and form != "recipe" and not share_anyway and is_edited:
        notes.append(
            f"{benchmark.name} is {', '.join(barred)}, which forbids to share edited pictures:"
            f" writing a recipe instead (--share-anyway {benchmark.name!r} overrides)"
        )
        form = "recipe"
    if form == "recipe":
        files = write_recipe(benchmark, assembly.run, out)
    elif form == "lmms-eval":
        from flipbench.export.lmms_eval import write_lmms_eval
        from flipbench.models.vlm.checkpoints import resolve_path

        paths = {name: model.path for name, model in assembly.config.models.items() if model.path}
        folders = {name: Path(resolve_path(path)) for name, path in paths.items()}
        files = write_lmms_eval(benchmark, out, folders)
    elif form == "huggingface":
        files = write_huggingface(benchmark, out, licence, leaderboard=leaderboard)
        if not any(path.name == "croissant.json" for path in files):
            notes.append("croissant.json is left out: pip install 'flipbench[publish]' for it")
    else:
        files = FORMATS[form](benchmark, out)
    for folder in {path.parent for path in files}:
        remove_partials(folder)  # it may be published
    return ExportResult(form, files, f"{len(benchmark.pairs)} pairs:", notes)


def draw_pairs(assembly: Assembly, out: Path, n: int, *, edits: bool) -> PictureResult:
    """Draw some pairs or edits of a run into one picture."""
    run, left_out = assembly.run, ""
    if edits:
        edit_sheet(filtered_in(run) or edited_in(run), run.read(Verdict), run.images, out, n)
    elif not assembly.benchmark_folder.exists() and (candidates := edited_in(run)):
        redrawn = [candidate.pair(UNJUDGED) for candidate in candidates if candidate.is_redrawn]
        if n_same := len(candidates) - len(redrawn):
            left_out = f"{n_same} of {len(candidates)} edited images, the originals byte for byte"
        contact_sheet(PairedBenchmark("", tuple(redrawn), run.images, {}), out, n)
    else:
        contact_sheet(assembly.pairs, out, n)
    return PictureResult(out, left_out)


def rebuild(
    assembly: Assembly, recipe: Path, kept: Path | None
) -> tuple[PairedBenchmark, str, list[StageReport]]:
    """Draw a recipe's pictures again; return the pairs, and how they compare with the recipe's."""
    if assembly.run.path.resolve() != recipe.resolve():
        copy_recipe(recipe, assembly.run)
        assembly.store_config()
    if kept:
        benchmark, reports = rebuild_kept(assembly, kept)
        return benchmark, "", reports
    candidates, generated = generate(assembly)
    comparison = compare_with_recipe(recipe, [c.edit for c in candidates if c.edit])
    benchmark, judge_reports = judge(assembly, candidates)
    return benchmark, str(comparison), [*generated, *judge_reports]

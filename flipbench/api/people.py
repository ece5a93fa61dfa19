"""People's verdicts: the review page, files in and out, and how far raters agree."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from flipbench.api.experiment import Experiment
from flipbench.api.options import Option, Trust
from flipbench.api.stages.display import Result
from flipbench.core.errors import ConfigError


@dataclass(frozen=True, repr=False)
class ReviewResult(Result):
    """What came of a review.

    Attributes
    ----------
    run : Path
        The run directory.
    what : {"page", "export", "import", "agreement", "nothing"}
        What was done; "nothing" if no pair is doubtful.
    text : str
        A summary; for "agreement" the tables in Markdown.
    file : Path or None
        What was written.
    problems : sequence of str
        Rows that were left out of an import.
    experiment : Experiment or None
        Whose raters were compared.
    """

    run: Path
    what: Literal["page", "export", "import", "agreement", "nothing"]
    text: str = ""
    file: Path | None = None
    problems: Sequence[str] = ()
    experiment: Experiment | None = None

    @property
    def n_failed(self) -> int:
        """How many rows were left out."""
        return len(self.problems)

    def __str__(self) -> str:
        return self.text


def review(
    run: str | Path,
    *,
    flagged: bool = False,
    blind: bool = False,
    doubtful: bool = False,
    export: str | Path | None = None,
    import_: Annotated[str | Path | None, Option("--import")] = None,
    agreement: bool = False,
    reference: str = "people",
    host: str = "127.0.0.1",
    port: Annotated[int, Option(min=0)] = 8765,
    trust: Trust = False,
) -> ReviewResult:
    """Serve the page on which people judge edited pairs; every verdict is on disk at once.

    Or, with --flagged, the page on which they label the corpus pictures that an audit has flagged,
    each beside a benchmark picture. --export and --import are for verdicts in a table; --agreement
    says how far the raters agree. A token for other addresses may be given in
    FLIPBENCH_REVIEW_TOKEN; else one is made and printed once.

    Parameters
    ----------
    run : str or Path
        A run directory with edits, or its YAML.
    flagged : bool
        The flagged pictures of an audit instead of edited pairs.
    blind : bool
        Answer first, then see the new answer.
    doubtful : bool
        Only what 'flipbench filter' left undecided.
    export : str or Path, optional
        Write verdicts to a CSV, or a Label Studio .json, and end.
    import_ : str or Path, optional
        Take verdicts from such a file, and end.
    agreement : bool
        Compare the raters (kappa, precision, recall), write tables, and end.
    reference : str
        For --agreement: a rater's name, people, or policy.
    host : str
        Another address than loopback needs a token.
    port : int
        0 for any free port.
    trust : bool
        As for `Experiment`.

    Raises
    ------
    ConfigError, DataError, PrerequisiteError
        If options exclude each other, there is nothing to review, or a package is missing.

    Examples
    --------
    >>> import flipbench as fb
    >>> print(fb.review("runs/mine", agreement=True))  # doctest: +SKIP
    """
    if sum(map(bool, (agreement, export, import_))) > 1:
        raise ConfigError("give only one of --agreement, --export and --import")
    if import_ and doubtful:
        raise ConfigError("--import is for a file's verdicts alone: not with --export, --doubtful")
    if blind and (import_ or export):
        raise ConfigError("--blind is for the page: whoever opens a file sees the new answer")
    if flagged and (blind or doubtful):
        raise ConfigError("--flagged shows a corpus' pictures: not with --blind, --doubtful")
    folder = config = Path(run)
    if config.suffix in (".yaml", ".yml"):
        from flipbench.config.experiment import load_config

        folder = load_config(config, trust=trust).run
    else:
        config = folder / "config.yaml"
    if agreement:
        return _agreement(folder, config, reference, flagged, trust)
    from flipbench.filters.funnel import read_doubtful
    from flipbench.filters.pipeline import FOLDER
    from flipbench.filters.review.serve import export_verdicts, import_verdicts, serve_review
    from flipbench.filters.review.tasks import ADJUDICATION, REVIEW

    task = ADJUDICATION if flagged else REVIEW
    if import_:
        report = import_verdicts(folder, Path(import_), task)
        text = f"{report}, in {folder}"
        return ReviewResult(folder, "import", text, problems=report.problems)
    edit_ids = read_doubtful(folder / FOLDER / "reasons.csv") if doubtful else None
    if doubtful and not edit_ids:
        return ReviewResult(folder, "nothing", "no pair is doubtful: nothing to review")
    if export:
        file = Path(export)
        n_pairs = export_verdicts(folder, file, edit_ids, task)
        text = f"{n_pairs:,} pairs with their {'labels' if flagged else 'verdicts'} in {file}"
        if file.suffix == ".json":
            xml = file.with_suffix(".xml")
            text += f", their labelling configuration for Label Studio in {xml}"
        return ReviewResult(folder, "export", text, file)
    token = os.environ.get("FLIPBENCH_REVIEW_TOKEN") or None
    serve_review(
        folder, host=host, port=port, token=token, blind=blind, edit_ids=edit_ids, task=task
    )
    return ReviewResult(folder, "page")


def _agreement(run: Path, config: Path, reference: str, flagged: bool, trust: bool) -> ReviewResult:
    overrides = [f"run={json.dumps(str(run))}"]
    if flagged:
        from flipbench.config.experiment import load_config
        from flipbench.core.run import Run
        from flipbench.filters.agreement.adjudication import adjudication_of, write_adjudication

        seed = load_config(config, overrides, trust=trust).seed if config.exists() else 0
        outcome = adjudication_of(Run(run), seed=seed)
        page = write_adjudication(outcome, run)
        return ReviewResult(run, "agreement", f"{page.read_text()}\n{outcome}", page)
    from flipbench.api.stages.raters import compare_raters_of

    if not config.exists():
        raise ConfigError(f"{run}: nothing was filtered yet; run 'flipbench filter'")
    experiment = Experiment(config, overrides, trust=trust)
    text, page = compare_raters_of(experiment.parts, reference)
    return ReviewResult(run, "agreement", text, page, experiment=experiment)

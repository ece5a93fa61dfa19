"""Was this model trained on this benchmark? `detect`, and what it found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from flipbench.api import display

if TYPE_CHECKING:
    import pandas as pd

    from flipbench.api.stages.detection import Detection
    from flipbench.config.local_models import ImagePadding, Quantization
    from flipbench.core.paired import PairedBenchmark
    from flipbench.core.records import Score
    from flipbench.core.stage import StageReport
    from flipbench.evaluate.diagnosis.diagnosis import Diagnosis
    from flipbench.evaluate.protocol.rules import Verdict
    from flipbench.evaluate.verdict.verdict_page import VerdictPage
    from flipbench.models.protocols import VLM


def load_pairs(path: str | Path, limit: int | None = None) -> PairedBenchmark:
    """Read a paired benchmark.

    Parameters
    ----------
    path : str or Path
        Its folder, a run directory that has one, or the configuration of such a run.
    limit : int, optional
        Take the first pairs only.

    Returns
    -------
    PairedBenchmark
        Its ``pairs``, a tuple of length n_pairs, hold each item's two versions.

    Raises
    ------
    DataError
        If there is none, or it has no pairs.

    Examples
    --------
    >>> import flipbench as fb
    >>> fb.load_pairs("runs/mine")  # doctest: +SKIP
    """
    from flipbench.api.stages.detection import read_paired

    return read_paired(Path(path), limit)


@dataclass(frozen=True, repr=False)
class DetectionResult:
    """The verdict on one model, and what it rests on; a notebook shows it as tables.

    Attributes
    ----------
    content : VerdictPage
        Everything that the verdict page is made of.
    reports : sequence of StageReport
        How many questions were asked, were answered before, and failed.
    run : Path
        The run directory, which holds the answers.
    """

    content: VerdictPage
    reports: Sequence[StageReport]
    run: Path

    @property
    def verdict(self) -> Verdict:
        """One of "contaminated", "not_detected", "inconclusive" and "not_applicable".

        "not_detected" does not mean clean.
        """
        return self.content.finding.verdict

    @property
    def sentence(self) -> str:
        """The verdict in a sentence, with the numbers it rests on."""
        return self.content.finding.sentence

    @property
    def qualifiers(self) -> tuple[str, ...]:
        """What the verdict assumes, and what speaks for or against it, in sentences."""
        return self.content.finding.qualifiers

    @property
    def notes(self) -> Sequence[str]:
        """Where each model was asked, and what else the page says beside the verdict."""
        return self.content.notes

    @property
    def gap(self) -> Score:
        """The score that decides, unless the verdict is withheld (`qualifiers` say why).

        Without references the perturbation gap (perturbed - original accuracy, a fraction) under
        the McNemar test; with references its difference from a clean model's gap.
        """
        return self.content.finding.leading

    @property
    def scores(self) -> Sequence[Score]:
        """The model's scores by all detectors and rules."""
        return self.content.finding.scores

    @property
    def not_run(self) -> Mapping[str, str]:
        """Detectors that were left out, and why."""
        return self.content.finding.not_run

    @property
    def diagnosis(self) -> Diagnosis | None:
        """Why items fell; mostly "not asked" unless `detect` was given ``diagnose``."""
        return self.content.finding.diagnosis

    @cached_property
    def page(self) -> Path:
        """The verdict page in the run directory, written on first use."""
        return self.save(self.run / "report")

    def save(self, folder: str | Path) -> Path:
        """Write the page, its Markdown and JSON, and all scores; return the path of the page.

        Raises
        ------
        DataError
            If the folder cannot be written, or an image of the benchmark is gone.
        """
        from flipbench.evaluate.verdict.verdict_page import write_verdict

        return write_verdict(self.content, Path(folder))

    def to_frame(self, *, sign: bool = False) -> pd.DataFrame:
        """Return one row for each detector and rule; see `flipbench.api.display.scores_frame`."""
        return display.scores_frame(self.scores, [self.content.finding.decision], sign=sign)

    def __str__(self) -> str:
        return self.sentence

    def __repr__(self) -> str:
        return f"<DetectionResult {self.verdict}: {self.sentence}>"

    def _repr_html_(self) -> str:
        from flipbench.evaluate.verdict.verdict_tables import (
            gap_table,
            other_detectors_table,
            readings_table,
        )

        finding = self.content.finding
        tables = [
            gap_table(finding),
            readings_table(finding),
            other_detectors_table(finding),
        ]
        return display.html(self.sentence, [table for table in tables if table])


def detect(
    model: str | Path | VLM,
    pairs: PairedBenchmark | str | Path,
    references: str | Path | VLM | Sequence[str | Path | VLM] = (),
    detectors: str | Sequence[str] = (),
    run: str | Path | None = None,
    ask: Literal["choose", "generate"] = "choose",
    *,
    name: str = "",
    judged_by: str = "",
    limit: int | None = None,
    batch_size: int = 64,
    dtype: str = "float32",
    device: str = "auto",
    quantization: Quantization | None = None,
    image_padding: ImagePadding = "auto",
    progress: bool = True,
    diagnose: bool = False,
    sequential: bool = False,
) -> DetectionResult:
    """Ask a model about a paired benchmark, and return whether it was trained on the originals.

    The verdict is that of the perturbation gap: with references, of its difference from a clean
    model's. The other detectors are shown beside it. The same call again asks nothing twice.

    Parameters
    ----------
    model : str, Path or VLM
        A checkpoint's folder, a hub id, ``shapes:llava``, the address of an OpenAI-compatible
        server, or any object that keeps the protocol `flipbench.models.protocols.VLM`.
    pairs : PairedBenchmark, str or Path
        The benchmark, or what `load_pairs` reads. A configuration also says who rewords texts and
        judges replies for the detectors.
    references : str, Path, VLM or sequence of them
        Clean models to compare with. On a server, one that is no folder is a name there.
    detectors : str or sequence of str
        Names (see `flipbench.api.detectors`) or import paths; by default all but those that are
        costly or about image reliance, which ``not_run`` names.
    run : str or Path, optional
        The run directory; by default ``runs/detect-MODEL-BENCHMARK``, as on the command line.
    ask : {"choose", "generate"}
        Compare the likelihoods of the option letters, or let the model write and read the reply.
    name : str
        Which model of a server is asked; for a server only.
    judged_by : str
        Who judged that the perturbed images show their new answers, if `flipbench.filter` does not
        know. A gap on pairs that nobody judged has no verdict without a reference.
    limit : int, optional
        Take the first pairs only.
    batch_size : int
        Questions asked at once.
    dtype, device, quantization : str
        How weights are loaded: "float32", "bfloat16" or "float16"; "cpu", "cuda" or "auto"; "4bit".
    image_padding : {"auto", "square", "none"}
        Whether pictures are padded to a square; auto: for LLaVA-1.5 only, as its makers do.
    progress : bool
        Whether to show progress bars.
    diagnose : bool
        Whether to ask further questions about the items that fell, up to 18 each, and say why they
        did; see `flipbench.evaluate.diagnosis`.
    sequential : bool
        Whether to ask ever more pairs and stop once the evidence suffices; valid at every look.
        With one reference, or pairs that are exchangeable by construction.

    Raises
    ------
    ConfigError
        If a detector is unknown, a model cannot be asked in this way, a reference is the model
        itself, or ``run`` is one in which pairs were made.
    DataError, PrerequisiteError
        If pairs or weights cannot be read, or a server or an optional package is missing.

    Examples
    --------
    >>> import flipbench as fb
    >>> result = fb.detect("my/checkpoint", "runs/mine", ["a/clean-model"])  # doctest: +SKIP
    >>> result.verdict, result.gap.statistic  # doctest: +SKIP
    ('contaminated', -0.1125)
    """
    from flipbench.api.stages.detection import DetectionSettings, plan

    settings = DetectionSettings(
        model,
        pairs,
        references,
        detectors,
        run,
        ask,
        name=name,
        judged_by=judged_by,
        limit=limit,
        batch_size=batch_size,
        dtype=dtype,
        device=device,
        quantization=quantization,
        image_padding=image_padding,
        progress=progress,
        command="flipbench.detect in Python",
        diagnose=diagnose,
        sequential=sequential,
    )
    return examined(plan(settings))


def examined(planned: Detection) -> DetectionResult:
    """Ask what was planned, and return what was found."""
    from flipbench.api.stages.detection import examine

    content, reports = examine(planned)
    return DetectionResult(content, reports, planned.run.path)

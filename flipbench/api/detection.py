"""Was this model trained on this benchmark? `detect`, and what it found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from flipbench.api.calls import Plan, current_call, has_dry_run
from flipbench.api.options import Limit, Option, Progress, Trust
from flipbench.api.stages import display

if TYPE_CHECKING:
    import pandas as pd

    from flipbench.core.paired import PairedBenchmark
    from flipbench.core.records import Score
    from flipbench.core.stage import StageReport
    from flipbench.evaluate.diagnosis.diagnosis import Diagnosis
    from flipbench.evaluate.protocol.rules import Verdict
    from flipbench.evaluate.verdict.verdict_page import VerdictPage
    from flipbench.models.protocols import VLM

    Model = str | Path | VLM


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
        It has a length, ``benchmark[0]`` is a `Pair`, and ``to_frame()`` lists all of them.

    Raises
    ------
    DataError
        If there is none, or it has no pairs.

    Examples
    --------
    >>> import flipbench as fb
    >>> fb.load_pairs("runs/mine")  # doctest: +SKIP
    """
    from flipbench.api.stages.detection import read_pairs

    return read_pairs(path, limit)[0]


@dataclass(frozen=True, repr=False)
class DetectionResult(display.Result):
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


@has_dry_run
def detect(
    model: Annotated[Model, Option("--model")],
    pairs: Annotated[PairedBenchmark | str | Path, Option("--benchmark")],
    references: Annotated[Model | Sequence[Model], Option("--reference")] = (),
    detectors: Annotated[str | Sequence[str], Option("--detectors", is_single=True)] = (),
    run: Annotated[str | Path | None, Option("--out")] = None,
    ask: Annotated[Literal["choose", "generate"], Option("--ask")] = "choose",
    *,
    base_url: str = "",
    model_args: str = "",
    judged_by: str = "",
    limit: Limit = None,
    batch_size: Annotated[int, Option(min=1)] = 64,
    dtype: Literal["float32", "bfloat16", "float16"] = "float32",
    device: str = "auto",
    quantization: Literal["4bit"] | None = None,
    image_padding: Literal["auto", "square", "none"] = "auto",
    diagnose: bool = False,
    sequential: bool = False,
    progress: Progress = True,
    trust: Trust = False,
) -> DetectionResult:
    """Say whether one model was trained on a benchmark: one verdict, one page.

    The verdict is that of the perturbation gap, compared with that of a clean model if one is given
    as a reference; every other detector is shown beside it. The same call again asks nothing twice.
    With the address of a server, the model is a name there, and so is a reference that is neither a
    folder nor shipped with flipbench.

    Parameters
    ----------
    model : str, Path or VLM
        A checkpoint folder, a hub id (hf:ID too), shapes:llava, a server's name; or hf, vllm,
        openai with --model-args.

        In Python also any object that keeps the protocol `flipbench.models.protocols.VLM`.
    pairs : PairedBenchmark, str or Path
        A paired benchmark, a run directory with one, or its YAML.

        A configuration also says who rewords texts and judges replies for the detectors.
    references : str, Path, VLM or sequence of them
        A clean model to compare with; may be repeated.
    detectors : str or sequence of str
        Names or import paths, separated by commas; by default all but those that are costly or
        about image reliance.

        See `flipbench.detectors`; ``not_run`` of the result names those that were left out.
    run : str or Path, optional
        Run directory; by default runs/detect-MODEL-BENCHMARK.
    ask : {"choose", "generate"}
        Compare the letters' likelihoods, or let it write and read the reply.
    base_url : str
        An OpenAI-compatible server that has the model (vLLM, SGLang, …).
    model_args : str
        As in other kits, e.g. base_url=http://host:8000/v1,model=NAME.
    judged_by : str
        Who judged that the perturbed images show their new answers.

        Not needed if `Experiment.filter` has judged them. A gap on pairs that nobody judged has no
        verdict without a reference.
    limit : int, optional
        Take the first pairs only.
    batch_size : int
        Questions asked at once.
    dtype : str
        Precision of the weights.
    device : str
        The device: cpu or cuda; auto takes a GPU.
    quantization : {"4bit"}, optional
        Keep the language model in 4 bits.
    image_padding : {"auto", "square", "none"}
        Pad pictures to a square; auto: for LLaVA-1.5 only.
    diagnose : bool
        Ask about the items that fell, and say why they did.

        Up to 18 questions each; see `flipbench.evaluate.diagnosis`.
    sequential : bool
        Ask ever more pairs, and stop once they suffice.

        Valid at every look; with one reference, or pairs that are exchangeable by construction.
    progress, trust : bool
        As for `Experiment`.

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
    from flipbench.api.stages import detection as stage
    from flipbench.api.stages.assembly import quiet_libraries
    from flipbench.core.stage import StageOptions

    call = current_call()
    quiet_libraries()
    benchmark, config = stage.read_pairs(pairs, limit, trust=trust)
    loading = {
        "dtype": dtype,
        "device": device,
        "quantization": quantization,
        "image_padding": image_padding,
        "batch_size": batch_size,
    }
    subject, clean, batch_size = stage.models_of(model, references, base_url, model_args, loading)
    detection = stage.prepare_detection(
        benchmark.as_judged_by(judged_by),
        config.model_copy(update={"diagnose": config.diagnose or diagnose}),
        subject,
        clean,
        detectors.split(",") if isinstance(detectors, str) else detectors,
        run,
        ask,
        StageOptions(batch_size=batch_size, progress=progress),
        sequential=sequential,
        is_dry_run=call.is_dry_run,
        command=call.command,
    )
    if call.is_dry_run:
        raise Plan(stage.count_work(detection))
    content, reports = stage.examine(detection)
    return DetectionResult(content, reports, detection.run.path)

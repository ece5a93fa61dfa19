"""The demos: their configurations, and what each took when it was measured."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

_HERE = Path(__file__).parent
_NOTES = (
    "Everything here is real but small: VLMs of about two million weights each, trained on"
    " other scenes of the same world, contaminated with trl and peft, and run with transformers.",
    "Learning rates and copies were chosen by eye from earlier results on the same items, so that"
    " the gap would show. The tables say which detectors notice such training, not how large an"
    " effect other training would have.",
    "The controls were fine-tuned in the same way as the contaminated models, on as many questions"
    " about other scenes: a detector that flags one raises a false alarm. They descend from one"
    " or two clean models and one seed, so the page shows how the method works and what it costs;"
    " it does not measure how often a detector errs on models in general.",
)
_COIN_TOSS = (
    "The original of each pair is chosen by a coin toss from two scenes that differ only in the"
    " answer, so a clean model's gap has expectation zero. Edits of real photographs carry no such"
    " guarantee."
)
_DRAWN = (
    "The originals are rendered; the perturbed pictures are drawn by a tiny Flux with a ControlNet"
    " from the originals' edges and a caption. The two kinds of pictures differ, so a clean model's"
    " gap need not have expectation zero: compare its gap with those of the rules that take a clean"
    " model for reference, and with old-answer attraction.",
    "An oracle that reads the pixels keeps a pair if every cell can be read and the new answer is"
    " true; what it drops is in filter/reasons.csv of the run.",
)


@dataclass(frozen=True)
class Demo:
    """A demo.

    Attributes
    ----------
    file : Path
        Its configuration; ``overrides`` change it.
    options : tuple of str
        Of ``flipbench demo``.
    folder : str
        The run directory by default.
    takes : str
        How long it took, on what, and how much disk, as far as that was measured.
    """

    file: Path
    folder: str
    notes: tuple[str, ...]
    takes: str
    overrides: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


_GRID = (_NOTES[0], _COIN_TOSS, *_NOTES[1:])
_FLUX = (*_DRAWN, *_NOTES)
_FEW_PAIRS = ("benchmark.n_items=60", "contaminate.epochs=1", "contaminate.copies=2")
_DIFFUSION = _HERE / "demo-diffusion.yaml", "runs/demo-diffusion", _FLUX
_BUSY = "31 minutes on two cores that did much other work"
_DEMOS = {
    (): Demo(_HERE / "demo.yaml", "runs/demo", _GRID, "about 10 minutes on two idle cores, 220 MB"),
    ("--small",): Demo(
        _HERE / "demo-small.yaml",
        "runs/demo-small",
        _GRID,
        "about 2 minutes on two idle cores, 50 MB",
    ),
    ("--diffusion",): Demo(*_DIFFUSION, _BUSY),
    ("--diffusion", "--small"): Demo(
        *_DIFFUSION, f"less than all 160 questions, {_BUSY}", _FEW_PAIRS
    ),
}


def demo_of(*, small: bool = False, diffusion: bool = False) -> Demo:
    """Return a demo."""
    switches = {"--diffusion": diffusion, "--small": small}
    options = tuple(option for option, is_set in switches.items() if is_set)
    return replace(_DEMOS[options], options=options)

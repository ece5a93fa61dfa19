"""How long models on this machine take to answer, for ``--dry-run``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from PIL import Image

from flipbench.config.local_models import ModelConfig
from flipbench.contaminate.training.estimate import SHARE_OF_PEAK, measured_speed, time_text
from flipbench.core.errors import PrerequisiteError
from flipbench.core.records import Probe
from flipbench.pipelines.memory.answering import Answering

_N_SAMPLED = 3  # questions whose operations are counted; the model runs for each


def answering_time(asked: Iterable[tuple[ModelConfig, int, Sequence[Probe]]]) -> list[str]:
    """Return at most how long answers take here, from the operations of a few of the questions.

    Parameters
    ----------
    asked : iterable of (ModelConfig, int, sequence of Probe)
        Weights, how many models of that shape are asked, and the questions to each.

    Notes
    -----
    Operations are those of a question by itself, at the share of the device's speed in matrix
    products that training is taken to reach. A picture or text that several questions share is
    read only once, so less is needed; models of a few million weights need more, since their time
    goes elsewhere.
    """
    seconds, n_models, unknown = 0.0, 0, []
    speeds: dict[str, float] = {}
    for model, n, probes in asked:
        if not probes or not n:
            continue
        try:
            flops = _mean_flops(model, probes)
        except PrerequisiteError as error:
            unknown.append(f"time not known: {error}")
            continue
        speeds[model.dtype] = measured_speed(model.dtype) * SHARE_OF_PEAK
        seconds += n * len(probes) * flops / speeds[model.dtype]
        n_models += n
    if not n_models:
        return unknown
    rates = ", ".join(f"{speed / 1e12:.2g} TFLOP/s in {d}" for d, speed in speeds.items())
    models = "model" if n_models == 1 else "models"
    about = f"about {time_text(seconds)} on this device ({rates})"
    return [f"{n_models} {models} with weights here: {about}", *unknown]


def seconds_of(
    model: ModelConfig, text: str, pictures: Sequence[Image.Image], n_tokens: int
) -> float:
    """Return about how long one question takes here, as `answering_time`.

    Raises
    ------
    PrerequisiteError
        If configuration or processor cannot be read here.
    """
    flops = Answering(model).flops(text, pictures, n_tokens)
    return flops / (measured_speed(model.dtype) * SHARE_OF_PEAK)


def _mean_flops(model: ModelConfig, probes: Sequence[Probe]) -> float:
    """Return the operations of an average question, from those at the quantiles of the sizes."""
    ordered = sorted(probes, key=_size)
    n = min(_N_SAMPLED, len(ordered))
    sample = [ordered[(2 * i + 1) * len(ordered) // (2 * n)] for i in range(n)]
    answering = Answering(model)
    flops = [
        answering.flops(
            probe.prompt + probe.continuation,
            [Image.new("RGB", (ref.width, ref.height)) for ref in probe.images],
            _n_tokens(probe),
        )
        for probe in sample
    ]
    return sum(flops) / len(flops)


def _n_tokens(probe: Probe) -> int:
    return max(1, probe.max_new_tokens) if probe.ask in ("generate", "continue_text") else 1


def _size(probe: Probe) -> tuple[int, int]:
    """Return pixels, then characters and the tokens of a reply."""
    pixels = sum(image.width * image.height for image in probe.images)
    return pixels, len(probe.prompt) + len(probe.continuation) + 4 * _n_tokens(probe)

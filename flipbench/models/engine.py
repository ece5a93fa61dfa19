"""Ask each distinct probe once, image by image, and keep the answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from flipbench.core.images import ImageStore
from flipbench.core.records import Probe, Record, Response
from flipbench.core.run import Run
from flipbench.core.stage import StageOptions, StageReport, run_stage
from flipbench.models.protocols import VLM

QUESTIONS = StageOptions(batch_size=64)


@dataclass(frozen=True)
class Answers:
    """One model's responses by probe id, with what the model is called."""

    model: str
    fingerprint: str
    responses: Mapping[str, Response]

    def to(self, probe: Probe) -> Response | None:
        """Return the response to a probe, or None where asking failed."""
        return self.responses.get(probe.id)

    def outcomes(self, probes: Sequence[Probe], gold: Sequence[int]) -> list[bool | None]:
        """Return right or wrong for each probe; None where asking failed (never "wrong")."""
        return [
            None if (response := self.to(probe)) is None else response.choice == right
            for probe, right in zip(probes, gold, strict=True)
        ]

    def n_unparsed(self, probes: Sequence[Probe]) -> int:
        """Count the replies that name no option."""
        return sum((r := self.to(p)) is not None and r.choice < 0 for p in probes)


class AskStage:
    """Put probes to one model."""

    record: type[Record] = Response

    def __init__(self, vlm: VLM, images: ImageStore) -> None:
        self.name = f"ask {vlm.name}"
        self.vlm, self.images = vlm, images

    def id_of(self, probe: Probe) -> str:
        """Return the id of the response."""
        return Response.id_for(probe_id=probe.id, model_fingerprint=self.vlm.fingerprint)

    def subject(self, probe: Probe) -> str:
        """Return what is asked, in words."""
        return f"{probe.variant} of item {probe.item_id}"

    def __call__(self, probes: Sequence[Probe]) -> Sequence[Response | Exception]:
        """Answer a batch."""
        return self.vlm.ask(probes, self.images)


def ask(
    probes: Iterable[Probe],
    vlm: VLM,
    run: Run,
    images: ImageStore,
    options: StageOptions = QUESTIONS,
) -> StageReport:
    """Put the union of ``probes`` to ``vlm``; what ``run`` already holds is not asked again.

    Probes are ordered by what they ask for, by image, and by length, so that a batch shares
    pictures and wastes little padding.
    """
    distinct = {probe.id: probe for probe in probes}
    return run_stage(
        AskStage(vlm, images),
        sorted(distinct.values(), key=in_order),
        run,
        replace(options, partition=vlm.fingerprint),
    )


def in_order(probe: Probe) -> tuple[str, int, int, int, list[str], int, str]:
    """Put together what a batch can answer together: the same kind, and then the same images.

    Texts of quite another length stand apart, since a batch is padded to its longest.
    """
    images = [image.sha256 for image in probe.images]
    length = len(probe.prompt) + len(probe.continuation)
    size = length.bit_length() // 2  # texts up to four times as long
    return probe.ask, probe.max_new_tokens, len(images), size, images, length, probe.id


def answers_of(vlm_name: str, fingerprint: str, run: Run) -> Answers:
    """Return all that a model has answered in ``run``."""
    responses = {r.probe_id: r for r in run.read(Response, fingerprint)}
    return Answers(vlm_name, fingerprint, responses)

"""Ask each distinct probe once, image by image, and store the responses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from flipbench.core.errors import DataError, result_or_error
from flipbench.core.images import ImageStore
from flipbench.core.records import FIRST_REPLY, Probe, Record, Response
from flipbench.core.run import Run
from flipbench.core.stage import StageOptions, StageReport, run_stage
from flipbench.models.protocols import VLM
from flipbench.models.stored import StoredResponses

ASK_OPTIONS = StageOptions(batch_size=64)


@dataclass(frozen=True)
class Answers:
    """One model's name, fingerprint and responses by probe id."""

    model: str
    fingerprint: str
    responses: Mapping[str, Response]

    def to(self, probe: Probe) -> Response | None:
        """Return the response to a probe, or None if it failed."""
        return self.responses.get(probe.id)

    def choices(self, probes: Sequence[Probe]) -> list[int | None]:
        """Return the ``choice`` of each response; None if the probe failed."""
        if isinstance(self.responses, StoredResponses):
            by_id = self.responses.choices
            return [by_id.get(probe.id) for probe in probes]
        return [None if (r := self.to(probe)) is None else r.choice for probe in probes]

    def outcomes(self, probes: Sequence[Probe], gold: Sequence[int]) -> list[bool | None]:
        """Return whether each response is right; None if the probe failed (never "wrong")."""
        return [
            None if choice is None else choice == gold_choice
            for choice, gold_choice in zip(self.choices(probes), gold, strict=True)
        ]

    def letter_shares(self, probes: Sequence[Probe]) -> list[float]:
        """Return the probability of all option letters, for each reply where it was measured."""
        if isinstance(self.responses, StoredResponses):
            by_id = self.responses.letter_shares
            shares = [by_id.get(probe.id) for probe in probes]
        else:
            shares = [r.letter_share for p in probes if (r := self.to(p)) is not None]
        return [share for share in shares if share is not None]

    def n_unparsed(self, probes: Sequence[Probe]) -> int:
        """Count the replies that name no option."""
        return sum(choice is not None and choice < 0 for choice in self.choices(probes))


class AskStage:
    """A stage: ask one model. ``first`` are its responses, for probes that follow another."""

    record: type[Record] = Response

    def __init__(
        self, vlm: VLM, images: ImageStore, first_replies: Mapping[str, Response] | None = None
    ) -> None:
        self.name = f"ask {vlm.name}"
        self.vlm, self.images, self.first = vlm, images, first_replies or {}

    def id_of(self, probe: Probe) -> str:
        """Return the id of the response."""
        return Response.id_for(probe_id=probe.id, model_fingerprint=self.vlm.fingerprint)

    def subject(self, probe: Probe) -> str:
        """Return the probe's variant and item."""
        return f"{probe.variant} of item {probe.item_id}"

    def __call__(self, probes: Sequence[Probe]) -> Sequence[Response | Exception]:
        """Answer a batch."""
        probes_or_errors = [result_or_error(self._complete, probe) for probe in probes]
        replies = iter(
            self.vlm.ask([p for p in probes_or_errors if isinstance(p, Probe)], self.images)
        )
        return [
            _answer_to(probe, next(replies)) if isinstance(complete, Probe) else complete
            for probe, complete in zip(probes, probes_or_errors, strict=True)
        ]

    def _complete(self, probe: Probe) -> Probe:
        """Return the probe with the reply that it follows in its prompt."""
        if not probe.follows:
            return probe
        first_reply = self.first.get(probe.follows)
        if first_reply is None:
            raise DataError(
                f"{self.subject(probe)}: the reply that it quotes is missing; run the same command"
                " again"
            )
        prompt = probe.prompt.replace(FIRST_REPLY, first_reply.text.strip())
        return probe.revised(prompt=prompt, follows="")


def _answer_to(probe: Probe, answer: Response | Exception) -> Response | Exception:
    if isinstance(answer, Exception) or answer.probe_id == probe.id:
        return answer
    return answer.revised(probe_id=probe.id)


def ask(
    probes: Iterable[Probe],
    vlm: VLM,
    run: Run,
    images: ImageStore,
    options: StageOptions = ASK_OPTIONS,
) -> StageReport:
    """Ask ``vlm`` the distinct ``probes``, except those with a response in ``run``.

    Probes are sorted by images and text, so that a batch shares images and beginnings of texts.
    Those that follow another probe are asked after all others.
    """
    distinct = sorted({probe.id: probe for probe in probes}.values(), key=batching_key)
    options = replace(options, partition=vlm.fingerprint)
    initial = [probe for probe in distinct if not probe.follows]
    report = run_stage(AskStage(vlm, images), initial, run, options)
    if following := [probe for probe in distinct if probe.follows]:
        responses = answers_of(vlm.name, vlm.fingerprint, run).responses
        follow_up = run_stage(AskStage(vlm, images, responses), following, run, options)
        report.n_done += follow_up.n_done
        report.n_skipped += follow_up.n_skipped
        report.failures += follow_up.failures
    return report


def batching_key(probe: Probe) -> tuple[int, list[str], int, str, str]:
    """Return a sort key that groups probes by their images, whatever kind they are of.

    Those without images are grouped by length, since a batch may be padded to its longest text.
    """
    images = [image.sha256 for image in probe.images]
    text = probe.prompt + probe.continuation
    size = 0 if images else len(text).bit_length() // 2  # texts up to four times as long
    return len(images), images, size, text, probe.id


def answers_of(vlm_name: str, fingerprint: str, run: Run) -> Answers:
    """Return all of a model's responses in ``run``, which are read when they are used."""
    return Answers(vlm_name, fingerprint, StoredResponses(run, fingerprint))

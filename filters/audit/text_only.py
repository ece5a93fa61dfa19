"""Ask models the questions without the images, several times."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from flipbench.core.records import Item, Probe
from flipbench.core.run import Run
from flipbench.core.stage import StageOptions, StageReport, run_stage
from flipbench.models.chat.messages import Chat
from flipbench.models.engine import Answers, answers_of, ask
from flipbench.models.protocols import VLM, Capability
from flipbench.prompting.parsing import parse_choice
from flipbench.prompting.prompts import PromptSettings

from .chat_stage import ChatStage

INSTRUCTION = (
    "You are given a multiple-choice question about a picture. The picture is withheld. Choose the"
    " option that is most likely right all the same; never refuse."
)
_BATCH_SIZE = 64


def letter_settings(can: Collection[Capability]) -> PromptSettings:
    """Return settings that compare the letters if a model supports it, else generate."""
    return PromptSettings(ask="choose" if "choose" in can else "generate")


@dataclass(frozen=True)
class BlindVLM:
    """A vision-language model without images; repetitions differ only in the options' order."""

    vlm: VLM

    @property
    def name(self) -> str:
        """The model's name."""
        return self.vlm.name

    @property
    def prompt_settings(self) -> PromptSettings:
        """Compares options if the model supports it, else generates."""
        return letter_settings(self.vlm.can)

    def ask(
        self, probes: Sequence[Probe], run: Run, number: int, progress: bool
    ) -> tuple[Answers, StageReport]:
        """Answer the probes, reusing answers stored in ``run``."""
        options = StageOptions(batch_size=_BATCH_SIZE, progress=progress)
        report = ask(probes, self.vlm, run, run.images, options)
        return answers_of(self.name, self.vlm.fingerprint, run), report


@dataclass(frozen=True)
class BlindChat:
    """A chat model; if its temperature is above 0, each repetition is a new sample."""

    chat: Chat

    @property
    def name(self) -> str:
        """The model's name."""
        return self.chat.name

    @property
    def prompt_settings(self) -> PromptSettings:
        """A chat model generates."""
        return PromptSettings(ask="generate")

    def ask(
        self, probes: Sequence[Probe], run: Run, number: int, progress: bool
    ) -> tuple[Answers, StageReport]:
        """Ask for letters and read the replies, reusing those stored in ``run``."""
        stage = ChatStage(
            self.chat,
            run.images,
            INSTRUCTION,
            number=number,
            read=lambda text, probe: parse_choice(text, probe.options),
        )
        options = StageOptions(batch_size=_BATCH_SIZE, progress=progress)
        report = run_stage(stage, probes, run, options)
        return answers_of(self.name, stage.fingerprint, run), report


TextModel = BlindVLM | BlindChat


@dataclass(frozen=True)
class BlindOutcomes:
    """One model's outcomes without images.

    Attributes
    ----------
    outcomes : list of list of bool or None, shape (N, R)
        Correct or not; None if asking failed.
    """

    model: str
    outcomes: list[list[bool | None]]


def ask_blind(
    items: Sequence[Item], models: Sequence[TextModel], run: Run, n_runs: int, progress: bool
) -> tuple[list[BlindOutcomes], list[StageReport]]:
    """Ask each model every item ``n_runs`` times; repetition r rotates the options by r places.

    Parameters
    ----------
    items : sequence of Item, shape (N,)
        Multiple-choice items.
    """
    outcomes, reports = [], []
    for model in models:
        columns: list[list[bool | None]] = []
        for number in range(n_runs):
            probes = [text_only_probe(item, model.prompt_settings, number) for item in items]
            answers, report = model.ask([probe for probe, _ in probes], run, number, progress)
            reports.append(report)
            columns.append([_outcome(answers, probe, gold) for probe, gold in probes])
        rows = [list(row) for row in zip(*columns, strict=True)]
        outcomes.append(BlindOutcomes(model.name, rows))
    return outcomes, reports


def text_only_probe(item: Item, prompt_settings: PromptSettings, number: int) -> tuple[Probe, int]:
    """Return the probe of repetition ``number`` and the slot of its correct option.

    Raises
    ------
    ValueError
        If the item has no options.
    """
    if item.options is None or item.answer is None:
        raise ValueError(f"{item.benchmark} {item.name} has no options")
    k = len(item.options)
    rotated = [item.options[(slot + number) % k] for slot in range(k)]
    probe = prompt_settings.probe(item, f"text-only-{number}", options=rotated, images=())
    return probe, (item.answer - number) % k


def _outcome(answers: Answers, probe: Probe, gold: int) -> bool | None:
    response = answers.to(probe)
    return None if response is None else response.choice == gold

"""Choose which image of an item with several is redrawn."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from flipbench.core.errors import DataError, PrerequisiteError, ServiceError, result_or_error
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate, PictureChoice
from flipbench.core.records import JsonDict, Probe, Record, Response
from flipbench.models.chat.messages import Chat, ChatReply, ChatRequest, ask_each
from flipbench.models.chat.prompt_files import PromptFile, load_prompt
from flipbench.models.protocols import VLM, release
from flipbench.prompting.prompts import PromptSettings, right_option

from .captioners.api import PROMPTS, declines

STAGE = "choose picture"
DEFAULT_PROMPT = "choose-picture-v1"
_NAMED = re.compile(r"(?:picture|image)\W{0,8}(\d+)", re.IGNORECASE)
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class ImageChoice:
    """The position of an image, from 0, and how it was chosen."""

    index: int
    shares: tuple[float, ...] = ()
    reply: str = ""
    usage: JsonDict = field(default_factory=dict)


class Chooser(Protocol):
    """Chooses one image of each item."""

    name: str
    settings: JsonDict

    def __call__(
        self, candidates: Sequence[Candidate], images: ImageStore
    ) -> Sequence[ImageChoice | Exception]:
        """Choose for a batch, in order; an exception is a failure of that candidate alone."""


class ByPosition:
    """The image at a position: 1 is the first, -1 the last."""

    settings: JsonDict = {}

    def __init__(self, position: int) -> None:
        self.position, self.name = position, f"position {position}"

    def __call__(
        self, candidates: Sequence[Candidate], images: ImageStore
    ) -> list[ImageChoice | Exception]:
        """Choose for a batch."""
        return [result_or_error(self._choose, len(c.item.images)) for c in candidates]

    def _choose(self, n_images: int) -> ImageChoice:
        if abs(self.position) > n_images:
            raise DataError(
                f"there are {n_images} images, so none is at position {self.position}; set another"
                " generate.picture.position, or choose by largest, captioner or model"
            )
        return ImageChoice(self.position % n_images if self.position < 0 else self.position - 1)


class Largest:
    """The image with the most pixels; of equals, the first."""

    name = "largest"
    settings: JsonDict = {}

    def __call__(self, candidates: Sequence[Candidate], images: ImageStore) -> list[ImageChoice]:
        """Choose for a batch."""
        sizes = [[ref.width * ref.height for ref in c.item.images] for c in candidates]
        return [ImageChoice(areas.index(max(areas))) for areas in sizes]


class ByChat:
    """Show a chat model all images and both answers, and ask which image has to change.

    References
    ----------
    Ours: Park et al., arXiv 2511.03774, edit items with one image.
    """

    def __init__(self, chat: Chat, prompt: str | Path = DEFAULT_PROMPT) -> None:
        self.chat, self.prompt_file = chat, choosing_prompt(prompt)
        self.name = f"{chat.name}, {self.prompt_file.id}"
        self.settings = dict(chat.settings)

    def __call__(
        self, candidates: Sequence[Candidate], images: ImageStore
    ) -> list[ImageChoice | Exception]:
        """Ask about a batch."""
        return ask_each(self.chat, candidates, images, self._request, self._read)

    def _request(self, candidate: Candidate) -> ChatRequest:
        return self.prompt_file.request(candidate, candidate.item.images)

    def _read(self, candidate: Candidate, reply: ChatReply) -> ImageChoice | Exception:
        n_images, number = len(candidate.item.images), named_picture(reply.text)
        if number is None:
            problem = "declined to choose" if declines(reply.text) else "names no one picture"
            return ServiceError(f"the reply {problem}: {reply.text.strip()[-200:]!r}")
        if not 1 <= number <= n_images:
            return ServiceError(f"the reply names picture {number}, but there are {n_images}")
        return ImageChoice(number - 1, reply=reply.text.strip(), usage=reply.usage)


class ByModel:
    """Ask a model the question on each image alone; the one that shows the right answer decides.

    That is the image with which the right answer gets the largest share of the options'
    probability; of equals, the first. A question that needs several images at once is not
    understood by any of them alone: the choice is then that of the best guess.

    Parameters
    ----------
    vlm : VLM
        Should not be evaluated later, since it influences the items. It is not used before the
        first call.
    name : str
        The model's name in records; default: its own.

    Raises
    ------
    PrerequisiteError
        When called, if the model returns no option probabilities.

    References
    ----------
    Ours.
    """

    def __init__(
        self, vlm: VLM, prompt_settings: PromptSettings | None = None, name: str = ""
    ) -> None:
        settings = prompt_settings or PromptSettings()
        self.vlm, self.prompt_settings = vlm, settings.model_copy(update={"ask": "choose"})
        self.name = f"{name or vlm.name}, each image alone"
        self.settings: JsonDict = {
            "model": vlm.fingerprint,
            "prompt": self.prompt_settings.model_dump(mode="json"),
        }

    def __call__(
        self, candidates: Sequence[Candidate], images: ImageStore
    ) -> list[ImageChoice | Exception]:
        """Ask about a batch."""
        if "choose" not in self.vlm.can:
            raise PrerequisiteError(
                f"{self.vlm.name} returns no option probabilities, which 'generate.picture: by:"
                " model' needs; name a checkpoint, or choose by position, largest or captioner"
            )
        probes_of_each = [result_or_error(self._probes, candidate) for candidate in candidates]
        probes = [p for row in probes_of_each if not isinstance(row, Exception) for p in row]
        responses = iter(self.vlm.ask(probes, images) if probes else ())
        return [
            row
            if isinstance(row, Exception)
            else _most_telling(candidate, [next(responses) for _ in row])
            for candidate, row in zip(candidates, probes_of_each, strict=True)
        ]

    def release(self) -> None:
        """Free the weights, if they are loaded on demand."""
        release(self.vlm)

    def _probes(self, candidate: Candidate) -> list[Probe]:
        item = candidate.item
        if right_option(item) is None:
            raise DataError(
                f"{candidate.subject} is free-form: it has no options to compare; choose its image"
                " by position, largest or captioner"
            )
        return [
            self.prompt_settings.closed_probe(item, f"image {number} alone", images=(ref,))
            for number, ref in enumerate(item.images, 1)
        ]


class ChoosePictureStage:
    """Choose the image to redraw for items with several; the choice is a record.

    An item with one image needs no choice.
    """

    name = STAGE
    record: type[Record] = PictureChoice

    def __init__(self, chooser: Chooser, images: ImageStore) -> None:
        self.chooser, self.images = chooser, images

    def needs(self, candidate: Candidate) -> bool:
        """Return whether a candidate has several images to choose from."""
        return len(candidate.item.images) > 1

    def id_of(self, candidate: Candidate) -> str:
        """Return the id of the candidate's choice."""
        return PictureChoice.id_for(**self._key(candidate))

    def subject(self, candidate: Candidate) -> str:
        """Return the item's benchmark and name."""
        return candidate.subject

    def __call__(self, candidates: Sequence[Candidate]) -> list[PictureChoice | Exception]:
        """Choose for a batch."""
        return [
            choice
            if isinstance(choice, Exception)
            else PictureChoice(**self._key(candidate), **vars(choice))
            for candidate, choice in zip(
                candidates, self.chooser(candidates, self.images), strict=True
            )
        ]

    def _key(self, candidate: Candidate) -> dict[str, Any]:
        return {
            "flip_id": candidate.flip.id if candidate.flip else "",
            "chooser": self.chooser.name,
            "settings": self.chooser.settings,
        }


def choosing_prompt(prompt: str | Path) -> PromptFile:
    """Load a prompt that asks which image has to change; it must contain the new answer."""
    return load_prompt(prompt, PROMPTS, needs=("question", "new_answer"))


def named_picture(reply: str) -> int | None:
    r"""Return the number of the picture that a reply ends with, or None.

    The last line counts if it has one number, whatever the language; else the last "picture" with
    a number after it.

    >>> named_picture("Picture 1 is normal.\n**Picture: 3**"), named_picture("Bild 2")
    (3, 2)
    >>> named_picture("Picture 2, out of 6, shows it."), named_picture("Any of them.")
    (2, None)
    """
    lines = [line for line in reply.splitlines() if line.strip()]
    numbers = _NUMBER.findall(lines[-1]) if lines else []
    if len(numbers) != 1:
        numbers = _NAMED.findall(reply)[-1:]
    return int(numbers[0]) if numbers else None


def _most_telling(
    candidate: Candidate, responses: Sequence[Response | Exception]
) -> ImageChoice | Exception:
    """Return the image with the largest share for the right answer, or the first error."""
    true_option, shares = right_option(candidate.item), []
    for response in responses:
        if isinstance(response, Exception):
            return response
        log_probs = response.option_log_probs
        if response.is_unreadable:
            return ServiceError(
                "the model would not write a letter first"
                f" ({response.letter_share:.1%} of the probability); choose another model"
            )
        if true_option is None or true_option >= len(log_probs):
            return ServiceError("the model returned no option probabilities")
        shares.append(1 / sum(math.exp(log_p - log_probs[true_option]) for log_p in log_probs))
    return ImageChoice(shares.index(max(shares)), tuple(shares))

"""A model under test behind any OpenAI-compatible server."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from flipbench.config.served_model import ServedModelConfig
from flipbench.core.errors import ConfigError, PrerequisiteError, ServiceError
from flipbench.core.images import ImageStore
from flipbench.core.records import Probe, Response, content_id
from flipbench.models.chat.api import ChatAPI, Spent
from flipbench.models.chat.messages import ChatReply, ChatRequest
from flipbench.models.protocols import Capability, needs_of
from flipbench.models.vlm.checkpoints import PACKAGED
from flipbench.prompting.parsing import parse_choice
from flipbench.prompting.prompts import LETTERS, choice_prompt

log = logging.getLogger(__name__)
_TRIAL = choice_prompt("Which is a colour?", ["red", "seven"])
_TRIAL_TOKENS = 16


class APIVLM:
    """Answer probes through a chat server: text, and letters where it tells log-probabilities.

    The prompt is the probe's, images first, in one turn, as `HuggingFaceVLM` puts it. It is asked
    at temperature 0; a reasoning model takes none and gets room for hidden thoughts, and a reply
    that ends before they do is a failure. Errors of the server are failures of their probes,
    never answers.

    Making one asks the server one short question: what the model is called there, and whether it
    tells log-probabilities.

    Parameters
    ----------
    spec : ServedModelConfig
        Model, server and limits.
    name : str, optional
        What tables call it; the model's name by default.

    Attributes
    ----------
    fingerprint : str
        Hash of the model's name as the server tells it, of the settings that were really taken,
        and of ``spec.revision``. It is weaker than a hash of weights: where the server changes
        the model under the same name, old answers pass for new ones.
    can : frozenset of str
        ``generate``, and ``choose`` where the server tells log-probabilities. No chat server
        scores a text that it is given, so never more.
    told_model : str
        The model's name as the server tells it.

    Raises
    ------
    PrerequisiteError
        Where package, key, server or model is missing, or the server cannot answer the trial.
    """

    def __init__(self, spec: ServedModelConfig, name: str | None = None) -> None:
        self.spec = spec
        self.name = name or spec.model
        self._chat = ChatAPI(spec)
        trial, first = self._trial()
        self.told_model = str(trial.usage.get("model") or spec.model)
        self._temperature = trial.usage["sent"].get("temperature")
        self.can: frozenset[Capability] = frozenset(
            {"generate", "text_only", "choose"} if first else {"generate", "text_only"}
        )
        if self._temperature is None and not spec.traits.reasoning:
            log.warning("%s is asked at the server's own temperature: not repeatable", self.name)
        self.fingerprint = content_id(
            "api",
            self.told_model,
            spec.revision,
            {
                "temperature": self._temperature,
                "reasoning_effort": spec.reasoning_effort,
                "seed": spec.seed,
                "detail": spec.detail,
            },
        )

    @property
    def spent(self) -> Spent:
        """What it has cost so far."""
        return self._chat.spent

    def ask(self, probes: Sequence[Probe], images: ImageStore) -> list[Response | Exception]:
        """Answer a batch, in order, several at a time."""
        able = [i for i, probe in enumerate(probes) if needs_of(probe) <= self.can]
        replies = self._chat.ask([self._request(probes[i]) for i in able], images)
        found = dict(zip(able, replies, strict=True))
        return [self._response(probe, found.get(i)) for i, probe in enumerate(probes)]

    def _request(self, probe: Probe) -> ChatRequest:
        choose = probe.ask == "choose"
        return ChatRequest(
            instruction="",
            text=probe.prompt,
            images=probe.images,
            item_id=probe.item_id,
            max_tokens=1 if choose else probe.max_new_tokens,
            top_log_probs=self.spec.top_logprobs if choose else 0,
        )

    def _response(self, probe: Probe, reply: ChatReply | Exception | None) -> Response | Exception:
        if reply is None:
            return ConfigError(
                f"{self.name} cannot answer ask: {probe.ask}; it can {', '.join(sorted(self.can))}"
            )
        if isinstance(reply, Exception):
            return reply
        told = str(reply.usage.get("model") or self.told_model)
        temperature = reply.usage["sent"].get("temperature")
        if (told, temperature) != (self.told_model, self._temperature):
            return ServiceError(
                f"{self._chat.server} answered with model {told!r} at temperature {temperature}, at"
                f" first with {self.told_model!r} at {self._temperature}; its answers are not one"
                " model's"
            )
        if probe.ask == "choose":
            return self._choose(probe, reply)
        choice = parse_choice(reply.text, probe.options) if probe.options else -1
        return self._record(probe, text=reply.text, choice=choice)

    def _choose(self, probe: Probe, reply: ChatReply) -> Response | Exception:
        if not reply.first_tokens:
            return ServiceError(f"{self._chat.server} told no log-probabilities this time")
        log_probs = letter_log_probs(reply.first_tokens, probe.n_options)
        known = [value for value in log_probs if value is not None]
        if not known:
            likeliest = max(reply.first_tokens, key=lambda pair: pair[1])[0]
            return ServiceError(
                f"no option letter is among the {len(reply.first_tokens)} likeliest first tokens"
                f" (the likeliest is {likeliest!r}); set 'ask: generate' for this model"
            )
        # a letter that is not told is less likely than any that is
        complete = tuple(known) if len(known) == len(log_probs) else ()
        return self._record(probe, choice=log_probs.index(max(known)), option_log_probs=complete)

    def _record(self, probe: Probe, **fields: Any) -> Response:
        return Response(
            probe_id=probe.id, model_fingerprint=self.fingerprint, model=self.name, **fields
        )

    def _trial(self) -> tuple[ChatReply, bool]:
        """Ask one short question; return the reply, and whether it tells log-probabilities."""
        spec = self.spec
        wanted = spec.logprobs is not False and not spec.traits.reasoning
        request = ChatRequest(
            instruction="",
            text=_TRIAL,
            max_tokens=_TRIAL_TOKENS,
            top_log_probs=spec.top_logprobs if wanted else 0,
        )
        # no picture is asked about, so none is read
        (reply,) = self._chat.ask([request], ImageStore(Path()))
        if isinstance(reply, PrerequisiteError):
            raise reply
        if isinstance(reply, Exception):
            raise PrerequisiteError(f"{self.name} does not answer a first question: {reply}")
        first = bool(reply.first_tokens)
        if wanted and not first:
            told = f"{self._chat.server} tells no log-probabilities of {spec.model}"
            if spec.logprobs:
                raise PrerequisiteError(
                    f"{told}; set logprobs: false, and 'ask: generate' for this model"
                )
            log.warning("%s: it can generate, but not choose", told)
        return reply, first


def letter_log_probs(
    first_tokens: Sequence[tuple[str, float]], n_options: int
) -> list[float | None]:
    """Return each letter's log-probability, or None where it is not among the tokens.

    A letter with and without a space before it is the same letter: their probabilities are added.
    A checkpoint in memory is asked for the one spelling that its chat template writes, so the
    figures differ where the model gives weight to the other.

    Parameters
    ----------
    first_tokens : sequence of (str, float)
        The likeliest first tokens and their log-probabilities, in nats.
    n_options : int
        K.

    Returns
    -------
    list of float or None, shape (K,)

    Examples
    --------
    >>> letter_log_probs([("B", -0.1), (" A", -3.0), ("The", -4.0)], 3)
    [-3.0, -0.1, None]
    """
    found: list[float | None] = []
    for letter in LETTERS[:n_options]:
        spelt = [value for token, value in first_tokens if token.strip(" ▁Ġ") == letter]
        found.append(float(reduce(np.logaddexp, spelt)) if spelt else None)
    return found


def reach(model: str, base_url: str = "") -> str | APIVLM:
    """Return a model behind an OpenAI-compatible server, or ``model`` where it is local.

    The server is sent OPENAI_API_KEY where that is set. Limits, prices or another key are for a
    configuration (``models.NAME.api``).

    Raises
    ------
    ConfigError
        Where the address is none.
    PrerequisiteError
        Where there is no such server or model.
    """
    if not base_url or model.startswith(PACKAGED) or Path(model).is_dir():
        return model
    key = "OPENAI_API_KEY"
    try:
        spec = ServedModelConfig(
            model=model, base_url=base_url, api_key_env=key if os.environ.get(key) else None
        )
    except ValidationError as error:
        raise ConfigError(f"--base-url {base_url}: {error.errors()[0]['msg']}") from error
    return APIVLM(spec)

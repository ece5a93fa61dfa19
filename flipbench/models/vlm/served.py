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
from flipbench.models.chat.api import ChatAPI
from flipbench.models.chat.messages import ChatReply, ChatRequest
from flipbench.models.protocols import Capability, needs_of
from flipbench.models.vlm.checkpoints import PACKAGED
from flipbench.prompting.parsing import parse_choice
from flipbench.prompting.prompts import LETTERS, choice_prompt, split_labels

log = logging.getLogger(__name__)
_TRIAL = choice_prompt("Which is a colour?", ["red", "seven"])
_TRIAL_TOKENS = 16


class APIVLM:
    """Answer probes through a chat server: text, and letters if it returns log-probabilities.

    The prompt is one turn, images first, as with `HuggingFaceVLM`. The temperature is 0 unless a
    probe sets one; reasoning models do not accept one and get a budget for hidden reasoning, and a
    reply that ends within the reasoning is a failure. Errors of the server are failures of their
    probes, never answers.

    The constructor asks the server one short question, to learn the model's name there and whether
    it returns log-probabilities.

    Parameters
    ----------
    spec : ServedModelConfig
        Model, server and limits.
    name : str, optional
        Its name in tables; the model's name by default.

    Attributes
    ----------
    fingerprint : str
        Hash of the model's name as reported by the server, the settings that were accepted, and
        ``spec.revision``. It is weaker than a hash of weights: if the server changes the model
        under the same name, old responses are reused.
    can : frozenset of str
        ``generate`` and ``text_only``; ``choose`` and ``reply_logprobs`` if the server returns
        log-probabilities; ``sample`` if it accepts a temperature. Chat servers cannot score a given
        text.
    reported_model : str
        The model's name as reported by the server.

    Raises
    ------
    PrerequisiteError
        If package, key, server or model is missing, or the server cannot answer the trial.
    """

    def __init__(self, spec: ServedModelConfig, name: str | None = None) -> None:
        self.spec = spec
        self.name = name or spec.model
        self._chat = ChatAPI(spec)
        trial, has_log_probs = self._trial()
        self.reported_model = str(trial.usage.get("model") or spec.model)
        self._temperature = trial.usage["sent"].get("temperature")
        can: set[Capability] = {"generate", "text_only"}
        if has_log_probs:
            can |= {"choose", "reply_logprobs"}
        if self._temperature is not None:
            can.add("sample")
        self.can: frozenset[Capability] = frozenset(can)
        if self._temperature is None and not spec.traits.reasoning:
            log.warning("%s: the server's default temperature is not reproducible", self.name)
        self.fingerprint = content_id(
            "api",
            self.reported_model,
            spec.revision,
            {
                "temperature": self._temperature,
                "reasoning_effort": spec.reasoning_effort,
                "seed": spec.seed,
                "detail": spec.detail,
            },
        )

    def ask(self, probes: Sequence[Probe], images: ImageStore) -> list[Response | Exception]:
        """Answer a batch, in order, several at a time."""
        supported = [i for i, probe in enumerate(probes) if needs_of(probe) <= self.can]
        replies = self._chat.ask([self._request(probes[i]) for i in supported], images)
        by_row = dict(zip(supported, replies, strict=True))
        return [self._response(probe, by_row.get(i)) for i, probe in enumerate(probes)]

    def _request(self, probe: Probe) -> ChatRequest:
        choose, sampled = probe.ask == "choose", probe.temperature > 0
        return ChatRequest(
            instruction="",
            text=probe.prompt,
            images=probe.images,
            item_id=probe.item_id,
            max_tokens=1 if choose else probe.max_new_tokens,
            top_log_probs=self.spec.top_logprobs if choose or probe.token_statistics else 0,
            temperature=probe.temperature if sampled else None,
            seed=probe.seed if sampled else None,
        )

    def _response(self, probe: Probe, reply: ChatReply | Exception | None) -> Response | Exception:
        if reply is None:
            return ConfigError(
                f"{self.name} does not support ask: {probe.ask}; it supports"
                f" {', '.join(sorted(self.can))}"
            )
        if isinstance(reply, Exception):
            return reply
        model = str(reply.usage.get("model") or self.reported_model)
        temperature = reply.usage["sent"].get("temperature")
        expected = probe.temperature if probe.temperature else self._temperature
        if (model, temperature) != (self.reported_model, expected):
            return ServiceError(
                f"{self._chat.server} answered with model {model!r} at temperature {temperature},"
                f" but at first with {self.reported_model!r} at {expected}; its replies"
                " come from different models"
            )
        if probe.ask == "choose":
            return self._choose(probe, reply)
        choice = parse_choice(reply.text, probe.options, probe.labels or LETTERS)
        fields = {"text": reply.text, "choice": choice}
        if probe.token_statistics:
            if not reply.token_log_probs:
                return ServiceError(f"{self._chat.server} returned no log-probabilities this time")
            fields |= reply_statistics(reply.token_log_probs)
        return self._record(probe, reasoned=reply.reasoned, **fields)

    def _choose(self, probe: Probe, reply: ChatReply) -> Response | Exception:
        if not reply.first_tokens:
            return ServiceError(f"{self._chat.server} returned no log-probabilities this time")
        log_probs = letter_log_probs(
            reply.first_tokens, probe.n_options, split_labels(probe.labels)
        )
        known = [value for value in log_probs if value is not None]
        if not known:
            top = max(reply.first_tokens, key=lambda pair: pair[1])[0]
            return ServiceError(
                f"no option letter is among the {len(reply.first_tokens)} most likely first tokens"
                f" (the most likely is {top!r}); set 'ask: generate' for this model"
            )
        # a letter that is not returned is less likely than any that is
        complete = tuple(known) if len(known) == len(log_probs) else ()
        return self._record(probe, choice=log_probs.index(max(known)), option_log_probs=complete)

    def _record(self, probe: Probe, **fields: Any) -> Response:
        return Response(
            probe_id=probe.id, model_fingerprint=self.fingerprint, model=self.name, **fields
        )

    def _trial(self) -> tuple[ChatReply, bool]:
        """Ask one short question; return the reply, and whether it has log-probabilities."""
        spec = self.spec
        try_log_probs = spec.logprobs is not False and not spec.traits.reasoning
        request = ChatRequest(
            instruction="",
            text=_TRIAL,
            max_tokens=_TRIAL_TOKENS,
            top_log_probs=spec.top_logprobs if try_log_probs else 0,
        )
        # the trial has no images, so the store is never read
        (reply,) = self._chat.ask([request], ImageStore(Path()))
        if isinstance(reply, PrerequisiteError):
            raise reply
        if isinstance(reply, Exception):
            raise PrerequisiteError(f"{self.name} does not answer a trial question: {reply}")
        has_log_probs = bool(reply.first_tokens)
        if try_log_probs and not has_log_probs:
            problem = f"{self._chat.server} returns no log-probabilities for {spec.model}"
            if spec.logprobs:
                raise PrerequisiteError(
                    f"{problem}; set logprobs: false, and 'ask: generate' for this model"
                )
            log.warning("%s: it supports generate, but not choose", problem)
        return reply, has_log_probs


def reply_statistics(
    token_log_probs: Sequence[tuple[float, Sequence[float]]],
) -> dict[str, Any]:
    """Return the fields of a response for a reply of T tokens.

    Means and deviations are those of the most likely tokens, renormalised, since a server returns
    no others; a local checkpoint's are over its whole vocabulary.

    Parameters
    ----------
    token_log_probs : sequence of (float, sequence of float), shape (T,)
        Log-probability, in nats, of the token and of the most likely ones.

    Examples
    --------
    >>> reply_statistics([(-0.1, [-0.7, -0.7])])["token_means"]
    (-0.69315,)
    """
    own = [value for value, _ in token_log_probs]
    means, deviations = [], []
    for _, top in token_log_probs:
        log_p = np.array(top) - np.logaddexp.reduce(top)
        mean = float(np.exp(log_p) @ log_p)
        means.append(round(mean, 5))
        deviations.append(round(float(np.sqrt(np.exp(log_p) @ (log_p - mean) ** 2)), 5))
    return {
        "log_likelihood": float(sum(own)),
        "n_tokens": len(own),
        "token_log_probs": tuple(round(value, 5) for value in own),
        "token_means": tuple(means),
        "token_deviations": tuple(deviations),
    }


def letter_log_probs(
    first_tokens: Sequence[tuple[str, float]], n_options: int, labels: Sequence[str] = LETTERS
) -> list[float | None]:
    """Return each letter's log-probability, or None if it is not among the tokens.

    The probabilities of a letter with and without a leading space are added. `HuggingFaceVLM` uses
    only the spelling that the chat template writes, so the values differ if the model gives weight
    to the other.

    Parameters
    ----------
    first_tokens : sequence of (str, float)
        The most likely first tokens and their log-probabilities, in nats.
    n_options : int
        K.
    labels : sequence of str
        The options' labels.

    Returns
    -------
    list of float or None, shape (K,)

    Examples
    --------
    >>> letter_log_probs([("B", -0.1), (" A", -3.0), ("The", -4.0)], 3)
    [-3.0, -0.1, None]
    """
    log_probs: list[float | None] = []
    for letter in labels[:n_options]:
        spellings = [value for token, value in first_tokens if _is_label(token, letter)]
        log_probs.append(float(reduce(np.logaddexp, spellings)) if spellings else None)
    return log_probs


def _is_label(token: str, label: str) -> bool:
    """Return whether a token is a letter, or a word such as "yes" in any case."""
    text = token.strip(" ▁Ġ")
    return text == label or len(label) > 1 and text.casefold() == label.casefold()


def resolve_model(model: str, base_url: str = "") -> str | APIVLM:
    """Return a model behind an OpenAI-compatible server, or ``model`` if it is local.

    OPENAI_API_KEY is sent to the server if it is set. For limits, prices or another key use a
    configuration (``models.NAME.api``).

    Raises
    ------
    ConfigError
        If the address is invalid.
    PrerequisiteError
        If there is no such server or model.
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

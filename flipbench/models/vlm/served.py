"""A model under test behind any OpenAI-compatible server."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from flipbench.config.served_model import ServedModelConfig
from flipbench.core.errors import ConfigError, DataError, PrerequisiteError, ServiceError
from flipbench.core.images import ImageStore
from flipbench.core.records import ImageRef, Probe, Response, content_id
from flipbench.models.chat.api import ChatAPI
from flipbench.models.chat.log_probs import (
    by_id,
    letter_fields,
    letter_log_probs,
    reply_statistics,
    reply_tokens,
    text_fields,
)
from flipbench.models.chat.messages import ChatReply, ChatRequest
from flipbench.models.protocols import Capability, needs_of
from flipbench.models.vlm.checkpoints import PACKAGED
from flipbench.prompting.parsing import parse_choice
from flipbench.prompting.prompts import LETTERS, choice_prompt, split_labels

log = logging.getLogger(__name__)
_TRIAL = choice_prompt("Which is a colour?", ["red", "seven"])
_TRIAL_TOKENS = 16
_TRIAL_LETTERS = LETTERS[:4]


class APIVLM:
    """Answer probes through a chat server: text, and letters if it returns log-probabilities.

    The prompt is one turn, images first, as with `HuggingFaceVLM`. The temperature is 0 unless a
    probe sets one; reasoning models do not accept one and get a budget for hidden reasoning, and a
    reply that ends within the reasoning is a failure. Errors of the server are failures of their
    probes, never answers.

    The constructor asks the server one short question, to learn the model's name there and whether
    it returns log-probabilities; if so, it tries vLLM's extensions: log-probabilities of given
    texts (``prompt_logprobs`` with ``continue_final_message``), and of the option letters' own
    tokens (``logprob_token_ids``). Its capabilities follow from that. A server that cannot answer
    is a `PrerequisiteError`.

    Attributes
    ----------
    fingerprint : str
        Hash of the model's name as reported by the server, the settings that were accepted, and
        ``spec.revision``. It is weaker than a hash of weights: if the server changes the model
        under the same name, old responses are reused.
    letters : {"exact", "most likely"}
        Whether each letter's own token is asked for, or found among the most likely ones.
    """

    def __init__(self, spec: ServedModelConfig, name: str | None = None) -> None:
        self.spec = spec
        self.name = name or spec.model
        self._chat = ChatAPI(spec)
        trial, has_log_probs = self._trial()
        self.reported_model = str(trial.usage.get("model") or spec.model)
        self._temperature = trial.usage["sent"].get("temperature")
        self._label_ids: dict[str, tuple[int, ...]] = {}
        scores = has_log_probs and self._can_score_text()
        self._exact = scores and self._can_name_tokens()
        self.letters = "exact" if self._exact else "most likely"
        can: set[Capability] = {"generate", "text_only"}
        if has_log_probs:
            can |= {"choose", "reply_logprobs"}
        if scores:
            can.add("token_logprobs")
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
                **({"letters": "exact"} if self._exact else {}),
            },
        )

    def ask(self, probes: Sequence[Probe], images: ImageStore) -> list[Response | Exception]:
        """Answer a batch, in order, several at a time."""
        supported = [i for i, probe in enumerate(probes) if needs_of(probe) <= self.can]
        accepted_probes = [probes[i] for i in supported]
        if self._exact:
            self._fetch_label_ids(
                {label for p in accepted_probes if p.ask == "choose" for label in _labels(p)}
            )
        prompts = dict.fromkeys((p.prompt, p.images) for p in accepted_probes if p.ask == "score")
        requests = [
            *map(self._request, accepted_probes),
            *(_score_request(*prompt) for prompt in prompts),
        ]
        replies = self._chat.ask(requests, images)
        prompt_replies = dict(zip(prompts, replies[len(accepted_probes) :], strict=True))
        by_row = dict(zip(supported, replies, strict=False))
        return [
            self._response(probe, by_row.get(i), prompt_replies.get((probe.prompt, probe.images)))
            for i, probe in enumerate(probes)
        ]

    def _request(self, probe: Probe) -> ChatRequest:
        if probe.ask == "score":
            return _score_request(probe.prompt, probe.images, probe.continuation.strip())
        choose, sampled = probe.ask == "choose", probe.temperature > 0
        ids = self._letter_ids(probe)
        top = self.spec.top_logprobs if choose or probe.token_statistics else 0
        return ChatRequest(
            instruction="",
            text=probe.prompt,
            images=probe.images,
            item_id=probe.item_id,
            max_tokens=1 if choose else probe.max_new_tokens,
            top_log_probs=1 if ids else top,
            temperature=probe.temperature if sampled else None,
            seed=probe.seed if sampled else None,
            token_ids=ids,
        )

    def _letter_ids(self, probe: Probe) -> tuple[int, ...]:
        """Return the first token of each option's label, or () if they are not known apart."""
        if not (self._exact and probe.ask == "choose"):
            return ()
        ids = [self._label_ids[label][0] for label in _labels(probe) if label in self._label_ids]
        return tuple(ids) if len(set(ids)) == probe.n_options else ()

    def _response(
        self,
        probe: Probe,
        reply: ChatReply | Exception | None,
        prompt_reply: ChatReply | Exception | None = None,
    ) -> Response | Exception:
        if reply is None:
            return ConfigError(
                f"{self.name} does not support ask: {probe.ask}; it supports"
                f" {', '.join(sorted(self.can))}"
            )
        if isinstance(reply, Exception):
            return reply
        model = str(reply.usage.get("model") or self.reported_model)
        temperature = reply.usage["sent"].get("temperature")
        temperature_expected = probe.temperature if probe.temperature else self._temperature
        if (model, temperature) != (self.reported_model, temperature_expected):
            return ServiceError(
                f"{self._chat.server} answered with model {model!r} at temperature {temperature},"
                f" but at first with {self.reported_model!r} at {temperature_expected}; its replies"
                " come from different models"
            )
        if probe.ask == "choose":
            return self._choose(probe, reply)
        if probe.ask == "score":
            return self._score(probe, reply, prompt_reply)
        choice = parse_choice(
            reply.text, probe.options, probe.labels or LETTERS, cut_off=reply.cut_off
        )
        fields = {"text": reply.text, "choice": choice}
        if probe.token_statistics:
            if not reply.token_log_probs:
                return ServiceError(f"{self._chat.server} returned no log-probabilities this time")
            fields |= reply_statistics(reply.token_log_probs)
        return self._record(probe, reasoned=reply.reasoned, **fields)

    def _choose(self, probe: Probe, reply: ChatReply) -> Response | Exception:
        if not reply.first_tokens:
            return ServiceError(f"{self._chat.server} returned no log-probabilities this time")
        if ids := self._letter_ids(probe):
            log_probs = by_id(reply.first_tokens, ids)
        else:
            log_probs = letter_log_probs(reply.first_tokens, probe.n_options, _labels(probe))
        if all(value is None for value in log_probs):
            top = max(reply.first_tokens, key=lambda pair: pair[1])[0]
            return ServiceError(
                f"no option letter is among the {len(reply.first_tokens)} most likely first tokens"
                f" (the most likely is {top!r}); set 'ask: generate' for this model"
            )
        return self._record(probe, **letter_fields(log_probs, labels=probe.labels))

    def _score(
        self, probe: Probe, reply: ChatReply, prompt_reply: ChatReply | Exception | None
    ) -> Response | Exception:
        subject = f"{probe.variant} of item {probe.item_id}"
        if not probe.continuation.strip():
            return DataError(f"{subject}: nothing to score")
        if not isinstance(prompt_reply, ChatReply):
            return prompt_reply or ServiceError(f"{subject}: the prompt alone was not asked")
        if not (prompt_reply.prompt_tokens and reply.prompt_tokens):
            return ServiceError(f"{self._chat.server} returned no prompt_logprobs this time")
        try:
            tokens = reply_tokens(prompt_reply.prompt_tokens, reply.prompt_tokens)
        except ValueError as error:
            return ServiceError(f"{subject}: {error}")
        return self._record(probe, **text_fields(tokens, every_token=bool(probe.images)))

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
            may_be_empty=True,
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

    def _can_score_text(self) -> bool:
        """Return whether the server returns log-probabilities of a given text."""
        if self.spec.prompt_logprobs is False:
            return False
        problem = f"{self._chat.server} scores no given texts for {self.spec.model}"
        (reply,) = self._chat.ask([_score_request(_TRIAL)], ImageStore(Path()))
        if isinstance(reply, Exception):
            problem += f" ({reply})"
        elif reply.prompt_tokens:
            reason = self._fetch_label_ids(set(_TRIAL_LETTERS))
            if not reason:
                return True
            problem += f" ({reason})"
        if self.spec.prompt_logprobs:
            raise PrerequisiteError(
                f"{problem}; set prompt_logprobs: null, and leave out detectors that read"
                " likelihoods"
            )
        log.info("%s: detectors that read likelihoods do not apply", problem)
        return False

    def _fetch_label_ids(self, labels: set[str]) -> Exception | None:
        """Ask for the tokens of labels as replies; return why one of them stays unknown."""
        unknown_labels = sorted(labels - self._label_ids.keys())
        if not unknown_labels:
            return None
        requests = [
            _score_request(_TRIAL),
            *(_score_request(_TRIAL, reply=label) for label in unknown_labels),
        ]
        prompt_reply, *replies = self._chat.ask(requests, ImageStore(Path()))
        reason: Exception | None = None
        for label, reply in zip(unknown_labels, replies, strict=True):
            failed = next((r for r in (prompt_reply, reply) if isinstance(r, Exception)), None)
            if isinstance(prompt_reply, ChatReply) and isinstance(reply, ChatReply):
                try:
                    tokens = reply_tokens(prompt_reply.prompt_tokens, reply.prompt_tokens)
                    self._label_ids[label] = tuple(t.id for t in tokens if t.id is not None)
                except ValueError as error:
                    failed = error
            reason = reason or failed
        return reason

    def _can_name_tokens(self) -> bool:
        """Return whether the server returns log-probabilities of the tokens that are named."""
        ids = tuple(self._label_ids[letter][0] for letter in _TRIAL_LETTERS)
        if len(set(ids)) < len(ids):
            return False
        request = ChatRequest("", _TRIAL, max_tokens=1, top_log_probs=1, token_ids=ids)
        (reply,) = self._chat.ask([request], ImageStore(Path()))
        return isinstance(reply, ChatReply) and None not in by_id(reply.first_tokens, ids)


def _score_request(prompt: str, images: tuple[ImageRef, ...] = (), reply: str = "") -> ChatRequest:
    """Return the request for the log-probabilities of a prompt, and of a reply's beginning."""
    return ChatRequest("", prompt, images, max_tokens=1, reply=reply, prompt_log_probs=True)


def _labels(probe: Probe) -> Sequence[str]:
    return split_labels(probe.labels)[: probe.n_options]


def resolve_reference(model: str, base_url: str = "") -> str | APIVLM:
    """Return ``model`` if it is a folder or shipped with flipbench, else the server's."""
    is_local = model.startswith(PACKAGED) or Path(model).is_dir()
    return model if is_local or not base_url else serve_model(model, base_url)


def serve_model(model: str, base_url: str) -> APIVLM:
    """Return a model behind an OpenAI-compatible server.

    OPENAI_API_KEY is sent to the server if it is set. For limits, prices or another key use a
    configuration (``models.NAME.api``).
    """
    key = "OPENAI_API_KEY"
    try:
        spec = ServedModelConfig(
            model=model, base_url=base_url, api_key_env=key if os.environ.get(key) else None
        )
    except ValidationError as error:
        raise ConfigError(f"--base-url {base_url}: {error.errors()[0]['msg']}") from error
    return APIVLM(spec)

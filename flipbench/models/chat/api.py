"""A chat model behind any OpenAI-compatible server: OpenAI, Azure, vLLM, SGLang, LiteLLM."""

from __future__ import annotations

import json
import logging
import os
import re
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from flipbench.config.chat import ChatSpec
from flipbench.core.errors import FlipbenchError, PrerequisiteError, ServiceError, need
from flipbench.core.images import ImageStore
from flipbench.core.records import JsonDict
from flipbench.models.chat.cost import Spent as Spent
from flipbench.models.chat.messages import ChatReply, ChatRequest, read_reply
from flipbench.models.chat.rate_limit import RateLimiter

log = logging.getLogger(__name__)
_OPTIONAL = (
    "temperature",
    "max_tokens",
    "max_completion_tokens",
    "seed",
    "reasoning_effort",
    "response_format",
)
_NOT_TAKEN = re.compile(
    r"unsupported|not support|unrecognized|unknown|not permitted|not allowed|unexpected|extra"
    r" inputs|deprecated",
    re.IGNORECASE,
)
_LOG_PROBS = re.compile(r"log.?prob", re.IGNORECASE)
_MODERATED = re.compile(r"moderat|content.?(?:policy|filter)|safety", re.IGNORECASE)
_N_MODELS_NAMED = 20


class ChatAPI:
    """Ask a chat model over HTTP, several requests at a time.

    A parameter that the server does not take is left out from then on (``max_tokens`` becomes
    ``max_completion_tokens`` and the other way round), and every reply's usage says what was
    really sent. The key is read from the environment, and stands in no message, log or record.

    Parameters
    ----------
    spec : ChatSpec
        Model, server, limits and prices.

    Attributes
    ----------
    spent : Spent
        What it has cost so far, replies of no use included.
    client : openai.OpenAI
        The package's own client.
    errors : type
        What that client raises, for `explain`.
    answered : bool
        Whether the server has ever answered: one that never did is not there.

    Raises
    ------
    PrerequisiteError
        Where the openai package or the key is missing.
    """

    def __init__(self, spec: ChatSpec) -> None:
        self.spec = spec
        self.name = spec.model
        self.settings = spec.settings
        self.spent = Spent()
        self._openai = need("openai", "api")
        self.errors: type[Exception] = self._openai.OpenAIError
        self._key = _key(spec)
        self.client: Any = self._openai.OpenAI(
            api_key=self._key,
            base_url=spec.base_url,
            timeout=spec.timeout,
            max_retries=spec.max_retries,
        )
        self._limiter = RateLimiter(spec.requests_per_minute, spec.tokens_per_minute)
        self._not_taken: set[str] = set()
        self.answered = False
        self._lock = threading.Lock()

    def ask(
        self, requests: Sequence[ChatRequest], images: ImageStore
    ) -> list[ChatReply | Exception]:
        """Answer a batch, in order.

        What would hit every request (a refused key, an unknown model, no server) ends the batch:
        requests that were not sent by then get that very `PrerequisiteError`.
        """
        stop: list[PrerequisiteError] = []

        def answer(request: ChatRequest) -> ChatReply | Exception:
            if stop:
                return stop[0]
            try:
                result = self._answer(request, images)
            except FlipbenchError as error:
                return error
            if isinstance(result, PrerequisiteError):
                stop.append(result)
            return result

        n_threads = max(1, min(self.spec.n_concurrent, len(requests)))
        pool = ThreadPoolExecutor(n_threads, thread_name_prefix="chat")
        try:
            return list(pool.map(answer, requests))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def body(self, request: ChatRequest, images: ImageStore) -> JsonDict:
        """Return the request as JSON, without parameters that the server does not take.

        Raises
        ------
        DataError
            Where an image is gone or damaged.
        """
        messages = request.messages(images, self.spec.detail)
        return {"model": self.spec.model, "messages": messages, **self.parameters(request)}

    def parameters(self, request: ChatRequest) -> JsonDict:
        """Return what is sent beside model and messages."""
        spec, reasoning = self.spec, self.spec.traits.reasoning
        limits = ["max_completion_tokens", "max_tokens"]
        if not reasoning:
            limits.reverse()
        chosen: JsonDict = {
            "temperature": None if reasoning else spec.temperature,
            "seed": spec.seed,
            "reasoning_effort": spec.reasoning_effort,
        }
        with self._lock:
            taken = [name for name in limits if name not in self._not_taken]
            chosen |= {name: request.limit(spec) for name in taken[:1]}
            if request.top_log_probs:
                chosen |= {"logprobs": True, "top_logprobs": request.top_log_probs}
            if request.schema is not None and spec.structured:
                chosen["response_format"] = _response_format(request)
            return {
                name: value
                for name, value in chosen.items()
                if value is not None and name not in self._not_taken
            }

    def drop(self, problem: Any, sent: JsonDict) -> bool:
        """Learn from a "bad request" which parameter the server does not take.

        Parameters
        ----------
        problem : dict
            The error as JSON: message, code, param.
        sent : dict
            The parameters that were sent.

        Returns
        -------
        bool
            Whether the request is worth sending again without it.
        """
        if not isinstance(problem, dict):
            return False
        message = str(problem.get("message") or "")
        if "logprobs" in sent and _LOG_PROBS.search(f"{problem.get('param')} {message}"):
            return self._leave_out("logprobs", "top_logprobs", why=f" ({message[:200]})")
        about = f"{problem.get('code') or ''} {message}".replace("_", " ")
        param = str(problem.get("param") or "").split(".")[0].split("[")[0]
        named = [param] if param in _OPTIONAL else _named_in(message)
        rejected = [name for name in named if name in sent]
        # a schema is refused in many words; the reply is read without one just as well
        if not rejected or not (_NOT_TAKEN.search(about) or rejected[0] == "response_format"):
            return False
        return self._leave_out(rejected[0])

    def count(self, usage: JsonDict) -> None:
        """Add a reply's usage to what was spent."""
        with self._lock:
            self.spent.add(usage)

    def explain(self, error: Any) -> PrerequisiteError | ServiceError:
        """Return an error of the openai package as one of ours, without the key.

        Errors that would hit every request become `PrerequisiteError`.
        """
        api, server = self._openai, self.server
        status = getattr(error, "status_code", None)
        code = str(getattr(error, "code", None) or "")
        said = self._said(error)
        variable = self.spec.api_key_env
        if status == 401:
            return PrerequisiteError(
                f"{server} refuses the key in {variable} (401); set {variable} to a valid key"
                if variable
                else f"{server} wants a key (401); name its environment variable in api_key_env"
            )
        if status == 403 and not _MODERATED.search(said):
            return PrerequisiteError(
                f"{server} does not let this key use {self.spec.model} (403): {said}"
            )
        if status == 404 or code == "model_not_found":
            return PrerequisiteError(self._no_model())
        if code == "insufficient_quota":
            return PrerequisiteError(f"{server}: the account's quota is used up (429): {said}")
        if isinstance(error, api.APITimeoutError):
            return ServiceError(
                f"{server} did not answer within {self.spec.timeout:g} s,"
                f" {self.spec.max_retries + 1} times; raise timeout or lower n_concurrent"
            )
        if isinstance(error, api.APIConnectionError):
            message = f"{server} cannot be reached: {said}"
            if self.answered:
                return ServiceError(message)
            return PrerequisiteError(f"{message}; start it, or correct base_url")
        return ServiceError(f"{server} answered {status or type(error).__name__}: {said}")

    @property
    def server(self) -> str:
        """The server's host, and port if it has one."""
        return str(self.client.base_url.netloc.decode())

    def _answer(self, request: ChatRequest, images: ImageStore) -> ChatReply | Exception:
        api = self._openai
        messages = request.messages(images, self.spec.detail)
        for _ in _OPTIONAL:
            parameters = self.parameters(request)
            cost = sum(request.n_tokens(self.spec)) + request.limit(self.spec)
            self._limiter.wait(1, cost)
            try:
                raw = self.client.chat.completions.with_raw_response.create(
                    model=self.spec.model, messages=messages, **parameters
                )
                body = raw.http_response.json()
            except (
                api.BadRequestError,
                api.UnprocessableEntityError,
                api.PermissionDeniedError,  # so OpenAI refuses log-probabilities
            ) as error:
                if self.drop(_problem(error), parameters):
                    continue
                return self.explain(error)
            except api.OpenAIError as error:
                return self.explain(error)
            except ValueError as error:
                return ServiceError(f"{self.server} answered with broken JSON ({error})")
            self.answered = True
            reply, usage = read_reply(body, self.spec, request, sent_of(parameters))
            usage |= {"server": self.server, "n_retries": raw.retries_taken}
            if raw.request_id:
                usage["request_id"] = raw.request_id
            self.count(usage)
            return replace(reply, usage=usage) if isinstance(reply, ChatReply) else reply
        return ServiceError(f"{self.server} takes none of the parameters {', '.join(_OPTIONAL)}")

    def _leave_out(self, *names: str, why: str = "") -> bool:
        with self._lock:
            if not self._not_taken.issuperset(names):
                self._not_taken.update(names)
                log.warning("%s does not take %s%s; going on without", self.name, names[0], why)
        return True

    def _said(self, error: Any) -> str:
        """Return what the server said, on one line, the key cut out."""
        problem = _problem(error)
        text = problem["message"] if isinstance(problem, dict) else None
        cause = getattr(error, "__cause__", None)
        text = str(text or getattr(error, "message", "") or error)
        text = f"{text} ({cause})" if cause else text
        if self._key and len(self._key) > 4:
            text = text.replace(self._key, "***")
        text = re.sub(r"\b(sk|key)-[\w*-]{4,}", "***", text)  # some echo a part of it
        return " ".join(text.split())[:300]

    def _no_model(self) -> str:
        """Say which models the server offers, or that the address is wrong."""
        try:
            offered = sorted(str(model.id) for model in self.client.models.list())
        except (self._openai.OpenAIError, ValueError, TypeError):
            offered = []
        if not offered:
            return (
                f"{self.server} knows no model {self.spec.model!r} and lists none (404); check"
                " model and base_url (it usually ends in /v1)"
            )
        close = ", ".join(offered[:_N_MODELS_NAMED])
        more = f" and {len(offered) - _N_MODELS_NAMED} more" if len(offered) > 20 else ""
        return f"{self.server} has no model {self.spec.model!r}; it offers {close}{more}"


def sent_of(parameters: JsonDict) -> JsonDict:
    """Return parameters for a record: a schema by its name only."""
    kept = dict(parameters)
    if "response_format" in kept:
        kept["response_format"] = kept["response_format"]["json_schema"]["name"]
    return kept


def _key(spec: ChatSpec) -> str:
    if spec.api_key_env is None:
        return "none"
    key = os.environ.get(spec.api_key_env, "").strip()
    if not key:
        raise PrerequisiteError(
            f"{spec.model}: the environment variable {spec.api_key_env} holds no key; set it, or"
            " set api_key_env: null for a server that wants none"
        )
    return key


def _response_format(request: ChatRequest) -> JsonDict:
    schema = request.schema
    assert schema is not None
    form = {"name": schema.__name__, "schema": schema.model_json_schema(), "strict": True}
    return {"type": "json_schema", "json_schema": form}


def _problem(error: Any) -> JsonDict | None:
    """Return the error as the server put it, or None.

    OpenAI says ``{"error": {"message": ...}}``, which the package unwraps in part; servers built
    on FastAPI say ``{"detail": ...}``.
    """
    body = getattr(error, "body", None)
    told = body.get("error", body) if isinstance(body, dict) else body
    if isinstance(told, str):
        return {"message": told}
    if not isinstance(told, dict):
        return None
    message = told.get("message") or told.get("detail") or ""
    return told | {"message": message if isinstance(message, str) else json.dumps(message)}


def _named_in(message: str) -> list[str]:
    found = [(m.start(), n) for n in _OPTIONAL if (m := re.search(rf"\b{n}\b", message))]
    # "max_tokens is not supported; use max_completion_tokens instead" names both
    return [name for _, name in sorted(found)]

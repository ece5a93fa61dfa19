"""Chat models behind any OpenAI-compatible server: OpenAI, Azure, vLLM, SGLang, LiteLLM."""

from __future__ import annotations

import json
import logging
import os
import re
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

from pydantic import BaseModel

from flipbench.config.chat import ChatSpec
from flipbench.core.errors import FlipbenchError, PrerequisiteError, ServiceError, need
from flipbench.core.images import ImageStore
from flipbench.core.records import JsonDict
from flipbench.models.chat.bounds import REDIRECTED, RateLimiter, close_with, limited_client, run
from flipbench.models.chat.cost import Spent
from flipbench.models.chat.log_probs import EXTENSIONS
from flipbench.models.chat.messages import ChatReply, ChatRequest, read_reply
from flipbench.models.chat.scrubbing import Scrubber, parse

log = logging.getLogger(__name__)
_OPTIONAL = (
    "temperature",
    "max_tokens",
    "max_completion_tokens",
    "seed",
    "reasoning_effort",
    "response_format",
)
_REJECTED = re.compile(
    r"unsupported|not support|unrecognized|unknown|not permitted|not allowed|unexpected|extra"
    r" inputs|deprecated",
    re.IGNORECASE,
)
_LOG_PROBS = re.compile(r"log.?prob", re.IGNORECASE)
_MODERATED = re.compile(r"moderat|content.?(?:policy|filter)|safety", re.IGNORECASE)
_MAX_MODELS_LISTED = 20
ODD_REPLY = (AttributeError, KeyError, RecursionError, TypeError, ValueError)
"""What the openai package raises, besides its own errors, if a reply has an odd form."""


class ChatAPI:
    """Ask a chat model over HTTP, with several requests at a time.

    It connects on first use, so that a finished run needs no key.

    A parameter that the server rejects is omitted from then on (``max_tokens`` is replaced by
    ``max_completion_tokens`` and vice versa), and every reply's usage records the parameters that
    were sent. The key is read from the environment and appears in no message, log or record, even
    if the server sends it back. A reply of an odd form is a failure of its request alone.

    ``spent`` is the cost so far, including that of unusable replies, and ``answered`` whether the
    server has ever answered; one that never did is assumed to be down.
    """

    def __init__(self, spec: ChatSpec) -> None:
        self.spec = spec
        self.name = spec.model
        self.settings = spec.settings
        self.spent = Spent()
        self._limiter = RateLimiter(spec.requests_per_minute, spec.tokens_per_minute)
        self._rejected: set[str] = set()
        self.answered = False
        self._lock = threading.Lock()

    @cached_property
    def openai(self) -> Any:
        """The openai package."""
        return need("openai", "api")

    @cached_property
    def client(self) -> Any:
        """The openai package's asynchronous client."""
        client = self.openai.AsyncOpenAI(
            api_key=_key(self.spec),
            base_url=self.spec.base_url,
            timeout=self.spec.timeout,
            max_retries=self.spec.max_retries,
            http_client=limited_client(),
        )
        close_with(self, client)
        return client

    @cached_property
    def scrub(self) -> Scrubber:
        """Removes the key from what the server sends."""
        scrubber = Scrubber(self.client.api_key)
        scrubber.guard_logs()
        return scrubber

    def ask(
        self, requests: Sequence[ChatRequest], images: ImageStore
    ) -> list[ChatReply | Exception]:
        """Answer a batch, in order.

        An error that would affect every request (a refused key, an unknown model, no server) ends
        the batch: requests not yet sent get the same `PrerequisiteError`.
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

        _ = self.scrub  # with the client, built once, before the threads
        n_threads = max(1, min(self.spec.n_concurrent, len(requests)))
        pool = ThreadPoolExecutor(n_threads, thread_name_prefix="chat")
        try:
            return list(pool.map(answer, requests))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def body(self, request: ChatRequest, images: ImageStore) -> JsonDict:
        """Return the request as JSON, without parameters that the server rejects."""
        messages = request.messages(images, self.spec.detail)
        return {"model": self.spec.model, "messages": messages, **self.parameters(request)}

    def parameters(self, request: ChatRequest) -> JsonDict:
        """Return what is sent besides model and messages."""
        spec, reasoning = self.spec, self.spec.traits.reasoning
        limits = ["max_completion_tokens", "max_tokens"]
        if not reasoning:
            limits.reverse()
        parameters: JsonDict = {
            "temperature": None if reasoning else _coalesce(request.temperature, spec.temperature),
            "seed": _coalesce(request.seed, spec.seed),
            "reasoning_effort": spec.reasoning_effort,
        }
        with self._lock:
            limit_names = [name for name in limits if name not in self._rejected]
            parameters |= {name: request.limit(spec) for name in limit_names[:1]}
            if request.top_log_probs:
                parameters |= {"logprobs": True, "top_logprobs": request.top_log_probs}
            if request.schema is not None and spec.structured:
                parameters["response_format"] = _response_format(request.schema)
            supported = {
                name: value
                for name, value in parameters.items()
                if value is not None and name not in self._rejected
            }
        return supported | request.extensions

    def drop_rejected(self, problem: Any, parameters: JsonDict) -> bool:
        """Find the parameter that caused a "bad request", and omit it from now on.

        ``problem`` is the error as JSON (message, code, param). Returns whether one was found, so
        that the request can be sent again. One with vLLM's extensions means nothing without them,
        and is never changed.
        """
        if not isinstance(problem, dict) or parameters.keys() & EXTENSIONS:
            return False
        message = str(problem.get("message") or "")
        if "logprobs" in parameters and _LOG_PROBS.search(f"{problem.get('param')} {message}"):
            reason = f" ({self.scrub.error(message)})"
            return self._omit_parameters("logprobs", "top_logprobs", reason=reason)
        about = f"{problem.get('code') or ''} {message}".replace("_", " ")
        param = str(problem.get("param") or "").split(".")[0].split("[")[0]
        names = [param] if param in _OPTIONAL else _parameters_in(message)
        rejected = [name for name in names if name in parameters]
        # errors about schemas are worded in many ways, and replies can be parsed without one
        if not rejected or not (_REJECTED.search(about) or rejected[0] == "response_format"):
            return False
        return self._omit_parameters(rejected[0])

    def count(self, usage: JsonDict) -> None:
        """Add a reply's usage to `spent`."""
        with self._lock:
            self.spent.add(usage)

    def explain(self, error: Any) -> PrerequisiteError | ServiceError:
        """Translate an error of the openai package into one of ours, without the key.

        Errors that would affect every request become `PrerequisiteError`.
        """
        api, server = self.openai, self.server
        status = getattr(error, "status_code", None)
        code = getattr(error, "code", None)
        reason = self._reason(error)
        variable = self.spec.api_key_env
        if status == 401:
            return PrerequisiteError(
                f"{server} rejects the key in {variable} (401); set {variable} to a valid key"
                if variable
                else f"{server} needs a key (401); set api_key_env to its environment variable"
            )
        if status == 403 and not _MODERATED.search(reason):
            return PrerequisiteError(
                f"{server} does not allow this key to use {self.spec.model} (403): {reason}"
            )
        if status == REDIRECTED:
            return PrerequisiteError(reason)
        if status == 404 or code == "model_not_found":
            return PrerequisiteError(self._no_model())
        if code == "insufficient_quota":
            return PrerequisiteError(f"{server}: the account's quota is used up (429): {reason}")
        if isinstance(error, api.APITimeoutError):
            return ServiceError(
                f"{server} did not answer within {self.spec.timeout:g} s,"
                f" {self.spec.max_retries + 1} times; raise timeout or lower n_concurrent"
            )
        if isinstance(error, api.APIConnectionError):
            message = f"{server} cannot be reached: {reason}"
            if self.answered:
                return ServiceError(message)
            return PrerequisiteError(f"{message}; start it, or fix base_url")
        return ServiceError(f"{server} answered {status or type(error).__name__}: {reason}")

    @property
    def server(self) -> str:
        """The server's host, and port if it has one."""
        return str(self.client.base_url.netloc.decode())

    def _answer(self, request: ChatRequest, images: ImageStore) -> ChatReply | Exception:
        api = self.openai
        messages = request.messages(images, self.spec.detail)
        for _ in _OPTIONAL:
            parameters = self.parameters(request)
            cost = sum(request.n_tokens(self.spec)) + request.limit(self.spec)
            self._limiter.wait(1, cost)
            try:
                raw = run(
                    self.client.chat.completions.with_raw_response.create(
                        model=self.spec.model,
                        messages=messages,
                        extra_body=request.extensions or None,
                        **{k: v for k, v in parameters.items() if k not in EXTENSIONS},
                    )
                )
                body = self.scrub.json(parse(raw.http_response.content))
            except (
                api.BadRequestError,
                api.UnprocessableEntityError,
                api.PermissionDeniedError,  # OpenAI's response to a request for log-probabilities
            ) as error:
                if self.drop_rejected(_error_body(error), parameters):
                    continue
                return self.explain(error)
            except api.OpenAIError as error:
                return self.explain(error)
            except ODD_REPLY as error:
                reason = self.scrub.error(str(error))
                return ServiceError(f"{self.server} answered with invalid JSON ({reason})")
            self.answered = True
            reply, usage = read_reply(body, self.spec, request, recorded(parameters))
            # the reply has this very dict
            usage |= {"server": self.server, "n_retries": raw.retries_taken}
            if raw.request_id:
                usage["request_id"] = self.scrub.text(raw.request_id)
            self.count(usage)
            return reply
        return ServiceError(f"{self.server} rejects all of {', '.join(_OPTIONAL)}")

    def _omit_parameters(self, *names: str, reason: str = "") -> bool:
        with self._lock:
            if not self._rejected.issuperset(names):
                self._rejected.update(names)
                log.warning(
                    "%s does not support %s%s; continuing without", self.name, names[0], reason
                )
        return True

    def _reason(self, error: Any) -> str:
        """Return the server's message on one line, with the key removed."""
        problem = _error_body(error)
        text = problem["message"] if isinstance(problem, dict) else None
        cause = getattr(error, "__cause__", None)
        text = str(text or getattr(error, "message", "") or error)
        return self.scrub.error(f"{text} ({cause})" if cause else text)

    def _no_model(self) -> str:
        """Return a message that lists the server's models, or suggests to check the address."""
        try:
            page = run(self.client.models.list())
            offered = sorted(self.scrub.error(str(model.id)) for model in page.data)
        except (self.openai.OpenAIError, *ODD_REPLY):
            offered = []
        if not offered:
            return (
                f"{self.server} has no model {self.spec.model!r} and lists none (404); check model"
                " and base_url (it usually ends in /v1)"
            )
        models = ", ".join(offered[:_MAX_MODELS_LISTED])
        if (n_more := len(offered) - _MAX_MODELS_LISTED) > 0:
            models += f" and {n_more} more"
        return f"{self.server} has no model {self.spec.model!r}; it offers {models}"


def recorded(parameters: JsonDict) -> JsonDict:
    """Return parameters as stored in a record, with a schema by its name only."""
    if "response_format" not in parameters:
        return parameters
    name = parameters["response_format"]["json_schema"]["name"]
    return parameters | {"response_format": name}


def _coalesce(value: Any, default: Any) -> Any:
    return default if value is None else value


def _key(spec: ChatSpec) -> str:
    if spec.api_key_env is None:
        return "none"
    key = os.environ.get(spec.api_key_env, "").strip()
    if not key:
        raise PrerequisiteError(
            f"{spec.model}: the environment variable {spec.api_key_env} is not set; set it, or"
            " set api_key_env: null for a server that needs no key"
        )
    return key


def _response_format(schema: type[BaseModel]) -> JsonDict:
    form = {"name": schema.__name__, "schema": schema.model_json_schema(), "strict": True}
    return {"type": "json_schema", "json_schema": form}


def _error_body(error: Any) -> JsonDict | None:
    """Return the error in the server's response, or None.

    OpenAI sends ``{"error": {"message": ...}}``, which the package unwraps in part; servers built
    on FastAPI send ``{"detail": ...}``, and Gemini's a list of one such object.
    """
    body = getattr(error, "body", None)
    if isinstance(body, list) and body:
        body = body[0]
    problem = body.get("error", body) if isinstance(body, dict) else body
    if isinstance(problem, str):
        return {"message": problem}
    if not isinstance(problem, dict):
        return None
    message = problem.get("message") or problem.get("detail") or ""
    if not isinstance(message, str):
        try:
            message = json.dumps(message)
        except RecursionError:
            message = "an error nested too deeply"
    details = {name: problem.get(name) for name in ("code", "param")}
    return {
        "message": message,
        **{name: value for name, value in details.items() if isinstance(value, str | int)},
    }


def _parameters_in(message: str) -> list[str]:
    places = [(m.start(), n) for n in _OPTIONAL if (m := re.search(rf"\b{n}\b", message))]
    # "max_tokens is not supported; use max_completion_tokens instead" names both
    return [name for _, name in sorted(places)]

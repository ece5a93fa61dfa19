"""Requests to chat models and their replies, whatever the backend."""

from __future__ import annotations

import base64
import contextlib
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from flipbench.config.chat import ChatSpec, image_tokens
from flipbench.core.errors import DataError, ServiceError, result_or_error
from flipbench.core.images import ImageStore, open_image, png_bytes
from flipbench.core.records import ImageRef, JsonDict, content_id
from flipbench.models.chat.log_probs import INVALID, PromptToken, most_likely, prompt_tokens
from flipbench.prompting.wrappers import answer_text, split_wrapped

Schema = TypeVar("Schema", bound=BaseModel)
_MIME = {"png": "image/png", "jpg": "image/jpeg", "webp": "image/webp"}
_ORIENTATION = 0x0112
_BROKEN_OFF = ("error", "abort")  # of routers; of vLLM and SGLang
_CHARACTERS_PER_TOKEN = 4
_MOST_CHARACTERS_PER_TOKEN = 200  # of a run of spaces or dashes
_MOST_CHARACTERS = 20_000
Task = TypeVar("Task")
Result = TypeVar("Result")


@dataclass(frozen=True)
class ChatRequest:
    """One question to a chat model: ``text`` after the images.

    Attributes
    ----------
    instruction : str
        The system message, the same for every item so that servers can cache it; empty: none.
    schema : type of pydantic model, optional
        The format of the reply, for servers with structured output.
    item_id : str
        Seeds a local model's sampling.
    max_tokens : int, optional
        Limit of the visible reply, instead of the model's setting. With it, a reply that is cut
        off or a refusal is a valid answer; without it, such a reply is a failure. An empty reply
        is always one, unless it ``may_be_empty``, as of a trial.
    top_log_probs, token_ids
        Number of most likely tokens whose log-probabilities to return at each position, or these.
    temperature, seed : optional
        Instead of the settings of a model behind a server.
    reply : str
        The beginning of the reply; the prompt ends with it.
    prompt_log_probs : bool
        Whether to return the log-probabilities of the prompt's tokens, and no text.
    """

    instruction: str
    text: str
    images: tuple[ImageRef, ...] = ()
    schema: type[BaseModel] | None = None
    item_id: str = ""
    max_tokens: int | None = None
    top_log_probs: int = 0
    temperature: float | None = None
    seed: int | None = None
    reply: str = ""
    prompt_log_probs: bool = False
    token_ids: tuple[int, ...] = ()
    may_be_empty: bool = False

    def id(self, settings: JsonDict) -> str:
        """Return a hash of the request and of the settings it is sent with."""
        schema = self.schema.model_json_schema() if self.schema else None
        images = [ref.sha256 for ref in self.images]
        optional = [
            ((self.max_tokens, self.top_log_probs), (None, 0)),
            ((self.temperature, self.seed), (None, None)),
            ((self.reply, self.prompt_log_probs, self.token_ids), ("", False, ())),
        ]
        extras = [value for values, defaults in optional if values != defaults for value in values]
        return content_id("chat", settings, self.instruction, self.text, images, schema, *extras)

    def limit(self, spec: ChatSpec) -> int:
        """Return the most tokens the reply may cost, including hidden reasoning."""
        return spec.limit if self.max_tokens is None else self.max_tokens + spec.reasoning_budget

    def messages(self, images: ImageStore, detail: str = "auto") -> list[JsonDict]:
        """Return the messages of the chat protocol: instruction, images, item."""
        parts: list[JsonDict] = []
        for ref in self.images:
            url: JsonDict = {"url": data_url(ref, images)}
            if detail != "auto":
                url["detail"] = detail
            parts.append({"type": "image_url", "image_url": url})
        parts.append({"type": "text", "text": self.text})
        system = [{"role": "system", "content": self.instruction}] if self.instruction else []
        reply = [{"role": "assistant", "content": self.reply}] if self.reply else []
        return [*system, {"role": "user", "content": parts}, *reply]

    @property
    def extensions(self) -> JsonDict:
        """VLLM's parameters beyond OpenAI's protocol that the request needs."""
        parameters: JsonDict = {}
        if self.reply:
            parameters |= {"continue_final_message": True, "add_generation_prompt": False}
        if self.prompt_log_probs:
            parameters["prompt_logprobs"] = 0  # the prompt's own tokens alone
        if self.token_ids:
            parameters |= {
                "logprob_token_ids": [*self.token_ids],
                "return_tokens_as_token_ids": True,
            }
        return parameters

    def n_tokens(self, spec: ChatSpec) -> tuple[int, int]:
        """Estimate the request's tokens of text and of images."""
        n_text = -(-len(self.instruction + self.text + self.reply) // _CHARACTERS_PER_TOKEN)
        n_image = sum(
            image_tokens(r.width, r.height, spec.traits, spec.detail) for r in self.images
        )
        return n_text, n_image


@dataclass(frozen=True)
class ChatReply:
    """A reply, its usage, and its parsed content if it conforms to the schema.

    ``first_tokens`` are the most likely first tokens and their log-probabilities in nats,
    ``token_log_probs`` the log-probability of each token and of the most likely ones at its
    position, and ``prompt_tokens`` those of the prompt, each if requested and returned.
    ``reasoned`` is whether reasoning, which ``text`` leaves out, came first; ``cut_off`` whether it
    ends at its limit of tokens.
    """

    text: str
    usage: JsonDict = field(default_factory=dict)
    parsed: BaseModel | None = None
    first_tokens: tuple[tuple[str, float], ...] = ()
    token_log_probs: tuple[tuple[float, tuple[float, ...]], ...] = ()
    reasoned: bool = False
    prompt_tokens: tuple[PromptToken, ...] = ()
    cut_off: bool = False


class Chat(Protocol):
    """A chat model that accepts images.

    Attributes
    ----------
    name : str
        Its name in records and tables.
    settings : dict
        Everything besides the request that its replies depend on.
    """

    name: str
    settings: JsonDict

    def ask(
        self, requests: Sequence[ChatRequest], images: ImageStore
    ) -> Sequence[ChatReply | Exception]:
        """Answer a batch, in order; an exception is a failure of that request alone."""


def ask_each(
    chat: Chat,
    tasks: Sequence[Task],
    images: ImageStore,
    request: Callable[[Task], ChatRequest],
    parse: Callable[[Task, ChatReply], Result | Exception],
) -> list[Result | Exception]:
    """Ask about each task and return what ``read`` makes of the replies, in order.

    A `DataError` in ``request``, or a request that fails, is the result of its task alone.
    """
    requests = [result_or_error(request, task) for task in tasks]
    replies = iter(chat.ask([r for r in requests if isinstance(r, ChatRequest)], images))
    answers = [r if isinstance(r, DataError) else next(replies) for r in requests]
    return [
        answer if isinstance(answer, Exception) else parse(task, answer)
        for task, answer in zip(tasks, answers, strict=True)
    ]


def data_url(ref: ImageRef, images: ImageStore) -> str:
    """Return an image as a data URL.

    PNG, JPEG and WebP are sent as stored; other formats, and images rotated by EXIF, are sent as
    upright PNG, so that the model sees the same image as flipbench.
    """
    mime = _MIME.get(ref.format)
    data = images.read(ref)
    if mime is None or _is_rotated(data):
        mime, data = "image/png", png_bytes(images.open(ref))
    return f"data:{mime};base64,{base64.b64encode(data).decode()}"


def json_object(text: str) -> str:
    """Return the JSON object in a reply, which may stand in a sentence or a code fence; or "".

    >>> json_object('Sure: {"choice": "B"}.')
    '{"choice": "B"}'
    """
    begin, end = text.find("{"), text.rfind("}") + 1
    return text[begin:end] if 0 <= begin < end else ""


def read_json(text: str, schema: type[Schema]) -> Schema | None:
    """Return the JSON object in a reply, or None if it does not conform to the schema."""
    with contextlib.suppress(ValidationError):
        return schema.model_validate_json(json_object(text))
    return None


def read_reply(
    body: Any,
    spec: ChatSpec,
    request: ChatRequest,
    parameters: JsonDict,
    *,
    price_factor: float = 1.0,
) -> tuple[ChatReply | ServiceError, JsonDict]:
    """Read a chat completion, whatever the server sent.

    Parameters
    ----------
    parameters : dict
        What was sent besides model and messages.
    price_factor : float
        Fraction of the regular price.

    Returns
    -------
    reply : ChatReply or ServiceError
        An error if it is not a chat completion or has no text, or if the model refused or was cut
        off; for a request with its own ``max_tokens``, the latter only if the reply ends within the
        model's reasoning.
    usage : dict
        Its cost and origin, even if the reply is an error; empty if it is not a chat completion.
    """
    try:
        _Completion.model_validate(body)
    except ValidationError as error:
        place = [str(part) for part in error.errors()[0]["loc"] if part not in _UNION_TYPES]
        odd = f"; {'.'.join(place)} is malformed" if place else ""
        problem = f"the server's reply is not a chat completion: {_excerpt(body)}{odd}"
        return ServiceError(problem), {}
    usage = _usage(body, spec, request, parameters, price_factor)
    if not body["choices"]:
        return ServiceError("the server's reply contains no choices"), usage
    choice = body["choices"][0]
    message, reason = choice["message"], choice.get("finish_reason")
    log_probs = (choice.get("logprobs") or {}).get("content")
    if reason == "content_filter":
        return ServiceError("the server's content filter stopped the reply"), usage
    if reason in _BROKEN_OFF:
        return ServiceError(f"the server broke off the reply (finish_reason: {reason})"), usage
    if request.prompt_log_probs:
        return _prompt_reply(body.get("prompt_logprobs"), usage), usage
    text = _visible_text(message.get("content")) or message.get("refusal") or ""
    limit = request.limit(spec)
    max_characters = _MOST_CHARACTERS + _MOST_CHARACTERS_PER_TOKEN * limit
    if len(text) > max_characters and not request.may_be_empty:
        return ServiceError(
            f"the server sent {len(text):,} characters, but was asked for at most {limit} tokens"
        ), usage
    if request.max_tokens is not None:
        return _answer(message, text, log_probs, reason, usage, spec, request), usage
    if message.get("refusal"):
        return ServiceError(f"the model refused: {_excerpt(message['refusal'])}"), usage
    reply = answer_text(text).strip()
    if reason == "length" and reply:
        return ServiceError(
            f"the reply was cut off after {usage.get('completion_tokens', spec.limit)} tokens;"
            " raise max_tokens (reasoning_tokens for a reasoning model)"
        ), usage
    if not reply:
        return ServiceError(_why_empty(message, text, reason, usage, spec, request)), usage
    return ChatReply(reply, usage, _parsed(reply, request.schema)), usage


def _answer(
    message: JsonDict,
    text: str,
    log_probs: Any,
    reason: Any,
    usage: JsonDict,
    spec: ChatSpec,
    request: ChatRequest,
) -> ChatReply | ServiceError:
    """Read the reply to a question, but never mistake reasoning for an answer."""
    try:
        tokens = [most_likely(token) for token in log_probs or []]
        log_p_reply = [float(token["logprob"]) for token in log_probs or []]
    except INVALID as error:
        return _invalid_log_probs(error)
    wrapped = split_wrapped(text)
    visible = wrapped.answer if wrapped.reasoning or not wrapped.finished else text
    is_hidden = bool(_has_reasoning(message) or usage.get("reasoning_tokens"))
    # one token is asked for its log-probabilities; it may well be a blank line
    matters = not (request.may_be_empty or (request.max_tokens == 1 and tokens and not is_hidden))
    if matters and (not visible.strip() or (reason == "length" and spec.traits.reasoning)):
        return ServiceError(_why_empty(message, text, reason, usage, spec, request))
    return ChatReply(
        visible,
        usage,
        reasoned=is_hidden or bool(wrapped.reasoning),
        first_tokens=tokens[0] if tokens else (),
        token_log_probs=tuple(
            (value, tuple(v for _, v in top))
            for value, top in zip(log_p_reply, tokens, strict=True)
        ),
        cut_off=reason == "length",
    )


def _why_empty(
    message: JsonDict,
    text: str,
    reason: Any,
    usage: JsonDict,
    spec: ChatSpec,
    request: ChatRequest,
) -> str:
    """Return why a reply has no answer, and the remedy."""
    n_tokens = usage.get("completion_tokens")
    tokens_used = f" ({n_tokens:g} tokens used)" if n_tokens else ""
    setting = "max_tokens" if request.max_tokens is None else "max_new_tokens"
    if spec.traits.reasoning:
        remedy = f"raise reasoning_tokens (now {spec.reasoning_tokens})"
    else:
        remedy = "set reasoning: true, which adds reasoning_tokens to the limit"
    if message.get("tool_calls") or message.get("function_call"):
        return f"the model called a tool and wrote no text{tokens_used}; serve it without tools"
    if _has_reasoning(message) or usage.get("reasoning_tokens") or split_wrapped(text).reasoning:
        return f"the reply may have ended within the model's reasoning{tokens_used}; {remedy}"
    if reason == "length":
        return (
            f"the reply was cut off at its limit of {request.limit(spec)} tokens, before any text;"
            f" raise {setting}, or if the model reasons first, {remedy}"
        )
    return (
        f"the model returned an empty text{tokens_used}; run the same command again; if it stays"
        f" empty and the model reasons first, {remedy}"
    )


def _prompt_reply(rows: Any, usage: JsonDict) -> ChatReply | ServiceError:
    try:
        return ChatReply("", usage, prompt_tokens=prompt_tokens(rows, usage.get("prompt_tokens")))
    except INVALID as error:
        return _invalid_log_probs(error)


def _invalid_log_probs(error: Exception) -> ServiceError:
    return ServiceError(f"the server's log-probabilities are invalid ({_excerpt(repr(error))})")


def _usage(
    body: JsonDict, spec: ChatSpec, request: ChatRequest, parameters: JsonDict, price_factor: float
) -> JsonDict:
    """Return a completion's costs and origin, for a record."""
    counts = body.get("usage") or {}
    prompt = counts.get("prompt_tokens_details") or {}
    completion = counts.get("completion_tokens_details") or {}
    n_prompt, n_completion = counts.get("prompt_tokens"), counts.get("completion_tokens")
    n_image = prompt.get("image_tokens")
    usd = spec.usd(n_prompt or 0, n_completion or 0)
    usage = {
        "model": body.get("model"),
        "prompt_tokens": n_prompt,
        "completion_tokens": n_completion,
        "cached_tokens": prompt.get("cached_tokens"),
        "reasoning_tokens": completion.get("reasoning_tokens"),
        "image_tokens": n_image,
        "image_tokens_estimated": request.n_tokens(spec)[1] if n_image is None else None,
        "cost_usd": None if usd is None or not counts else usd * price_factor,
        "system_fingerprint": body.get("system_fingerprint"),
        "completion_id": body.get("id"),
        "sent": parameters,
    }
    return {name: value for name, value in usage.items() if value is not None}


def _parsed(text: str, schema: type[BaseModel] | None) -> BaseModel | None:
    if schema is None:
        return None
    with contextlib.suppress(ValidationError):
        return schema.model_validate_json(text)
    return None


def _excerpt(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _is_rotated(data: bytes) -> bool:
    with contextlib.suppress(Exception), open_image(io.BytesIO(data)) as image:
        return int(image.getexif().get(_ORIENTATION, 1)) != 1
    return False


def _visible_text(content: Any) -> str:
    """Return a message's content, which some servers split into parts, without reasoning."""
    if not isinstance(content, list):
        return content or ""
    parts = [part for part in content if part.get("type") not in _REASONING_PARTS]
    return "".join(part.get("text") or "" for part in parts)


def _has_reasoning(message: JsonDict) -> bool:
    """Return whether a message has reasoning apart from its text."""
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    return any(message.get(name) for name in _REASONING) or any(
        part.get("type") in _REASONING_PARTS for part in parts
    )


_REASONING = ("reasoning_content", "reasoning", "reasoning_details", "thinking", "thoughts")
_REASONING_PARTS = ("thinking", "reasoning", "redacted_thinking", "thought")
_UNION_TYPES = ("str", "int", "list[_Part]")
_Count = Annotated[float, Field(ge=0, lt=2**63)] | None  # as files of records require
_Name = str | int | None


class _Checked(BaseModel):
    """A part of a chat completion, checked as it stands; the rest of it may be anything."""

    model_config = ConfigDict(strict=True)


class _Part(_Checked):
    text: str | None = None


class _Message(_Checked):
    content: str | list[_Part] | None = None
    refusal: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _says_something(cls, message: Any) -> Any:
        fields = ("content", "refusal", "tool_calls", "function_call", *_REASONING)
        if isinstance(message, dict) and not message.keys() & set(fields):
            raise ValueError("no text, and nothing in its place")
        return message


class _Choice(_Checked):
    message: _Message
    logprobs: JsonDict | None = None


class _Details(_Checked):
    cached_tokens: _Count = None
    reasoning_tokens: _Count = None
    image_tokens: _Count = None


class _Usage(_Checked):
    prompt_tokens: _Count = None
    completion_tokens: _Count = None
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None


class _Completion(_Checked):
    choices: list[_Choice]
    usage: _Usage | None = None
    model: _Name = None
    id: _Name = None
    system_fingerprint: _Name = None

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
        """Parameters that the request needs, of vLLM's beyond OpenAI's protocol."""
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
    """Ask about each task and return what ``parse`` makes of the replies, in order.

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
        completion = _Completion.model_validate(body)
    except ValidationError as error:
        place = [str(part) for part in error.errors()[0]["loc"] if part not in _UNION_TYPES]
        odd = f"; {'.'.join(place)} is malformed" if place else ""
        problem = f"the server's reply is not a chat completion: {_excerpt(body)}{odd}"
        return ServiceError(problem), {}
    usage = completion.costs(spec, request, price_factor) | {"sent": parameters}
    try:
        return _ReplyReader(completion, spec, request, usage).read(), usage
    except ServiceError as error:
        return error, usage


@dataclass(frozen=True)
class _ReplyReader:
    """Reads the reply in a completion; if there is none, that is a `ServiceError`."""

    completion: _Completion
    spec: ChatSpec
    request: ChatRequest
    usage: JsonDict

    def read(self) -> ChatReply:
        request, spec = self.request, self.spec
        if not self.completion.choices:
            raise ServiceError("the server's reply contains no choices")
        choice = self.completion.choices[0]
        message, reason = choice.message, choice.finish_reason
        if reason == "content_filter":
            raise ServiceError("the server's content filter stopped the reply")
        if reason in _BROKEN_OFF:
            raise ServiceError(f"the server broke off the reply (finish_reason: {reason})")
        try:
            if request.prompt_log_probs:
                n_tokens = self.usage.get("prompt_tokens")
                tokens = prompt_tokens(self.completion.prompt_logprobs, n_tokens)
                return ChatReply("", self.usage, prompt_tokens=tokens)
            limit = request.limit(spec)
            max_characters = _MOST_CHARACTERS + _MOST_CHARACTERS_PER_TOKEN * limit
            if len(message.text) > max_characters and not request.may_be_empty:
                raise ServiceError(
                    f"the server sent {len(message.text):,} characters, but was asked for at most"
                    f" {limit} tokens"
                )
            if request.max_tokens is not None:
                return self._answer(choice)
        except INVALID as error:
            why = _excerpt(repr(error))
            raise ServiceError(f"the server's log-probabilities are invalid ({why})") from error
        if message.refusal:
            raise ServiceError(f"the model refused: {_excerpt(message.refusal)}")
        reply = answer_text(message.text).strip()
        if not reply:
            raise ServiceError(self._why_empty(choice))
        if reason == "length":
            raise ServiceError(
                f"the reply was cut off after {self.usage.get('completion_tokens', spec.limit)}"
                " tokens; raise max_tokens (reasoning_tokens for a reasoning model)"
            )
        parsed = None
        if request.schema is not None:
            with contextlib.suppress(ValidationError):
                parsed = request.schema.model_validate_json(reply)
        return ChatReply(reply, self.usage, parsed)

    def _answer(self, choice: _Choice) -> ChatReply:
        """Read the reply to a question, but never mistake reasoning for an answer."""
        rows = (choice.logprobs or {}).get("content") or []
        tokens = [most_likely(token) for token in rows]
        log_p_reply = [float(token["logprob"]) for token in rows]
        text = choice.message.text
        wrapped = split_wrapped(text)
        visible = wrapped.answer if wrapped.reasoning or not wrapped.finished else text
        is_hidden = bool(choice.message.has_reasoning or self.usage.get("reasoning_tokens"))
        is_cut = choice.finish_reason == "length"
        # one token is asked for its log-probabilities; it may well be a blank line
        one_token = self.request.max_tokens == 1 and tokens and not is_hidden
        if not (self.request.may_be_empty or one_token) and (
            not visible.strip() or (is_cut and self.spec.traits.reasoning)
        ):
            raise ServiceError(self._why_empty(choice))
        return ChatReply(
            visible,
            self.usage,
            reasoned=is_hidden or bool(wrapped.reasoning),
            first_tokens=tokens[0] if tokens else (),
            token_log_probs=tuple(
                (value, tuple(v for _, v in top))
                for value, top in zip(log_p_reply, tokens, strict=True)
            ),
            cut_off=is_cut,
        )

    def _why_empty(self, choice: _Choice) -> str:
        """Return why a reply has no answer, and the remedy."""
        spec, message, n_tokens = self.spec, choice.message, self.usage.get("completion_tokens")
        tokens_used = f" ({n_tokens:g} tokens used)" if n_tokens else ""
        setting = "max_tokens" if self.request.max_tokens is None else "max_new_tokens"
        if spec.traits.reasoning:
            remedy = f"raise reasoning_tokens (now {spec.reasoning_tokens})"
        else:
            remedy = "set reasoning: true, which adds reasoning_tokens to the limit"
        if message.tool_calls or message.function_call:
            return f"the model called a tool and wrote no text{tokens_used}; serve it without tools"
        is_hidden = message.has_reasoning or self.usage.get("reasoning_tokens")
        if is_hidden or split_wrapped(message.text).reasoning:
            return f"the reply may have ended within the model's reasoning{tokens_used}; {remedy}"
        if choice.finish_reason == "length":
            return (
                f"the reply was cut off at its limit of {self.request.limit(spec)} tokens, before"
                f" any text; raise {setting}, or if the model reasons first, {remedy}"
            )
        return (
            f"the model returned an empty text{tokens_used}; run the same command again; if it"
            f" stays empty and the model reasons first, {remedy}"
        )


def _excerpt(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _is_rotated(data: bytes) -> bool:
    with contextlib.suppress(Exception), open_image(io.BytesIO(data)) as image:
        return int(image.getexif().get(_ORIENTATION, 1)) != 1
    return False


_REASONING = ("reasoning_content", "reasoning", "reasoning_details", "thinking", "thoughts")
_REASONING_PARTS = ("thinking", "reasoning", "redacted_thinking", "thought")
_UNION_TYPES = ("str", "int", "float", "constrained-int", "constrained-float", "list[_Part]")
_Limits = Field(ge=0, lt=2**63)  # as files of records require
_Count = Annotated[int, _Limits] | Annotated[float, _Limits] | None
_Name = str | int | None


class _Checked(BaseModel):
    """A part of a chat completion; what is not named here may be anything."""

    model_config = ConfigDict(strict=True, extra="allow")


class _Part(_Checked):
    type: Any = None
    text: str | None = None


class _Message(_Checked):
    content: str | list[_Part] | None = None
    refusal: str | None = None
    tool_calls: Any = None
    function_call: Any = None

    @model_validator(mode="before")
    @classmethod
    def _says_something(cls, message: Any) -> Any:
        fields = ("content", "refusal", "tool_calls", "function_call", *_REASONING)
        if isinstance(message, dict) and not message.keys() & set(fields):
            raise ValueError("no text, and nothing in its place")
        return message

    @property
    def _parts(self) -> list[_Part]:
        return self.content if isinstance(self.content, list) else [_Part(text=self.content)]

    @property
    def text(self) -> str:
        """The content, which some servers split into parts, without reasoning; or a refusal."""
        texts = [part.text or "" for part in self._parts if part.type not in _REASONING_PARTS]
        return "".join(texts) or self.refusal or ""

    @property
    def has_reasoning(self) -> bool:
        """Whether there is reasoning apart from the text."""
        fields = self.model_extra or {}
        in_parts = any(part.type in _REASONING_PARTS for part in self._parts)
        return in_parts or any(fields.get(name) for name in _REASONING)


class _Choice(_Checked):
    message: _Message
    finish_reason: Any = None
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
    prompt_logprobs: Any = None  # vLLM's

    def costs(self, spec: ChatSpec, request: ChatRequest, price_factor: float) -> JsonDict:
        """Return costs and origin, for a record."""
        usage = self.usage or _Usage()
        prompt = usage.prompt_tokens_details or _Details()
        completion = usage.completion_tokens_details or _Details()
        usd = spec.usd(usage.prompt_tokens or 0, usage.completion_tokens or 0)
        is_counted = usage.model_fields_set or usage.model_extra
        n_image = request.n_tokens(spec)[1] if prompt.image_tokens is None else None
        costs = {
            "model": self.model,
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "cached_tokens": prompt.cached_tokens,
            "reasoning_tokens": completion.reasoning_tokens,
            "image_tokens": prompt.image_tokens,
            "image_tokens_estimated": n_image,
            "cost_usd": usd * price_factor if usd is not None and is_counted else None,
            "system_fingerprint": self.system_fingerprint,
            "completion_id": self.id,
        }
        return {name: value for name, value in costs.items() if value is not None}

"""The Batch API: half the price, replies within a day, and a state that survives being killed.

A folder in the run directory contains a state file for each shard (the uploaded file, its batch and
its requests) and the files that came back. Requests are identified by a hash of their content
(``custom_id``), so the order of replies does not matter, and asking the same again resumes: a batch
that was sent is waited for, never sent twice.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import logging
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from flipbench.config.chat import ChatSpec
from flipbench.core.errors import DataError, FlipbenchError, PrerequisiteError, ServiceError
from flipbench.core.files import PRIVATE, write_atomically
from flipbench.core.images import ImageStore
from flipbench.core.records import JsonDict, Value
from flipbench.models.chat.api import ODD_REPLY, ChatAPI, recorded
from flipbench.models.chat.bounds import run
from flipbench.models.chat.messages import Chat, ChatReply, ChatRequest, read_reply
from flipbench.models.chat.scrubbing import parse

log = logging.getLogger(__name__)
ENDPOINT = "/v1/chat/completions"
BATCH_PRICE = 0.5
"""A Batch API's share of the regular price."""
_WORKING = ("validating", "in_progress", "finalizing", "cancelling")
_ENDED = ("completed", "expired", "cancelled", "failed")
_TRANSIENT = ("batch_expired", "token_limit_exceeded", "server_error", "rate_limit_exceeded")
_MAX_FAILED_POLLS = 5
_MAX_NAMED = 3
_MAX_LISTED = 1000
_FILE_SECONDS = 900.0
_Replies = dict[str, ChatReply | Exception]


def server_chat(spec: ChatSpec, folder: Path, *, batch: bool) -> Chat:
    """Return a chat model behind a server; with ``batch``, through the Batch API.

    It connects on first use, so that a finished run needs no key.
    """
    api = ChatAPI(spec)
    return BatchAPI(api, folder) if batch else api


class BatchAPI:
    """Ask a `ChatAPI` through its server's Batch API; the state is in the run directory.

    One call sends a file of at most ``max_requests`` and ``max_bytes`` (with images, reached
    first), polls every ``poll_seconds``, waits at most ``max_wait_seconds`` (servers promise to end
    batches within 24 hours), and sends a request that expired or failed transiently ``max_rounds``
    times.
    """

    max_requests = 50_000
    max_bytes = 200_000_000
    poll_seconds = 30.0
    max_wait_seconds = 26 * 3600.0
    max_rounds = 3

    def __init__(self, api: ChatAPI, folder: Path) -> None:
        self.api, self.folder = api, BatchFolder(folder)
        self.name, self.settings = api.name, api.settings

    def ask(
        self, requests: Sequence[ChatRequest], images: ImageStore
    ) -> list[ChatReply | Exception]:
        """Answer a batch, in order, once every request is answered, which may take a day."""
        by_id = {request.id(self.settings): request for request in requests}
        with self.folder.locked():
            replies = self._answer(by_id, images)
        return [replies[request.id(self.settings)] for request in requests]

    def _answer(self, requests: dict[str, ChatRequest], images: ImageStore) -> _Replies:
        shards = [shard for shard in self.folder.shards() if requests.keys() & shard.sent.keys()]
        pending = {shard.name for shard in shards if not shard.collected}
        replies: _Replies = {}
        try:
            for shard in self._finish(shards):  # sent by an earlier call
                shard_replies = self._replies(shard, requests, count=shard.name in pending)
                if shard.name in pending:  # as if there had been no interruption
                    replies.update({k: r for k, r in shard_replies.items() if not _is_transient(r)})
                replies.update({k: r for k, r in shard_replies.items() if isinstance(r, ChatReply)})
            if replies:
                log.info("%d of %d replies exist already", len(replies), len(requests))
            for _ in range(self.max_rounds):
                unanswered = {k: r for k, r in requests.items() if _is_transient(replies.get(k))}
                if not unanswered:
                    break
                replies |= self._send_and_wait(unanswered, images)
        except _StopError as stop:
            return {
                key: reply if isinstance(reply := replies.get(key), ChatReply) else stop.reason
                for key in requests
            }
        return {
            key: ServiceError(str(reply)) if isinstance(reply, _TransientError) else reply
            for key, reply in replies.items()
        }

    def _send_and_wait(self, requests: dict[str, ChatRequest], images: ImageStore) -> _Replies:
        """Send the missing requests and wait; a request without a reply gets an error."""
        replies: _Replies = {
            key: _TransientError(f"the batch ended without a reply to {key}") for key in requests
        }
        shards = [
            self._submit(path, parameters)
            for path, parameters in self._write_shards(requests, images, replies)
        ]
        for shard in self._finish(shards):
            replies |= self._replies(shard, requests, count=True)
        return replies

    def _write_shards(
        self, requests: dict[str, ChatRequest], images: ImageStore, replies: _Replies
    ) -> Iterator[tuple[Path, dict[str, JsonDict]]]:
        """Yield one input file after another; requests that cannot be sent fail in ``replies``."""
        path, n_bytes = self.folder.new_input(), 0
        parameters: dict[str, JsonDict] = {}
        for key, request in requests.items():
            try:
                line = self._input_line(key, request, images)
            except FlipbenchError as error:
                replies[key] = error
                continue
            if len(line) > self.max_bytes:
                replies[key] = DataError(
                    f"the request has {len(line):,} bytes, over the limit of {self.max_bytes:,} of"
                    " a batch; make its images smaller"
                )
                continue
            if parameters and (
                len(parameters) == self.max_requests or n_bytes + len(line) > self.max_bytes
            ):
                yield path, parameters
                path, parameters, n_bytes = self.folder.new_input(), {}, 0
            path.touch(mode=PRIVATE)
            with path.open("ab") as file:
                file.write(line)
            n_bytes += len(line)
            parameters[key] = recorded(self.api.parameters(request))
        if parameters:
            yield path, parameters

    def _input_line(self, key: str, request: ChatRequest, images: ImageStore) -> bytes:
        body = self.api.body(request, images)
        row = {"custom_id": key, "method": "POST", "url": ENDPOINT, "body": body}
        return json.dumps(row, ensure_ascii=False).encode() + b"\n"

    def _submit(self, path: Path, parameters: dict[str, JsonDict]) -> Shard:
        """Upload a file and create a batch; the state is on disk after each step."""
        client = self.api.client.with_options(timeout=_FILE_SECONDS)
        uploaded = self._call(client.files.create, file=path, purpose="batch")
        shard = Shard(
            name=path.stem.split(".")[0],
            sent=parameters,
            file_id=self._required_text(uploaded, "id"),
        )
        self.folder.save(shard)
        path.unlink()
        return self._create(shard)

    def _create(self, shard: Shard) -> Shard:
        """Create the batch of an uploaded file, once, even if the server's response is lost."""
        client = self.api.client.with_options(max_retries=0)
        for n_left in reversed(range(self.api.spec.max_retries + 1)):
            try:
                batch = self._call(
                    client.batches.create,
                    input_file_id=shard.file_id,
                    endpoint=ENDPOINT,
                    completion_window="24h",
                )
            except _StopError as stop:
                if isinstance(stop.reason, PrerequisiteError) or not n_left:
                    raise
                time.sleep(self.poll_seconds)
                if adopted := self._find_batch(shard):
                    return adopted
                continue
            batch_id = self._required_text(batch, "id")
            log.info("batch %s: %d requests sent", batch_id, len(shard.sent))
            return self.folder.save(shard, batch_id=batch_id)
        raise AssertionError("the last attempt either returns or raises")

    def _finish(self, shards: Sequence[Shard]) -> list[Shard]:
        """Wait until every batch has ended and its files are here, at most `max_wait_seconds`."""
        end = time.monotonic() + self.max_wait_seconds
        pending = {shard.name: shard for shard in shards if not shard.collected}
        collected = [shard for shard in shards if shard.collected]
        for shard in list(pending.values()):
            if shard.batch_id is None:  # killed between upload and creation of the batch
                pending[shard.name] = self._find_batch(shard) or self._create(shard)
        n_failed = 0
        while pending:
            for shard in list(pending.values()):
                try:
                    batch = self._call(self.api.client.batches.retrieve, shard.batch_id)
                    status = self._required_text(batch, "status")
                    if status in _ENDED:
                        collected.append(self._collect(pending[shard.name], batch, status))
                        del pending[shard.name]
                    elif status != shard.status:
                        if status in _WORKING:
                            log.info("batch %s: %s", shard.batch_id, status)
                        else:
                            log.warning(
                                "batch %s: unknown state %s; waiting for it to end",
                                shard.batch_id,
                                self.api.scrub.error(repr(status)),
                            )
                        pending[shard.name] = self.folder.save(shard, status=status)
                    n_failed = 0
                except _StopError as stop:
                    n_failed += 1
                    if isinstance(stop.reason, PrerequisiteError) or n_failed > _MAX_FAILED_POLLS:
                        raise
                    log.warning("batch %s: %s; trying again", shard.batch_id, stop.reason)
            if pending and time.monotonic() >= end:
                raise self._overdue_error(list(pending.values()))
            if pending:
                time.sleep(self.poll_seconds)
        return collected

    def _overdue_error(self, pending: Sequence[Shard]) -> _StopError:
        """Return the error for batches that do not end."""
        states = ", ".join(
            f"{shard.batch_id} is still {self.api.scrub.error(repr(shard.status))}"
            for shard in pending[:_MAX_NAMED]
        )
        remainder = f" and {len(pending) - _MAX_NAMED} more" if len(pending) > _MAX_NAMED else ""
        return _StopError(
            ServiceError(
                f"{self.api.server}: batch {states}{remainder} after waiting for"
                f" {self.max_wait_seconds / 3600:g} hours; run the same command again to wait"
                f" longer, or move {self.folder.path} away to send the requests again"
            )
        )

    def _find_batch(self, shard: Shard) -> Shard | None:
        """Find the batch that was created from a shard's file just before a kill."""

        async def newest_batches() -> list[Any]:
            batches: list[Any] = []
            async for batch in self.api.client.batches.list(limit=100):
                batches.append(batch)
                if len(batches) == _MAX_LISTED:
                    break
            return batches

        for batch in self._call(newest_batches):
            if getattr(batch, "input_file_id", None) == shard.file_id:
                return self.folder.save(shard, batch_id=self._required_text(batch, "id"))
        return None

    def _collect(self, shard: Shard, batch: Any, status: str) -> Shard:
        client = self.api.client.with_options(timeout=_FILE_SECONDS)
        for kind in ("output", "error"):
            name = f"{kind}_file_id"
            if getattr(batch, name, None):
                content = self._call(client.files.content, self._required_text(batch, name))
                self.folder.save_rows(shard, kind, self.api.scrub.lines(content.content))
        problems = getattr(getattr(batch, "errors", None), "data", None)
        if not isinstance(problems, list):
            problems = []
        messages = [str(getattr(problem, "message", problem)) for problem in problems]
        code = str(getattr(problems[0], "code", "")) if problems else ""
        log.info("batch %s: %s", shard.batch_id, status)
        return self.folder.save(
            shard,
            status=status,
            collected=True,
            problem=self.api.scrub.error("; ".join(messages)),
            code=self.api.scrub.error(code),
        )

    def _replies(self, shard: Shard, requests: dict[str, ChatRequest], *, count: bool) -> _Replies:
        """Read a shard's replies to ``requests``; of several to one, the first good one."""
        replies: _Replies = {}
        for key in requests.keys() & shard.sent.keys():
            if shard.status in ("failed", "cancelled"):
                failure = _TransientError if shard.code in _TRANSIENT else ServiceError
                reason = f": {shard.problem}" if shard.problem else ""
                replies[key] = failure(f"batch {shard.batch_id} was {shard.status}{reason}")
        n_rows: Counter[str] = Counter()
        for row in itertools.chain(*(self.folder.rows(shard, k) for k in ("error", "output"))):
            key = str(row.get("custom_id"))
            if key not in requests or key not in shard.sent:
                continue
            reply, usage = self._reply(self.api.scrub.json(row), requests[key], shard.sent[key])
            if count and usage:
                self.api.count(usage)
            n_rows[key] += 1
            if not isinstance(replies.get(key), ChatReply):
                replies[key] = reply
        for key, n in n_rows.items():
            if n > 1:
                is_good = isinstance(replies[key], ChatReply)
                outcome = "the first good one is used" if is_good else "none is good"
                log.warning("batch %s: %d replies to %s; %s", shard.batch_id, n, key, outcome)
        return replies

    def _reply(
        self, row: JsonDict, request: ChatRequest, parameters: JsonDict
    ) -> tuple[ChatReply | Exception, JsonDict]:
        """Read one line of an output or error file: the reply and its usage."""
        response = _as_dict(row.get("response"))
        body = response.get("body")
        status = response.get("status_code")
        if status == 200:
            reply, usage = read_reply(
                body, self.api.spec, request, parameters, price_factor=BATCH_PRICE
            )
            usage["server"] = self.api.server
            if isinstance(request_id := response.get("request_id"), str) and request_id:
                usage["request_id"] = request_id
            return reply, usage
        problem = _as_dict(row.get("error")) or _as_dict(_as_dict(body).get("error"))
        code, message = (str(problem.get(name) or "") for name in ("code", "message"))
        if not problem:
            message = str(row.get("error") or body or "the reply is malformed")
        message = self.api.scrub.error(message)
        if status == 400 and self.api.drop_rejected(problem, parameters):
            return _TransientError(message), {}
        if code == "model_not_found" or status == 404:
            message = f"{self.api.server} has no model {self.name!r}: {message}"
            return PrerequisiteError(message), {}
        is_server_error = isinstance(status, int) and (status in (408, 409, 429) or status >= 500)
        kind = _TransientError if is_server_error or code in _TRANSIENT else ServiceError
        status_or_code = self.api.scrub.error(str(status or code or "no status"))
        return kind(f"{self.api.server}, in a batch: {status_or_code}: {message}"), {}

    def _required_text(self, thing: Any, name: str) -> str:
        """Return a text that the server must send, such as a batch's id, without the key."""
        value = getattr(thing, name, None)
        if isinstance(value, str) and value:
            return self.api.scrub.text(value)
        raise _StopError(
            ServiceError(
                f"{self.api.server} sent no {name} of a file or batch; run the same command again"
                " to continue"
            )
        )

    def _call(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        """Call the server; an error ends `ask`, and the next call resumes from the state."""
        reason: FlipbenchError
        try:
            result = run(function(*args, **kwargs))
            self.api.answered = True
            return result
        except (self.api.openai.OpenAIError, *ODD_REPLY) as error:
            reason = self.api.explain(error)
            if getattr(error, "status_code", None) == 404:
                reason = PrerequisiteError(
                    f"{self.api.server} does not know the file or batch (404): it has no Batch"
                    " API, or the key belongs to another account; to send the requests again,"
                    f" move {self.folder.path} away"
                )
            elif isinstance(reason, ServiceError):
                reason = ServiceError(f"{reason}; run the same command again to continue")
        raise _StopError(reason)


class Shard(Value):
    """The state of one batch.

    ``sent`` are the parameters of each request, by ``custom_id``; ``file_id``, ``batch_id``,
    ``status``, ``problem`` and ``code`` are the server's. Once ``collected``, it is final.
    """

    name: str
    sent: dict[str, JsonDict]
    file_id: str
    batch_id: str | None = None
    status: str = "uploaded"
    problem: str = ""
    code: str = ""
    collected: bool = False


class BatchFolder:
    """A folder, for the user alone, with a state, an output and an error file for each shard."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def shards(self) -> list[Shard]:
        """Return the state of every shard."""
        shards = []
        for path in sorted(self.path.glob("*.state.json")):
            try:
                shards.append(Shard.model_validate_json(path.read_bytes()))
            except ValueError as error:
                raise PrerequisiteError(
                    f"{path}: not the state of a batch ({error}); move it away to send its requests"
                    " again"
                ) from error
        return shards

    def save(self, shard: Shard, **changes: Any) -> Shard:
        """Write a shard's changed state atomically; return the shard."""
        shard = shard.model_copy(update=changes)
        write_atomically(self.path / f"{shard.name}.state.json", shard.model_dump_json(), PRIVATE)
        return shard

    def save_rows(self, shard: Shard, kind: str, data: bytes) -> None:
        """Write a downloaded file; ``kind`` is "output" or "error"."""
        write_atomically(self.path / f"{shard.name}.{kind}.jsonl", data, PRIVATE)

    def rows(self, shard: Shard, kind: str) -> Iterator[JsonDict]:
        """Yield the lines of a downloaded file; none if it does not exist."""
        path = self.path / f"{shard.name}.{kind}.jsonl"
        if not path.exists():
            return
        for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
            if not line.strip():
                continue
            try:
                row = parse(line)
            except ValueError:
                row = None
            if isinstance(row, dict):
                yield row
            else:
                log.warning("%s:%d is not a reply; its request is sent again", path, number)

    def new_input(self) -> Path:
        """Return a path for the input file of a new shard."""
        return self.path / f"{uuid.uuid4().hex[:12]}.input.jsonl"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder against other processes, and remove input files left behind by a kill."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with (self.path / ".lock").open("w") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError as error:
                    raise PrerequisiteError(
                        f"{self.path}: another process is using these batches; wait for it"
                    ) from error
                for path in self.path.glob("*.input.jsonl"):
                    path.unlink()
                yield
        except OSError as error:
            raise DataError(
                f"{self.path}: cannot store the batches ({error.strerror}); free some disk space"
                " and run the same command again"
            ) from error


class _TransientError(ServiceError):
    """A failure that may not recur in another round."""


class _StopError(Exception):
    """The server cannot be asked; ``reason`` is the error to return."""

    def __init__(self, reason: FlipbenchError) -> None:
        super().__init__(str(reason))
        self.reason = reason


def _as_dict(value: Any) -> JsonDict:
    return value if isinstance(value, dict) else {}


def _is_transient(reply: ChatReply | Exception | None) -> bool:
    return reply is None or isinstance(reply, _TransientError)

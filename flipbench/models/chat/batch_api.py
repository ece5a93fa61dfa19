"""The batch API: half the price, an answer within a day, and a state that survives a kill.

A folder in the run directory holds, for each shard, a state file (what was uploaded, which batch
it became, whose requests it holds) and what came back. Requests are known by a hash of their
content (``custom_id``), so the order of replies does not matter, and asking the same again
continues where it was: a batch that was sent is waited for, never sent twice.
"""

from __future__ import annotations

import itertools
import json
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flipbench.core.errors import (
    ConfigError,
    DataError,
    FlipbenchError,
    PrerequisiteError,
    ServiceError,
)
from flipbench.core.images import ImageStore
from flipbench.core.records import JsonDict
from flipbench.models.chat.api import ChatAPI, sent_of
from flipbench.models.chat.batch_state import BatchFolder, Shard
from flipbench.models.chat.messages import ChatReply, ChatRequest, read_reply

log = logging.getLogger(__name__)
ENDPOINT = "/v1/chat/completions"
MAX_REQUESTS = 50_000
MAX_BYTES = 200_000_000
_ENDED = ("completed", "expired", "cancelled", "failed")
_PASSING = ("batch_expired", "token_limit_exceeded", "server_error", "rate_limit_exceeded")
_MAX_FAILED_POLLS = 5
_UPLOAD_SECONDS = 900.0


class BatchAPI:
    """Ask a `ChatAPI` through its server's batch API.

    Parameters
    ----------
    api : ChatAPI
        Model, server and key.
    folder : Path
        Where the state lies; one for each run directory.
    max_requests, max_bytes : int
        The most that one batch file may hold. Pictures fill the bytes long before the requests.
    poll_seconds : float
        Time between two looks at the batches under way.
    max_rounds : int
        How often in one call a request is sent whose batch expired or failed in passing.
    price_factor : float
        What a batch pays of the price.
    """

    def __init__(
        self,
        api: ChatAPI,
        folder: Path,
        *,
        max_requests: int = MAX_REQUESTS,
        max_bytes: int = MAX_BYTES,
        poll_seconds: float = 30.0,
        max_rounds: int = 3,
        price_factor: float = 0.5,
    ) -> None:
        if not 1 <= max_requests <= MAX_REQUESTS or not 1 <= max_bytes <= MAX_BYTES:
            raise ConfigError(
                f"a batch holds 1 to {MAX_REQUESTS:,} requests and 1 to {MAX_BYTES:,} bytes, not"
                f" {max_requests:,} and {max_bytes:,}"
            )
        if max_rounds < 1:
            raise ConfigError(f"max_rounds must be at least 1, not {max_rounds}")
        self.api, self.folder = api, BatchFolder(folder)
        self.name, self.settings = api.name, api.settings
        self.max_requests, self.max_bytes = max_requests, max_bytes
        self.poll_seconds, self.max_rounds = poll_seconds, max_rounds
        self.price_factor = price_factor

    def ask(
        self, requests: Sequence[ChatRequest], images: ImageStore
    ) -> list[ChatReply | Exception]:
        """Answer a batch, in order; returns when all of it is answered, which may take a day.

        Raises
        ------
        DataError
            Where the state cannot be written.
        PrerequisiteError
            Where another process is at work on the same folder.
        """
        wanted = {request.id(self.settings): request for request in requests}
        with self.folder.locked():
            found = self._answer(wanted, images)
        return [found[request.id(self.settings)] for request in requests]

    def _answer(
        self, wanted: dict[str, ChatRequest], images: ImageStore
    ) -> dict[str, ChatReply | Exception]:
        shards = [shard for shard in self.folder.shards() if wanted.keys() & shard.sent.keys()]
        fresh = {shard.name for shard in shards if not shard.collected}
        found: dict[str, ChatReply | Exception] = {}
        try:
            shards = self._finish(shards)
            for shard in shards:  # replies that an earlier call paid for
                replies = self._replies(shard, wanted, count=shard.name in fresh)
                if shard.name in fresh:  # as if there had been no interruption
                    found.update({k: r for k, r in replies.items() if not _is_passing(r)})
                found.update({k: r for k, r in replies.items() if isinstance(r, ChatReply)})
            if found:
                log.info("%d of %d replies were there already", len(found), len(wanted))
            for _ in range(self.max_rounds):
                missing = {key: r for key, r in wanted.items() if _is_passing(found.get(key))}
                if not missing:
                    break
                found |= self._round(missing, images)
        except _StopError as stop:
            return {key: _kept(found.get(key), stop.reason) for key in wanted}
        return {key: _final(reply) for key, reply in found.items()}

    def _round(
        self, missing: dict[str, ChatRequest], images: ImageStore
    ) -> dict[str, ChatReply | Exception]:
        """Send what is missing and wait for it; a request without a reply gets an error."""
        found: dict[str, ChatReply | Exception] = {
            key: _PassingError(f"the batch ended without a reply to {key}") for key in missing
        }
        made: list[Shard] = []
        for path, sent in self._write_shards(missing, images, found):
            made.append(self._submit(path, sent))
        for shard in self._finish(made):
            found |= self._replies(shard, missing, count=True)
        return found

    def _write_shards(
        self,
        missing: dict[str, ChatRequest],
        images: ImageStore,
        found: dict[str, ChatReply | Exception],
    ) -> Iterator[tuple[Path, dict[str, JsonDict]]]:
        """Yield one full input file after the other; what cannot be sent goes into ``found``."""
        path, n_bytes = self.folder.new_input(), 0
        sent: dict[str, JsonDict] = {}
        for key, request in missing.items():
            try:
                line = self._line(key, request, images)
            except FlipbenchError as error:
                found[key] = error
                continue
            if len(line) > self.max_bytes:
                found[key] = DataError(
                    f"the request has {len(line):,} bytes, a batch holds {self.max_bytes:,}; make"
                    " its pictures smaller"
                )
                continue
            if sent and (len(sent) == self.max_requests or n_bytes + len(line) > self.max_bytes):
                yield path, sent
                path, sent, n_bytes = self.folder.new_input(), {}, 0
            with path.open("ab") as file:
                file.write(line)
            n_bytes += len(line)
            sent[key] = sent_of(self.api.parameters(request))
        if sent:
            yield path, sent

    def _line(self, key: str, request: ChatRequest, images: ImageStore) -> bytes:
        body = self.api.body(request, images)
        row = {"custom_id": key, "method": "POST", "url": ENDPOINT, "body": body}
        return json.dumps(row, ensure_ascii=False).encode() + b"\n"

    def _submit(self, path: Path, sent: dict[str, JsonDict]) -> Shard:
        """Upload a file and make it a batch; the state is on disk before and after."""
        client = self.api.client.with_options(timeout=_UPLOAD_SECONDS)
        uploaded = self._call(client.files.create, file=path, purpose="batch")
        shard = self.folder.keep(
            Shard(name=path.stem.split(".")[0], sent=sent, file_id=uploaded.id)
        )
        path.unlink()
        return self._create(shard)

    def _create(self, shard: Shard) -> Shard:
        """Make an uploaded file a batch, once, even if the server's answer is lost."""
        client = self.api.client.with_options(max_retries=0)
        for left in reversed(range(self.api.spec.max_retries + 1)):
            try:
                batch = self._call(
                    client.batches.create,
                    input_file_id=shard.file_id,
                    endpoint=ENDPOINT,
                    completion_window="24h",
                )
            except _StopError as stop:
                if isinstance(stop.reason, PrerequisiteError) or not left:
                    raise
                time.sleep(self.poll_seconds)
                if adopted := self._adopt(shard):
                    return adopted
                continue
            log.info("batch %s: %d requests sent", batch.id, len(shard.sent))
            return self.folder.keep(shard.model_copy(update={"batch_id": batch.id}))
        raise AssertionError("the last attempt either returns or raises")

    def _finish(self, shards: Sequence[Shard]) -> list[Shard]:
        """Wait until every batch has ended and its files are here."""
        pending = {shard.name: shard for shard in shards if not shard.collected}
        done = [shard for shard in shards if shard.collected]
        for shard in list(pending.values()):
            if shard.batch_id is None:  # killed between the upload and the answer to "create"
                pending[shard.name] = self._adopt(shard) or self._create(shard)
        n_failed = 0
        while pending:
            for shard in list(pending.values()):
                try:
                    batch = self._call(self.api.client.batches.retrieve, shard.batch_id)
                    if batch.status in _ENDED:
                        done.append(self._collect(pending[shard.name], batch))
                        del pending[shard.name]
                    elif batch.status != shard.status:
                        log.info("batch %s: %s", batch.id, batch.status)
                        pending[shard.name] = self.folder.keep(
                            shard.model_copy(update={"status": batch.status})
                        )
                    n_failed = 0
                except _StopError as stop:
                    n_failed += 1
                    if isinstance(stop.reason, PrerequisiteError) or n_failed > _MAX_FAILED_POLLS:
                        raise
                    log.warning("batch %s: %s; trying again", shard.batch_id, stop.reason)
            if pending:
                time.sleep(self.poll_seconds)
        return done

    def _adopt(self, shard: Shard) -> Shard | None:
        """Find the batch that was made of a shard's file just before a kill."""
        client = self.api.client
        newest = self._call(lambda: list(itertools.islice(client.batches.list(limit=100), 1000)))
        for batch in newest:
            if batch.input_file_id == shard.file_id:
                return self.folder.keep(shard.model_copy(update={"batch_id": batch.id}))
        return None

    def _collect(self, shard: Shard, batch: Any) -> Shard:
        for kind in ("output", "error"):
            file_id = getattr(batch, f"{kind}_file_id", None)
            if file_id:
                content = self._call(self.api.client.files.content, file_id)
                self.folder.keep_rows(shard, kind, content.content)
        problems = (batch.errors.data if batch.errors else None) or []
        log.info("batch %s: %s", batch.id, batch.status)
        return self.folder.keep(
            shard.model_copy(
                update={
                    "status": batch.status,
                    "collected": True,
                    "problem": "; ".join(str(p.message) for p in problems)[:500],
                    "code": str(problems[0].code) if problems else "",
                }
            )
        )

    def _replies(
        self, shard: Shard, wanted: dict[str, ChatRequest], *, count: bool
    ) -> dict[str, ChatReply | Exception]:
        """Read what came back for requests that are wanted, in whatever order it came."""
        found: dict[str, ChatReply | Exception] = {}
        for key in wanted.keys() & shard.sent.keys():
            if shard.status in ("failed", "cancelled"):
                failure = _PassingError if shard.code in _PASSING else ServiceError
                told = f": {shard.problem}" if shard.problem else ""
                found[key] = failure(f"batch {shard.batch_id} was {shard.status}{told}")
        for kind in ("error", "output"):
            for row in self.folder.rows(shard, kind):
                key = str(row.get("custom_id"))
                if key in wanted and key in shard.sent:
                    found[key], usage = self._reply(row, wanted[key], shard.sent[key])
                    if count and usage:
                        self.api.count(usage)
        return found

    def _reply(
        self, row: JsonDict, request: ChatRequest, sent: JsonDict
    ) -> tuple[ChatReply | Exception, JsonDict]:
        """Read one line of an output or error file: the reply, and what it cost."""
        response = row.get("response") or {}
        body = response.get("body") or {}
        status = response.get("status_code")
        if status == 200:
            reply, usage = read_reply(
                body, self.api.spec, request, sent, price_factor=self.price_factor
            )
            usage["server"] = self.api.server
            if response.get("request_id"):
                usage["request_id"] = response["request_id"]
            if isinstance(reply, ChatReply):
                return replace(reply, usage=usage), usage
            return reply, usage
        problem = row.get("error") or body.get("error") or {}
        code, message = str(problem.get("code") or ""), str(problem.get("message") or "")
        if status == 400 and self.api.drop(problem, sent):
            return _PassingError(message), {}
        if code == "model_not_found" or status == 404:
            message = f"{self.api.server} has no model {self.name!r}: {message[:300]}"
            return PrerequisiteError(message), {}
        passing = code in _PASSING or status in (408, 409, 429) or (status or 0) >= 500
        kind = _PassingError if passing else ServiceError
        return kind(f"{self.api.server}, in a batch: {status or code}: {message[:300]}"), {}

    def _call(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        """Call the server; what is wrong ends this call, and the state stays for the next."""
        reason: FlipbenchError
        try:
            result = function(*args, **kwargs)
            self.api.answered = True
            return result
        except (self.api.errors, ValueError) as error:
            reason = self.api.explain(error)
            if getattr(error, "status_code", None) == 404:
                reason = PrerequisiteError(
                    f"{self.api.server} does not know the file or batch (404): it has no batch"
                    " API, or the key is another account's; to send anew, move"
                    f" {self.folder.path} away"
                )
            elif isinstance(reason, ServiceError):
                reason = ServiceError(f"{reason}; the same command goes on with the batches")
        raise _StopError(reason)


class _PassingError(ServiceError):
    """A failure that another round may mend."""


class _StopError(Exception):
    """The server cannot be asked now, for a reason of ours."""

    def __init__(self, reason: FlipbenchError) -> None:
        super().__init__(str(reason))
        self.reason = reason


def _is_passing(reply: ChatReply | Exception | None) -> bool:
    return reply is None or isinstance(reply, _PassingError)


def _final(reply: ChatReply | Exception) -> ChatReply | Exception:
    """Return a reply as others may see it: what is passing here is a plain failure there."""
    return ServiceError(str(reply)) if isinstance(reply, _PassingError) else reply


def _kept(reply: ChatReply | Exception | None, reason: Exception) -> ChatReply | Exception:
    return reply if isinstance(reply, ChatReply) else reason

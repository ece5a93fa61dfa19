"""The web application of the review page: serves pairs and images, and records verdicts.

In blind mode, the new answer, the original image, the caption and other raters' verdicts are hidden
until the reviewer has answered; then the original's address comes with a key, without which it is
not served. Reviewers give their names themselves: who takes another's name sees what that person
may see.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import secrets
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from flipbench.core.errors import DataError
from flipbench.core.images import ImageStore, png_bytes
from flipbench.core.records import ImageRef
from flipbench.reporting.pages import TEMPLATES, environment

from ..effective_verdicts import join_reason, split_reason
from .exchange import (
    MAX_NOTE,
    PAGE,
    export_csv,
    export_tasks,
    have_several,
    import_rows,
    label_config,
    read_rows,
)
from .guard import Guard
from .ledger import SHOW, Judges, Ledger, Refused
from .tasks import RaterVerdict, image_path

MAX_BODY = 64 * 1024 * 1024
"""Bytes of a file that is imported."""

MAX_JSON = 256 * 1024
"""Bytes of any other request."""

_BROWSER_FORMATS = {"png", "jpg", "webp", "gif", "bmp"}
_TYPES = {"css": "text/css", "js": "text/javascript"}
_POSITION = re.compile(r"[0-9]{1,9}")
Body = TypeVar("Body", bound=BaseModel)
Text = Annotated[str, StringConstraints(strip_whitespace=True, max_length=MAX_NOTE)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")

    reviewer: str


class _PairBody(_Body):
    key: tuple[str, str]
    seconds: float | None = Field(default=None, ge=0, allow_inf_nan=False)


class VerdictBody(_PairBody):
    """A verdict as the page sends it."""

    decision: str
    reason: str = ""
    note: Text = ""


class AnswerBody(_PairBody):
    """A reviewer's answer before the new answer is shown."""

    answer: Annotated[Text, Field(min_length=1)]


class ReviewApp:
    """The request handlers, on top of one ledger.

    ``blind``: reviewers answer the question before they see the new answer.
    """

    def __init__(self, ledger: Ledger, images: ImageStore, title: str, blind: bool = False) -> None:
        self.ledger, self.images, self.title, self.blind = ledger, images, title, blind
        self._importing = asyncio.Lock()
        self._secret = secrets.token_bytes(32)
        self._n_pairs = Counter(pair.category for pair in ledger.pairs)
        self._open_images = {
            shown["src"]
            for pair in (ledger.pairs if blind else ())
            for view in (pair.shown(),)
            for shown in (view["right"], *view["more"])
        }
        self._refs: dict[str, ImageRef] = {
            ref.sha256: ref for pair in ledger.pairs for ref in pair.pictures
        }
        self.categories = sorted({pair.category for pair in ledger.pairs} - {""})
        self._template = environment(PAGE).get_template("review.html.jinja")
        assets = [TEMPLATES / "tokens.css", *PAGE.glob("*.[cj]s*")]
        self._assets = {path.name: path.read_text() for path in assets}

    def page(self, _: Request) -> Response:
        """Return the page."""
        task = self.ledger.task
        settings = {
            "labels": [asdict(label) for label in task.labels],
            "reasons": task.reasons,
            "sides": task.sides,
            "same_scale": task.same_scale,
            "command": task.name,
            "reviewers": sorted(self.ledger.people),
            "blind": self.blind,
        }
        html = self._template.render(
            title=self.title,
            task=task,
            n_pairs=len(self.ledger.pairs),
            categories=self.categories,
            has_judges=bool(self.ledger.judges),
            settings=settings,
        )
        return Response(html, media_type="text/html", headers={"cache-control": "no-store"})

    def asset(self, request: Request) -> Response:
        """Return a script or the style sheet."""
        name = request.path_params["name"]
        if name not in self._assets:
            return _error(404, f"no file {name!r}")
        kind = _TYPES[name.rpartition(".")[2]]
        return Response(self._assets[name], media_type=kind, headers={"cache-control": "no-cache"})

    def image(self, request: Request) -> Response:
        """Return an image of a pair, and no other file."""
        ref = self._refs.get(request.path_params["sha256"])
        if ref is None:
            return _error(404, "no image of this run has that hash")
        path, key = request.url.path, request.query_params.get("key", "")
        is_open = not self.blind or path in self._open_images
        if not is_open and not hmac.compare_digest(self._key(path).encode(), key.encode()):
            return _error(403, "this review is blind: answer the question first")
        headers = {"cache-control": "private, max-age=31536000, immutable"}
        file = image_path(self.images, ref)
        if ref.format in _BROWSER_FORMATS:
            return FileResponse(file, headers=headers)
        data = png_bytes(self.images.open(ref))
        return Response(data, media_type="image/png", headers=headers)

    def queue(self, request: Request) -> Response:
        """Return the positions of the pairs that match the reviewer's filters."""
        query = request.query_params
        show, judges = query.get("show", "undecided"), query.get("judges", "")
        if show not in (*SHOW, *self.ledger.task.values) or judges not in get_args(Judges):
            return _error(400, f"unknown filter {show!r} with judges {judges!r}")
        reviewer = self.ledger.reviewer(query.get("reviewer", ""))
        category = query.get("category", "")
        positions = self.ledger.queue(reviewer, show, category, judges)  # type: ignore[arg-type]
        if show == "disagreement" or judges:  # other raters' verdicts choose the pairs
            positions = [p for p in positions if not self._is_hidden(p, reviewer)]
        body = {"reviewer": reviewer, "positions": positions}
        return JSONResponse(body | self._progress(reviewer, category))

    def pair(self, request: Request) -> Response:
        """Return what a reviewer may see of a pair."""
        reviewer = self.ledger.reviewer(request.query_params.get("reviewer", ""))
        text, n_pairs = request.path_params["position"], len(self.ledger.pairs)
        if not _POSITION.fullmatch(text):
            return _error(400, "a pair's position is a number")
        if int(text) >= n_pairs:
            return _error(404, f"the run has {n_pairs} pairs")
        return JSONResponse(self._view(int(text), reviewer))

    async def decide(self, request: Request) -> Response:
        """Store a verdict; the reply is sent after it is on disk."""
        body = await _body(request, VerdictBody)
        task = self.ledger.task
        if body.decision not in task.values:
            return _error(400, f"decision {body.decision!r} is none of {', '.join(task.values)}")
        if body.reason and body.reason not in task.reasons:
            return _error(400, f"reason {body.reason!r} is none of {', '.join(task.reasons)}")

        def work() -> dict[str, Any]:
            reviewer, position = self._place(body.reviewer, body.key)
            if self._is_hidden(position, reviewer):
                raise Refused("answer the question before deciding")
            reason = join_reason(body.reason, " ".join(body.note.split()))
            self.ledger.decide(reviewer, position, body.decision, reason, seconds=body.seconds)
            return self._progress(reviewer, request.query_params.get("category", ""))

        return JSONResponse(await run_in_threadpool(work))

    async def answer(self, request: Request) -> Response:
        """Store a blind answer and return the rest of the pair."""
        body = await _body(request, AnswerBody)

        def work() -> dict[str, Any]:
            reviewer, position = self._place(body.reviewer, body.key)
            self.ledger.answer_blind(reviewer, position, body.answer, body.seconds)
            return self._view(position, reviewer)

        return JSONResponse(await run_in_threadpool(work))

    async def undo(self, request: Request) -> Response:
        """Undo the reviewer's last verdict."""
        body = await _body(request, _Body)

        def work() -> dict[str, Any]:
            reviewer = self.ledger.reviewer(body.reviewer)
            position = self.ledger.undo(reviewer)
            progress = self._progress(reviewer, request.query_params.get("category", ""))
            return progress | {"position": position}

        return JSONResponse(await run_in_threadpool(work))

    async def import_file(self, request: Request) -> Response:
        """Import a CSV or Label Studio file."""
        if self._importing.locked():  # or many bodies would be in memory
            return _error(503, "another file is being imported; try again in a minute")
        async with self._importing:
            data = await request.body()

            def work() -> dict[str, Any]:
                name = request.query_params.get("name", "the file")
                rows, problems = read_rows(data, name, self.ledger.task)
                report = import_rows(self.ledger, rows, problems, blind=self.blind)
                return {"summary": str(report), "problems": report.problems[:20]}

            try:
                return JSONResponse(await run_in_threadpool(work))
            except DataError as error:
                return _error(400, str(error))

    def export(self, request: Request) -> Response:
        """Return all effective verdicts as a file."""
        if self.blind:
            return _error(403, "this review is blind: 'flipbench review RUN --export FILE' exports")
        task = self.ledger.task
        name = request.path_params["name"]
        config = partial(label_config, task, several=have_several(self.ledger))
        writers: dict[str, tuple[str, Callable[[], str]]] = {
            f"{task.record.kind}.csv": ("text/csv", partial(export_csv, self.ledger)),
            "label-studio.json": ("application/json", partial(export_tasks, self.ledger)),
            "label-studio.xml": ("application/xml", config),
        }
        if name not in writers:
            return _error(404, f"no export {name!r}; there are {', '.join(writers)}")
        kind, write = writers[name]
        headers = {
            "content-disposition": f'attachment; filename="{name}"',
            "cache-control": "no-store",
        }
        return Response(write(), media_type=kind, headers=headers)

    def _place(self, reviewer: str, key: tuple[str, str]) -> tuple[str, int]:
        position = self.ledger.position(key)
        for ref in self.ledger.pairs[position].pictures:
            image_path(self.images, ref)  # raises if it is gone
        return self.ledger.reviewer(reviewer), position

    def _progress(self, reviewer: str, category: str) -> dict[str, Any]:
        n_pairs = self._n_pairs[category] if category else len(self.ledger.pairs)
        return {"n_pairs": n_pairs, "counts": self.ledger.counts(reviewer, category)}

    def _is_hidden(self, position: int, reviewer: str) -> bool:
        """Return whether the reviewer has to answer before seeing the rest."""
        own_verdict = self.ledger.verdicts(position).get(reviewer)
        return self.blind and (own_verdict is None or own_verdict.blind_answer is None)

    def _key(self, path: str) -> str:
        return hmac.new(self._secret, path.encode(), hashlib.sha256).hexdigest()[:32]

    def _view(self, position: int, reviewer: str) -> dict[str, Any]:
        """Return what the page shows a reviewer of a pair."""
        pair, verdicts = self.ledger.pairs[position], self.ledger.decided(position)
        is_hidden = self._is_hidden(position, reviewer)
        view = {"position": position, "key": pair.key, "hidden": is_hidden, "mine": None}
        view |= pair.shown()
        if is_hidden:
            return view
        own_verdict = self.ledger.verdicts(position).get(reviewer)
        is_shown = reviewer in verdicts or not self.ledger.task.independent
        other_verdicts = sorted((r, v) for r, v in verdicts.items() if r != reviewer and is_shown)
        revealed = pair.revealed()
        if self.blind and revealed["left"]:
            revealed["left"]["src"] += f"?key={self._key(revealed['left']['src'])}"
        return view | {
            **revealed,
            "mine": _verdict(own_verdict) if own_verdict else None,
            "others": [{"rater": rater} | _verdict(verdict) for rater, verdict in other_verdicts],
        }


def _verdict(verdict: RaterVerdict) -> dict[str, Any]:
    reason, note = split_reason(verdict.reason)
    return {
        "kind": verdict.kind,
        "decision": verdict.decision if verdict.decided else None,
        "reason": reason if verdict.decided else "",
        "note": note,
        "blind_answer": verdict.blind_answer,
    }


def make_app(review: ReviewApp, token: str | None = None) -> Starlette:
    """Return the ASGI application behind its guard."""
    answers = [Route("/api/answers", review.answer, methods=["POST"])] if review.blind else []
    routes = [
        Route("/", review.page),
        Route("/page/{name}", review.asset),
        Route("/images/{sha256}", review.image),
        Route("/api/queue", review.queue),
        Route("/api/pairs/{position}", review.pair),
        Route("/api/verdicts", review.decide, methods=["POST"]),
        *answers,
        Route("/api/undo", review.undo, methods=["POST"]),
        Route("/api/import", review.import_file, methods=["POST"]),
        Route("/export/{name}", review.export),
    ]
    return Starlette(
        routes=routes,
        middleware=[Middleware(Guard, token=token)],
        exception_handlers={
            Refused: _refused,
            ValidationError: _invalid,
            DataError: _failed,
            ClientDisconnect: lambda *_: _error(400, "the request ends early"),
        },
        max_body_size=MAX_BODY,
    )


async def _body(request: Request, kind: type[Body]) -> Body:
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > MAX_JSON:
            raise HTTPException(413, "the request is too large")
    return kind.model_validate_json(bytes(data))


def _error(status: int, message: str) -> Response:
    return JSONResponse({"error": message}, status)


def _refused(_: Request, error: Exception) -> Response:
    return _error(409, str(error))


def _invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, ValidationError)
    problem = error.errors()[0]
    field_path = ".".join(map(str, problem["loc"])) or "the request"
    return _error(400, f"{field_path}: {problem['msg']}")


def _failed(_: Request, error: Exception) -> Response:
    return _error(500, str(error))

"""What odd lines in the files of a Batch API do.

    python -m benchmarks.robustness.batches [--seed 0] [--n 240]

Batches of ten requests are answered, but some lines of the files are odd: no JSON, no UTF-8, JSON
of another form, an error with the key in it, another request's id, missing. "Lost" is an odd line
taken for an answer, a good line that was refused, any other error, and the key in a message.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.robustness.bad_files import ODD, parts, replaced
from flipbench.config.chat import ChatSpec
from flipbench.core.errors import FlipbenchError
from flipbench.core.images import ImageStore
from flipbench.models.chat.api import ChatAPI
from flipbench.models.chat.batch_api import BatchAPI
from flipbench.models.chat.messages import ChatReply, ChatRequest

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.fixtures.openai_server import CAPTION, KEY, OpenAIServer  # noqa: E402

N = 10
FAULTS = ("no JSON", "no UTF-8", "odd form", "error", "other id", "missing")
BODY = ("response", "body")


def odd_line(row: dict[str, Any], fault: str, rng: random.Random) -> bytes:
    """Return an answered line with a fault."""
    if fault == "no JSON":
        return json.dumps(row).encode()[: rng.randrange(1, 200)]
    if fault == "no UTF-8":
        return json.dumps(row).encode().replace(b"star", b"\xff\xfe", 1).replace(b"{", b"\xff", 1)
    if fault == "odd form":
        message = (*BODY, "choices", 0, "message")
        places = [p for p in parts(row) if message[: len(p)] == p and p != ("id",)]
        return json.dumps(replaced(row, rng.choice(places), rng.choice(ODD))).encode()
    if fault == "error":
        body = {"error": {"message": f"key {KEY}", "code": rng.choice((None, 5, KEY))}}
        status = rng.choice((400, 401, 403, 418, 500, "x", None))
        return json.dumps(row | {"response": {"status_code": status, "body": body}}).encode()
    if fault == "other id":
        other = rng.choice((None, 5, [], "stranger"))
        return json.dumps(row | {"custom_id": other}).encode()
    return b""


def trial(folder: Path, rng: random.Random) -> dict[str, Counter[str]]:
    """Ask one batch; return the outcomes by fault."""
    found: dict[str, Counter[str]] = {fault: Counter() for fault in ("good", *FAULTS)}
    spec = ChatSpec(model="tiny-vlm", base_url="http://x", max_retries=0, timeout=5.0)
    requests = [ChatRequest("Describe.", f"number {number}.") for number in range(N)]
    ids = {request.id(spec.settings): i for i, request in enumerate(requests)}
    faults = [rng.choice(FAULTS) if rng.random() < 0.5 else "good" for _ in requests]

    def edit(kind: str, data: bytes) -> bytes:
        lines = []
        for line in data.splitlines():
            row = json.loads(line)
            fault = faults[ids[row["custom_id"]]] if row["custom_id"] in ids else "good"
            lines.append(line if fault == "good" else odd_line(row, fault, rng))
        return b"\n".join(lines) + b"\n"

    with OpenAIServer() as server:
        server.edit_file = edit
        api = ChatAPI(spec.model_copy(update={"base_url": server.base_url}))
        batch = BatchAPI(api, folder)
        batch.poll_seconds = 0.01
        try:
            replies = batch.ask(requests, ImageStore(folder / "images"))
        except Exception as error:
            print(f"{type(error).__name__}: {str(error)[:300]}", faults, file=sys.stderr)
            replies = [error] * N
    for fault, reply in zip(faults, replies, strict=True):
        if isinstance(reply, ChatReply):
            good = reply.text == CAPTION and KEY not in json.dumps(reply.usage)
            outcome = "answered" if good and fault in ("good", "odd form") else "lost"
        else:
            clean = isinstance(reply, FlipbenchError) and KEY not in str(reply)
            outcome = "failed" if clean and fault != "good" else "lost"
        if outcome == "lost":
            print(f"{fault}: {type(reply).__name__} {str(reply)[:300]}", file=sys.stderr)
        found[fault][outcome] += 1
    for path in folder.rglob("*"):
        if path.is_file() and KEY.encode() in path.read_bytes():
            print(f"{path.name} holds the key", file=sys.stderr)
            found["good"]["lost"] += 1
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--n", type=int, default=240, help="lines")
    args = parser.parse_args()
    logging.disable()
    os.environ |= {"OPENAI_API_KEY": KEY, "NO_PROXY": "127.0.0.1"}
    found: dict[str, Counter[str]] = {fault: Counter() for fault in ("good", *FAULTS)}
    for number in range(args.n // N):
        with tempfile.TemporaryDirectory() as folder:
            outcomes = trial(Path(folder), random.Random(f"{args.seed} {number}"))
        for fault, counts in outcomes.items():
            found[fault] += counts
    print("| line | tried | answered | failed | lost |\n|---|---:|---:|---:|---:|")
    for fault, counts in (found | {"all": sum(found.values(), Counter())}).items():
        cells = [counts.total(), *(counts[key] for key in ("answered", "failed", "lost"))]
        print(f"| {fault} | {' | '.join(map(str, cells))} |")
    return int(any(counts["lost"] for counts in found.values()))


if __name__ == "__main__":
    sys.exit(main())

"""What `kills` needs beside commands: a server of the Batch API, and reviewers of a page."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import sys
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.robustness.commands import Command, gist

KILLS = 8
"""Kills of a review page in one round."""


def open_page(folder: Path, *, blind: bool = False) -> tuple[Command, int]:
    """Serve the review page of ``folder/run``; return its process and port."""
    words = [sys.executable, "-m", "flipbench.cli", "review", "run", "--port", "0"]
    words += ["--blind"] if blind else []
    page = Command(lambda: os.execv(sys.executable, words), folder)
    while not (address := re.search(rb"http://127.0.0.1:(\d+)/", page.text)):
        if ended := page.wait(0.02):
            raise RuntimeError(gist(ended.text))
    return page, int(address[1])


class BatchServer:
    """The tests' server of OpenAI's protocols, in a process of its own."""

    def __init__(self, folder: Path) -> None:
        from flipbench.core.images import ImageStore
        from flipbench.core.paired import Candidate
        from flipbench.models.chat.batch_api import BatchAPI
        from flipbench.shapes.benchmark import scene_of, shapes_vqa
        from flipbench.shapes.wording import describe

        sys.path.insert(0, str(Path(__file__).parents[2]))
        from tests.fixtures.openai_server import KEY, OpenAIServer

        os.environ |= {"OPENAI_API_KEY": KEY, "NO_PROXY": "127.0.0.1"}
        BatchAPI.poll_seconds = 0.05
        place = folder / "server.txt"

        def serve() -> None:
            with OpenAIServer() as server:
                server.reply = lambda body: scene
                place.write_text(server.base_url + "\n")
                while os.getppid() == parent:
                    time.sleep(0.5)

        scene = describe(scene_of(Candidate(shapes_vqa(ImageStore(folder / "scenes"), 60)[-1])))
        parent = os.getpid()
        self._process = Command(serve, folder)
        while not (place.exists() and place.read_text().endswith("\n")):
            time.sleep(0.01)
        self.base_url, self._key = place.read_text().strip(), KEY
        self._known: set[str] = set()

    def _get(self, path: str) -> bytes:
        headers = {"Authorization": f"Bearer {self._key}"}
        request = urllib.request.Request(f"{self.base_url}/{path}", headers=headers)
        with urllib.request.urlopen(request, timeout=10) as reply:
            return bytes(reply.read())

    def new_requests(self) -> Counter[str]:
        """Count how often each request was sent since the last call, in batches."""
        found: Counter[str] = Counter()
        for batch in json.loads(self._get("batches"))["data"]:
            if batch["id"] not in self._known:
                self._known.add(batch["id"])
                lines = self._get(f"files/{batch['input_file_id']}/content").splitlines()
                found.update(json.loads(line)["custom_id"] for line in lines)
        return found

    def stop(self) -> None:
        """End the server's process."""
        self._process.stop(signal.SIGKILL)
        self._process.wait(5)


def review_round(
    template: Path, folder: Path, rng: np.random.Generator
) -> tuple[Counter[str], list[str]]:
    """Kill a review page while verdicts arrive; count those that were acknowledged and are lost."""
    from flipbench.core.records import Verdict
    from flipbench.core.run import Run
    from flipbench.filters.review.tasks import edited_pairs

    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(template, folder)
    with Run(folder / "run") as run:
        keys = [list(pair.key) for pair in edited_pairs(run)]
    acknowledged: dict[str, str] = {}
    counts: Counter[str] = Counter(rounds=1)
    problems: list[str] = []
    n_sent = 0
    for _ in range(KILLS):
        try:
            page, port = open_page(folder)
        except RuntimeError as error:
            return counts + Counter(lost=1), [str(error)]
        life = float(rng.uniform(0.01, 0.5))

        def kill(pid: int = page.pid, life: float = life) -> None:
            time.sleep(life)
            os.kill(pid, signal.SIGKILL)

        killer = Command(kill, folder)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        while True:
            n_sent += 1
            decision = str(rng.choice(["keep", "reject", "unsure"]))
            body: dict[str, Any] = {"reviewer": "Ada", "decision": decision}
            body |= {"key": keys[int(rng.integers(len(keys)))], "note": f"number {n_sent}."}
            try:
                connection.request(
                    "POST",
                    "/api/verdicts",
                    json.dumps(body),
                    {"Content-Type": "application/json", "Origin": f"http://127.0.0.1:{port}"},
                )
                reply = connection.getresponse()
                text = reply.read()
            except (OSError, http.client.HTTPException):
                break
            if reply.status != 200:
                problems.append(f"a verdict was refused: {reply.status} {text[:300]!r}")
                counts["lost"] += 1
                break
            acknowledged[body["note"]] = decision
        killer.wait(5)
        page.wait(5)
        counts["killed"] += 1
    counts["verdicts"] = len(acknowledged)
    with Run(folder / "run") as run:
        stored = [v for v in run.read(Verdict) if v.rater == "Ada"]
    there = Counter(note for v in stored for note in re.findall(r"number \d+\.", v.reason))
    lost = [note for note in acknowledged if not there[note]]
    twice = [note for note, n in there.items() if n > 1]
    counts.update(lost=len(lost), doubled=len(twice))
    problems += [f"lost: {note}" for note in lost[:3]] + [f"doubled: {note}" for note in twice[:3]]
    return counts, problems

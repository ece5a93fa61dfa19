"""A server as a process: no end of whoever started it leaves anything behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flipbench.core.errors import PrerequisiteError, ServiceError
from flipbench.models.serving.vllm import ServerProcess

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="reads Linux's process table"),
]

SERVER = """
import http.server, os, signal, subprocess, sys
if "stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "broken" in sys.argv:
    raise SystemExit("CUDA out of memory")
engine = subprocess.Popen(["sleep", "600"])  # which a server would have to stop itself
print("processes", os.getpid(), engine.pid, flush=True)
print("PYTHONPATH", os.environ.get("PYTHONPATH"), os.environ.get("OMP_NUM_THREADS"), flush=True)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(503 if "slow" in sys.argv else 200)
        self.end_headers()
    def log_message(self, *args): pass
port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""
PARENT = """
import os, signal, sys, time
from pathlib import Path
from flipbench.models.serving import vllm
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored by what starts in the background
vllm._GRACE = 1.0
folder, how = Path(sys.argv[1]), sys.argv[2]
command = [sys.executable, "-c", (folder / "server.py").read_text(), *sys.argv[3:]]
server = vllm.ServerProcess("the server", command, {}, folder / "server.log")
server.wait_until_healthy(60)
print("ready", flush=True)
if how == "exception":
    raise KeyError("something else")
if how == "exit":
    raise SystemExit(0)
time.sleep(600)
"""


def is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def processes(log: Path) -> list[int]:
    line = next(x for x in log.read_text().splitlines() if x.startswith("processes"))
    return [int(word) for word in line.split()[1:]]


def all_ended(pids: list[int]) -> bool:
    for _ in range(100):
        if not any(map(is_running, pids)):
            return True
        time.sleep(0.1)
    return False


def start(folder: Path, *words: str) -> ServerProcess:
    command = [sys.executable, "-c", SERVER, *words]
    return ServerProcess("the server", command, {}, folder / "server.log")


@pytest.mark.parametrize("how", ["exit", "exception", "SIGINT", "SIGTERM", "SIGKILL", "stubborn"])
def test_a_server_ends_with_its_command(tmp_path: Path, how: str) -> None:
    (tmp_path / "server.py").write_text(SERVER)
    words = ["SIGTERM", "stubborn"] if how == "stubborn" else [how]
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert parent.stdout and parent.stdout.readline() == "ready\n"
    pids = processes(tmp_path / "server.log")
    if words[0].startswith("SIG"):
        os.killpg(parent.pid, getattr(signal, words[0]))  # as Ctrl-C reaches a whole group
    parent.wait(60)
    assert all_ended(pids)


def test_stopping_waits_for_the_whole_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    server = start(tmp_path)
    server.wait_until_healthy(60)
    assert "PYTHONPATH None 3" in server.tail(), "its environment is its own"
    pids = processes(tmp_path / "server.log")
    server.stop()
    assert not any(map(is_running, pids))
    server.stop()  # again, which changes nothing


def test_a_server_ends_if_its_keeper_is_killed(tmp_path: Path) -> None:
    server = start(tmp_path)
    server.wait_until_healthy(60)
    pid, engine = processes(tmp_path / "server.log")
    server._process.kill()
    assert all_ended([pid])
    os.kill(engine, signal.SIGKILL)  # a server's own children are its own business then
    server.stop()


@pytest.mark.parametrize(
    ("word", "said"),
    [("broken", r"ended with status 1.*CUDA out of memory"), ("slow", "did not answer within 1 s")],
)
def test_a_server_that_does_not_get_ready_is_named_with_its_log(
    tmp_path: Path, word: str, said: str
) -> None:
    server = start(tmp_path, word)
    with pytest.raises(PrerequisiteError, match=rf"(?s){said}"):
        server.wait_until_healthy(30 if word == "broken" else 1)
    log = tmp_path / "server.log"
    assert all_ended(processes(log) if word == "slow" else [])


def test_errors_of_requests_are_errors_of_a_service(tmp_path: Path) -> None:
    server = start(tmp_path)
    server.wait_until_healthy(60)
    with pytest.raises(ServiceError, match="refused /v1/load_lora_adapter"):
        server.request("/v1/load_lora_adapter", {})
    server.stop()
    with pytest.raises(ServiceError, match="did not answer /health"):
        server.request("/health")


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    server = ServerProcess("vLLM", ["/no/such/vllm"], {}, tmp_path / "server.log")
    with pytest.raises(PrerequisiteError, match=r"(?s)ended with status 1.*/no/such/vllm"):
        server.wait_until_healthy(30)

"""The client against a server that is not ours: ``transformers serve`` with an untrained model."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers.utils.import_utils import is_serve_available

from flipbench.config.chat import ChatSpec
from flipbench.config.served_model import ServedModelConfig
from flipbench.core.errors import ConfigError
from flipbench.core.images import ImageStore
from flipbench.core.records import Item, Response
from flipbench.models.chat.api import ChatAPI
from flipbench.models.chat.messages import ChatReply, ChatRequest
from flipbench.models.vlm.huggingface import HuggingFaceVLM
from flipbench.models.vlm.served import APIVLM
from flipbench.prompting.prompts import PromptSettings

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not is_serve_available(), reason="needs pip install transformers[serving]"),
]
_SECONDS_TO_START = 180


@pytest.fixture(scope="module")
def checkpoint(tiny_folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the LLaVA checkpoint, with so many end marks that it soon says one."""
    folder = tmp_path_factory.mktemp("served") / "tiny-vlm"
    shutil.copytree(tiny_folders["llava"], folder)
    path = folder / "generation_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"eos_token_id": list(range(2, 1000, 2))}))
    return folder


@pytest.fixture(scope="module")
def base_url(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = "from transformers.cli.transformers import main; main()"
    arguments = ["serve", str(checkpoint), "--device", "cpu", "--host", "127.0.0.1"]
    log = tmp_path_factory.mktemp("log") / "serve.txt"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments, "--port", str(port)],
            stdout=file,
            stderr=file,
            env=os.environ | {"HF_HUB_OFFLINE": "1", "NO_PROXY": "127.0.0.1"},
        )
    try:
        deadline = time.monotonic() + _SECONDS_TO_START
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-2000:]
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        process.wait()


def test_it_answers_about_images(
    base_url: str,
    checkpoint: Path,
    shapes_store: ImageStore,
    shapes_items: list[Item],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    spec = ChatSpec(
        model=str(checkpoint), base_url=base_url, api_key_env=None, temperature=0, max_tokens=40
    )
    chat = ChatAPI(spec)
    pictures = [item.images for item in shapes_items[:2]]
    seen, other, blind = chat.ask(
        [ChatRequest("Describe.", "The picture:", refs) for refs in (*pictures, ())], shapes_store
    )
    assert isinstance(seen, ChatReply) and isinstance(other, ChatReply)
    assert isinstance(blind, ChatReply)
    assert seen.usage["sent"] == {"temperature": 0.0, "max_tokens": 40}
    n_tokens = [reply.usage["prompt_tokens"] for reply in (seen, other, blind)]
    assert n_tokens[0] == n_tokens[1] >= n_tokens[2] + 16, "a picture is 16 tokens"


def test_another_model_is_refused_with_the_server_s_message(
    base_url: str, shapes_store: ImageStore
) -> None:
    spec = ChatSpec(model="nope", base_url=base_url, api_key_env=None)
    (reply,) = ChatAPI(spec).ask([ChatRequest("Describe.", "x")], shapes_store)
    assert "pinned to" in str(reply) and "'nope'" in str(reply)


def test_a_model_under_test_answers_as_it_does_in_memory(
    base_url: str,
    checkpoint: Path,
    shapes_store: ImageStore,
    shapes_items: list[Item],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    spec = ServedModelConfig(
        model=str(checkpoint), base_url=base_url, api_key_env=None, n_concurrent=1
    )
    served, local = APIVLM(spec, "served"), HuggingFaceVLM(str(checkpoint))
    assert served.can == {"generate", "sample", "text_only"} and "not choose" in caplog.text, (
        "it ignores logprobs"
    )
    prompt_settings = PromptSettings(ask="generate", max_new_tokens=12)
    probes = [prompt_settings.probe(item, "original") for item in shapes_items[:10]]
    probes += [prompt_settings.probe(item, "blind", images=()) for item in shapes_items[:4]]
    answers = served.ask(probes, shapes_store)
    assert [a.text for a in answers if isinstance(a, Response)] == [
        b.text for b in local.ask(probes, shapes_store)
    ]
    assert len({a.text for a in answers if isinstance(a, Response)}) > 3
    refused, _ = served.ask(
        [PromptSettings().probe(shapes_items[0], "original"), probes[0]], shapes_store
    )
    assert isinstance(refused, ConfigError)

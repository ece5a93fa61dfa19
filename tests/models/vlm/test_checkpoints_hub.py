"""Without a network, the cache is used at once."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator

import pytest
from huggingface_hub import constants

from flipbench.core.errors import PrerequisiteError
from flipbench.models.vlm.checkpoints import check_hub
from flipbench.models.vlm.huggingface import HuggingFaceVLM


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Allow requests to the hub, which is at a closed port of this machine."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    check_hub.cache_clear()
    yield
    check_hub.cache_clear()


def test_an_unreachable_hub_costs_no_retries(
    online: None, caplog: pytest.LogCaptureFixture
) -> None:
    start = time.monotonic()
    for _ in range(2):
        with pytest.raises(PrerequisiteError, match="nobody/no-such-model: cannot load"):
            HuggingFaceVLM("nobody/no-such-model")
    assert time.monotonic() - start < 5
    assert constants.HF_HUB_OFFLINE and os.environ["HF_HUB_OFFLINE"] == "1"
    assert caplog.text.count("127.0.0.1 cannot be reached") == 1
    assert "Retry" not in caplog.text


def test_a_hub_that_answers_stays_in_use(online: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        monkeypatch.setattr(constants, "ENDPOINT", address)
        check_hub()
    assert not constants.HF_HUB_OFFLINE


def test_behind_a_proxy_nothing_is_asked(online: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    check_hub()
    assert not constants.HF_HUB_OFFLINE

"""A tiny Flux with its ControlNets."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fixtures import tiny_flux


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny-flux")
    tiny_flux.main(folder)
    return folder

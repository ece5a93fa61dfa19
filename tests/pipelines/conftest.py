"""A tiny Flux with its ControlNets."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.fixtures import tiny_flux  # imports diffusers

    folder = tmp_path_factory.mktemp("tiny-flux")
    tiny_flux.main(folder)
    return folder

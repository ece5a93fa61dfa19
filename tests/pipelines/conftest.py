"""A tiny Flux with its ControlNets."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fixtures.shared_folder import shared_folder


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.fixtures import tiny_flux  # imports diffusers

    return shared_folder(tmp_path_factory, "tiny-flux", tiny_flux.main)

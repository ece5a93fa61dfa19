"""What the tests share: the embedded world's items, and untrained models of both families."""

from __future__ import annotations

import gc
import os
import re
import ssl
import sys
from collections.abc import Callable, Iterator
from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import settings
from PIL import Image

from flipbench import cli
from flipbench.core.images import ImageStore
from flipbench.core.records import Item
from flipbench.shapes.benchmark import shapes_vqa
from studies.tiny_models.curriculum import corpus
from tests.fixtures.command_line import Flipbench, Result
from tests.fixtures.shared_folder import shared_folder

if TYPE_CHECKING:
    from flipbench.models.vlm.huggingface import HuggingFaceVLM

pytest_plugins = ["tests.fixtures.browser", "tests.fixtures.openai_server"]

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
gc.disable()  # until everything is imported


SLOW_FIXTURES = {
    "browser": "drives Chromium",
    "diffusion_folder": "draws with a diffusion model",
    "new_run": "trains",
    "opened": "trains",
}


QUICK = "not slow"
_LIBRARY = 200
"""Modules that a large library imports, such as peft."""
_n_frozen = 0

settings.register_profile("all", deadline=None)  # a busy machine is no failure
settings.register_profile("quick", deadline=None, max_examples=20)


def pytest_configure(config: pytest.Config) -> None:
    """Try fewer random examples in the quick tests."""
    settings.load_profile("quick" if config.option.markexpr == QUICK else "all")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave files that are slow throughout unread in the quick tests: imports take seconds."""
    if config.option.markexpr != QUICK or collection_path.suffix != ".py":
        return None
    slow = re.search(r"^pytestmark = \[?\s*pytest\.mark\.slow", collection_path.read_text(), re.M)
    return bool(slow) or None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Run one process more than there are cores: tests wait for browsers and servers."""
    return (os.cpu_count() or 1) + 1


def pytest_collection_finish() -> None:
    """Keep what was imported out of collections of garbage."""
    _freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Search nothing when the process ends."""
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Iterator[None]:
    """Do so again after a test that imported a library."""
    yield
    if nextitem and len(sys.modules) > _n_frozen + _LIBRARY:
        _freeze()


def _freeze() -> None:
    global _n_frozen
    gc.collect()
    gc.freeze()
    _n_frozen = len(sys.modules)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Draw figures only where a test looks at them: they take most of the time of a report."""
    from matplotlib.figure import Figure

    with pytest.MonkeyPatch.context() as patch:
        if item.get_closest_marker("figures") is None:
            patch.setattr(Figure, "savefig", _save_blank)
        return (yield)


def _save_blank(figure: Any, file: Any, *, format: str = "", **settings: object) -> None:
    """Write a figure's words alone, or a picture of nothing."""
    from matplotlib.text import Text

    if hasattr(file, "write"):
        words = escape(" ".join(text.get_text() for text in figure.findobj(Text)))
        size = 'xmlns="http://www.w3.org/2000/svg" width="1" height="1"'
        file.write(f"<svg {size}><text>{words}</text></svg>")
    else:
        Image.new("RGB", (1, 1)).save(file, format or None)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Go back to one thread: another number changes the last bits, and pictures with them."""
    import torch

    torch.set_num_threads(1)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave whatever needs a slow fixture out of the quick tests."""
    for item in items:
        if SLOW_FIXTURES.keys() & set(getattr(item, "fixturenames", ())):
            item.add_marker("slow")


@pytest.fixture(scope="session", autouse=True)
def unflushed() -> Iterator[None]:
    """Flush nothing to disk: the tests end processes, not the power, and wait for each flush."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)  # a closed file is an error all the same
        yield


@pytest.fixture(scope="session", autouse=True)
def one_ssl_context() -> Iterator[None]:
    """Read the certificates of authorities once: the tests make hundreds of HTTP clients."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl, "create_default_context", cache(ssl.create_default_context))
        yield


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    """Return an empty image store."""
    return ImageStore(tmp_path / "images")


@pytest.fixture(scope="session")
def shapes_store(tmp_path_factory: pytest.TempPathFactory) -> ImageStore:
    """Return the store that holds the pictures of `shapes_items`."""
    return ImageStore(tmp_path_factory.mktemp("shapes") / "images")


@pytest.fixture(scope="session")
def shapes_items(shapes_store: ImageStore) -> list[Item]:
    """Return the first 60 items of shapes-vqa."""
    return shapes_vqa(shapes_store, 60)


@pytest.fixture(scope="session")
def every_tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return an untrained checkpoint of each family that lineages are trained of."""
    from studies.tiny_models.tiny import BUILDERS, build

    def save_all(folder: Path) -> None:
        texts = corpus(np.random.default_rng(0))
        for family in BUILDERS:
            for part in build(family, texts):
                part.save_pretrained(folder / f"tiny-{family}")

    models = shared_folder(tmp_path_factory, "models", save_all)
    return {family: models / f"tiny-{family}" for family in BUILDERS}


@pytest.fixture(scope="session")
def tiny_folders(every_tiny_folder: dict[str, Path]) -> dict[str, Path]:
    """Return an untrained checkpoint of each family that is shipped."""
    from studies.tiny_models.tiny import FAMILIES

    return {family: every_tiny_folder[family] for family in FAMILIES}


@pytest.fixture(scope="session")
def tiny_vlm(every_tiny_folder: dict[str, Path]) -> Callable[[str], HuggingFaceVLM]:
    """Load an untrained model by family, once."""
    from flipbench.models.vlm.huggingface import HuggingFaceVLM

    loaded: dict[str, HuggingFaceVLM] = {}

    def load(family: str) -> HuggingFaceVLM:
        if family not in loaded:
            loaded[family] = HuggingFaceVLM(str(every_tiny_folder[family]))
        return loaded[family]

    return load


@pytest.fixture(autouse=True, scope="session")
def state_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Note which runs are the user's own in a folder of the tests."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture
def flipbench(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Flipbench:
    """Run the command line in this process, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str | Path) -> Result:
        monkeypatch.setattr(sys, "argv", ["flipbench", *map(str, arguments)])
        capsys.readouterr()
        try:
            cli.main()
            status = 0
        except SystemExit as stop:
            status = int(stop.code or 0)
        printed = capsys.readouterr()
        assert "Traceback" not in printed.out + printed.err
        return Result(status, printed.out, printed.err)

    return run


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "c.yaml"
    path.write_text("run: runs/x\nbenchmark: {format: shapes, n_items: 12}\n")
    return path

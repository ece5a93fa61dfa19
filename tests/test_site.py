"""The documentation as a site: it is built without a warning, and its made pages are whole."""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from flipbench.config.experiment import Config
from flipbench.evaluate.detectors.registry import DETECTORS

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build with warnings as errors: a broken link or anchor, or a page in no menu, is one."""
    folder = tmp_path_factory.mktemp("site")
    quiet = {"NO_MKDOCS_2_WARNING": "1", "DISABLE_MKDOCS_2_WARNING": "true"}
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(folder)],
        cwd=ROOT,
        env=os.environ | quiet,
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    assert "WARNING" not in built.stderr
    return folder


def test_the_front_page_is_the_readme_with_its_pictures(site: Path) -> None:
    page = (site / "index.html").read_text()
    assert "Was this model trained on my test set?" in page
    pictures = re.findall(r'<img[^>]*src="([^"]+)"', page)
    assert pictures and all((site / name).exists() for name in pictures)


def test_every_key_command_record_and_function_has_its_place(site: Path) -> None:
    keys = (site / "reference/configuration/index.html").read_text()
    assert all(f"<code>{name}</code>" in keys for name in Config.model_fields)
    assert "detectors" in keys and "control" in keys
    commands = (site / "reference/cli/index.html").read_text()
    assert all(f"flipbench {name}" in commands for name in ("generate", "detect", "review"))
    assert "verdict is on disk at once." in commands.partition('id="flipbench-demo"')[0]
    for page, names in (("records", ("Edit", "Verdict", "Score")), ("api", ("detect", "gap"))):
        text = (site / "reference" / page / "index.html").read_text()
        assert all(re.search(rf'id="flipbench[\w.]*\.{name}"', text) for name in names), page


def test_every_detector_is_described(site: Path) -> None:
    text = html.unescape((site / "papers/index.html").read_text())
    assert [d.about.title for d in DETECTORS.values() if d.about.title not in text] == []


def test_an_interval_is_no_link_and_a_file_outside_is_named(site: Path) -> None:
    page = (site / "demo/index.html").read_text()
    assert re.search(r"8/8 \[[\d.]+, 100\.0\] pooled \[", page)
    assert "](../" not in (site / "generating/index.html").read_text()

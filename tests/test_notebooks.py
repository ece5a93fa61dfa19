"""The notebooks of ``examples/`` run from top to bottom, and show what their text says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

EXAMPLES = Path(__file__).parents[1] / "examples"

pytestmark = pytest.mark.slow


def outputs(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a notebook in ``folder``; return all that its cells print and show, as one text."""
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLES.parent))
    monkeypatch.setenv(
        "OMP_NUM_THREADS", "1"
    )  # the models are tiny: threads cost more than they bring
    notebook: Any = nbformat.read(EXAMPLES / name, as_version=4)
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=300, resources=resources).execute()
    shown = []
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            shown += [output.get("text", ""), *map(str, output.get("data", {}).values())]
    return "\n".join(shown)


def test_audit_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = outputs("audit_a_model.ipynb", tmp_path, monkeypatch)
    assert "16 pairs; the first:" in text
    assert "No contamination of shapes:llava with shapes-vqa was detected" in text
    assert "parrot behaves like a model that was trained on shapes-vqa" in text
    assert "contaminated -1.0" in text
    assert (tmp_path / "runs/audit-llava/report/index.html").exists()


def test_make_a_perturbed_benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = outputs("make_a_perturbed_benchmark.ipynb", tmp_path, monkeypatch)
    assert "16 of 16 items edited" in text and "pairs of shapes-vqa kept" in text
    assert (tmp_path / "runs/flipped/filter/reasons.csv").exists()
    assert list((tmp_path / "exported").rglob("*.tsv"))
    assert "a model behaves like a model that was trained on mine" in text


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.ipynb")), ids=lambda path: path.name)
def test_notebooks_are_stored_without_outputs(path: Path) -> None:
    notebook: Any = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)

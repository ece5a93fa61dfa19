"""The notebooks of ``examples/`` run from top to bottom, and show what their text says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

EXAMPLES = Path(__file__).parents[1] / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, Path]]:
    """Run the notebooks, one after the other in one kernel: it takes seconds to import everything.

    Returns
    -------
    dict
        All that the cells of each print and show, as one text, and the folder where it ran.
    """
    folders = {path.name: tmp_path_factory.mktemp(path.stem) for path in NOTEBOOKS}
    whole: Any = nbformat.v4.new_notebook()
    spans = {}
    for path in NOTEBOOKS:
        begin = f"%reset -f\n%cd -q {folders[path.name]}"
        cells = nbformat.read(path, as_version=4).cells
        spans[path.name] = slice(len(whole.cells), len(whole.cells) + 1 + len(cells))
        whole.cells += [nbformat.v4.new_code_cell(begin), *cells]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(EXAMPLES.parent))
        patch.setenv("OMP_NUM_THREADS", "1")  # tiny models: threads cost more than they bring
        NotebookClient(whole, timeout=300).execute()
    texts = {}
    for name, span in spans.items():
        outputs = [output for cell in whole.cells[span] for output in cell.get("outputs", ())]
        lines = [(o.get("text", ""), *map(str, o.get("data", {}).values())) for o in outputs]
        texts[name] = "\n".join(text for line in lines for text in line), folders[name]
    return texts


def test_audit_a_model(shown: dict[str, tuple[str, Path]]) -> None:
    text, folder = shown["audit_a_model.ipynb"]
    assert "16 pairs; the first:" in text
    assert "No contamination of shapes:llava with shapes-vqa was detected" in text
    assert "parrot behaves like a model that was trained on shapes-vqa" in text
    assert "contaminated -1.0" in text
    assert (folder / "runs/audit-llava/report/index.html").exists()


def test_make_a_perturbed_benchmark(shown: dict[str, tuple[str, Path]]) -> None:
    text, folder = shown["make_a_perturbed_benchmark.ipynb"]
    assert "16 of 16 items edited" in text and "pairs of shapes-vqa kept" in text
    assert (folder / "runs/flipped/filter/reasons.csv").exists()
    assert list((folder / "exported").rglob("*.tsv"))
    assert "a model behaves like a model that was trained on mine" in text


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebooks_are_stored_without_outputs(path: Path) -> None:
    notebook: Any = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)

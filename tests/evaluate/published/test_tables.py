"""Reading published tables, and what `flipbench doctor` prints of them."""

from pathlib import Path

import pytest

from flipbench.core.errors import DataError
from flipbench.evaluate.published.doctor import examination, examine
from flipbench.evaluate.published.tables import read_published

PUBLISHED = Path(__file__).parents[2] / "published"


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model,n\nm,10\n", "no column 'original'"),
        ("n,orig,pert\n10,40.0\n", "line 2: the number of cells differs"),
        ("n,orig,pert\n10,forty,50.0\n", "line 2, column 'orig': 'forty' is not a number"),
        ("n,orig,pert\n10,NaN,50.0\n", "line 2, column 'orig'"),
        ("n,orig,pert\nten,40.0,50.0\n", "n is 'ten'"),
        ("n,orig,pert\n0,40.0,50.0\n", "n is '0'"),
        ("n,orig,pert,epoch\n10,40.0,50.0,last\n", "'last' is not a whole number"),
        ("metric,N,clean\nperturbed,10,50.0\n", "no row for the metric 'original'"),
    ],
)
def test_a_table_that_cannot_be_read(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_published(write(tmp_path / "table.csv", text))


def test_a_user_s_own_small_table_is_checked(tmp_path: Path) -> None:
    text = "model,n,orig,pert,delta\nmine,10,70.0,50.0,−20.0\nyours,10,75.0,50.0,-20.0\n"
    found = examine(read_published(write(tmp_path / "own.csv", text)))
    assert [(f.row.line, f.kind) for f in found if f.wrong] == [(3, "impossible"), (3, "delta")]
    assert str(found[-1]).startswith("own.csv, line 3 (yours): ")


def test_a_count_beside_its_percentage(tmp_path: Path) -> None:
    text = "slice,k,n,rate_pct\na,4,451,0.89\nb,5,451,0.89\n"
    (found,) = examine(read_published(write(tmp_path / "rates.csv", text)))
    assert (found.row.line, found.kind) == (3, "count") and "1.109" in found.what


def test_the_printed_examination(tmp_path: Path) -> None:
    text, wrong = examination([PUBLISHED / "perturbation_main_tables.csv"])
    assert (
        wrong and "1 finding: cannot all be true\n  perturbation_main_tables.csv, line 30 (" in text
    )
    assert "recomputed, circular_eval by rule 'paper': contaminated models detected 21/24" in text
    own = write(tmp_path / "own.csv", "model,n,orig,pert\nmine,10,70.0,10.0\n")
    text, wrong = examination([own])
    assert not wrong and text.startswith("rows: 1; percentages of a known number of items: 2\n")
    assert "recomputed" not in text

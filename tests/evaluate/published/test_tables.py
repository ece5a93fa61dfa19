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
        ("n,orig,pert\n10,40.0\n", "line 2: 2 cells, but the header has 3"),
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
    assert "cells printed in several tables" not in text
    own = write(tmp_path / "own.csv", "model,n,orig,pert\nmine,10,70.0,10.0\n")
    text, wrong = examination([own])
    assert not wrong and text.startswith("rows: 1; percentages of a known number of items: 2\n")
    assert "recomputed" not in text


def test_several_files_are_compared_and_told_apart(tmp_path: Path) -> None:
    head = "model,bench,n,strategy,epoch,orig,pert\n"
    for name, figure in (("a", "70.0"), ("b", "80.0")):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "t.csv", f"{head}mine,x,10,clean,0,{figure},90.0\n")
    paths = [tmp_path / name / "t.csv" for name in ("a", "b", "a")]
    text, wrong = examination(paths)
    assert wrong and text.startswith("rows: 2; ")
    assert "cells printed in several tables: 2; the same in all: 1\n" in text
    assert f"{paths[1]}, line 2 (mine, x, clean): conflict: original is 80.0 here" in text
    assert f"70.0 in 1 other place, the first {paths[0]}, line 2" in text


def test_one_column_per_detector(tmp_path: Path) -> None:
    text = "model,bench,n,strategy,epoch,SL_p,GP_pct\nmine,x,10,clean,0,0.333,20.0\n"
    rows = read_published(write(tmp_path / "texts.csv", text))
    assert [(r.quantity, str(r.value)) for r in rows] == [
        ("shared_likelihood", "0.333"),
        ("guided_prompting", "20.0"),
    ]
    assert examine(rows) == []  # a p-value is no share of ten items
    impossible = read_published(write(tmp_path / "texts.csv", text.replace("20.0", "25.0")))
    assert [f.kind for f in examine(impossible)] == ["impossible"]

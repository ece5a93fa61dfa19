"""The matrix of items and models, and its two kinds of file."""

from pathlib import Path

import numpy as np
import pytest

from flipbench.core.errors import DataError
from flipbench.evaluate.cohort.cohort import Cohort, read_cohort, residuals, strata_of

LONG = """item_id,model,score,answer_type,answer_tokens
q1,a,-1,open,3
q2,a,,closed,1
q3,a,-3,open,2
q1,b,-4,open,3
q2,b,-5,closed,1
q3,b,-7.5,open,2
"""
WIDE = """item_id,answer_type,a,answer_tokens,b
q1,open,-1,3,-4
q2,closed,nan,1,-5
q3,open,-3,2,-7.5
"""


def cohort_of(scores: object, **changes: object) -> Cohort:
    matrix = np.array(scores, dtype=float)
    n_items, n_models = matrix.shape
    items, models = [f"q{i}" for i in range(n_items)], [f"m{j}" for j in range(n_models)]
    parts = {"item_ids": items, "models": models, "external": frozenset(), **changes}
    return Cohort("b", scores=matrix, **parts)  # type: ignore[arg-type]


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "scores.csv"
    path.write_text(text)
    return path


@pytest.mark.parametrize("text", [LONG, WIDE])
def test_long_and_wide_files_give_the_same_cohort(tmp_path: Path, text: str) -> None:
    cohort = read_cohort(write(tmp_path, text), external=["b"])
    assert (cohort.benchmark, cohort.item_ids) == ("scores", ["q1", "q2", "q3"])
    assert cohort.models == ["a", "b"]
    assert cohort.external == frozenset("b")
    np.testing.assert_equal(cohort.scores, [[-1, -4], [np.nan, -5], [-3, -7.5]])
    assert cohort.covariates["answer_type"].tolist() == ["open", "closed", "open"]
    assert cohort.covariates["answer_tokens"].tolist() == [3, 1, 2]
    assert cohort.missing() == {"a": ["q2"]}
    assert cohort.complete().tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,a,b\nq1,1,2\n", "no column 'item_id'"),
        ("item_id,model,value\nq1,a,1\n", "no column 'score'"),
        ("item_id,a,b\nq1,1,2\nq1,2,3\n", "line 3: item 'q1' is also in line 2"),
        ("item_id,model,score\nq1,a,1\nq1,a,2\n", "line 3: item 'q1' of model 'a' appears twice"),
        ("item_id,a,b\nq1,1,2\nq2,x,3\n", "line 3, column 'a': 'x' is not a score"),
        ("item_id,a,b\nq1,1,2\nq2,1\n", "line 3: 2 cells, but the header has 3"),
        (
            "item_id,a\nq1,1\nq2,2\n",
            "scores.csv: cohort 'scores': a comparison needs at least 2 models",
        ),
        ("item_id,a,b\n", "0 items; a comparison needs at least 2"),
        ("item_id,a,b\nq1,1,2\nq2,1,3\n", "model 'a': all 2 items have the score 1"),
        ("item_id,a,b\nq1,,2\nq2,,3\n", "model 'a': no item has a score"),
        ("item_id,a,b\nq1,inf,2\nq2,1,3\n", "the score of item 'q1' is infinite"),
        (LONG.replace("q2,b,-5,closed", "q2,b,-5,open"), "line 6, column 'answer_type': 'open'"),
        (
            "item_id,model,score\nq1,a,1\nq2,a,2\nq2,b,1\nq1,b,2\n",
            "line 5: model 'b' has item 'q1' after 'q2'",
        ),
    ],
)
def test_a_file_that_is_no_cohort_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError) as error:
        read_cohort(write(tmp_path, text))
    assert message in str(error.value)


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        read_cohort(tmp_path / "none.csv")
    path = tmp_path / "latin.csv"
    path.write_bytes(b"item_id,a,b\nq\xe9,1,2\n")
    with pytest.raises(DataError, match="line 2: not UTF-8"):
        read_cohort(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"item_ids": ["q", "q"]}, "item 'q' appears twice"),
        ({"models": ["m", "m"]}, "model 'm' appears twice"),
        ({"external": frozenset({"m9"})}, "no external model 'm9'"),
        ({"item_ids": ["q"]}, r"shape \(2, 2\)"),
        ({"covariates": {"length": np.array([1.0])}}, "covariate 'length'"),
    ],
)
def test_a_matrix_that_is_no_cohort_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        cohort_of([[1, 2], [3, 4]], **changes)


def test_strata_are_categories_or_bins() -> None:
    lengths = np.array([*range(100), np.nan])
    strata = strata_of(lengths)
    assert np.bincount(strata).tolist() == [10] * 10 + [1]
    assert (np.diff(strata) >= 0).all()
    assert strata_of(np.array([5.0, 1, 5])).tolist() == [1, 0, 1]


def test_residuals_are_what_least_squares_leaves() -> None:
    draw = np.random.default_rng(0)
    kinds, lengths = np.array(["x", "y"] * 20), draw.permutation(40).astype(float)
    values = 3 * lengths + 50 * (kinds == "y") + draw.normal(size=40)
    found = residuals(values, [kinds, lengths])
    for kind in ("x", "y"):
        assert found[kinds == kind].mean() == pytest.approx(0, abs=1e-5)
    assert np.corrcoef(found, lengths)[0, 1] == pytest.approx(0, abs=1e-5)
    assert residuals(values, [values]).tolist() == [0.0] * 40
    with pytest.raises(ValueError, match="missing"):
        residuals(values, [np.where(lengths > 5, lengths, np.nan)])

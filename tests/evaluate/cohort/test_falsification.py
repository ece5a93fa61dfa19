"""A rule that fires on an external model gives no verdict on any model."""

from typing import Any

import pandas as pd

from flipbench.evaluate.cohort.falsification import count_external, falsify

EXTERNAL = {"base", "base2"}


def frame(*rows: tuple[Any, ...]) -> pd.DataFrame:
    """Return rows of (rule, benchmark, model, p or flag)."""
    return pd.DataFrame(
        {
            "rule": [row[0] for row in rows],
            "benchmark": [row[1] for row in rows],
            "model": [row[2] for row in rows],
            "p": [row[3] if isinstance(row[3], float) else None for row in rows],
            "flag": [row[3] if isinstance(row[3], bool) else None for row in rows],
        }
    )


def statuses(results: pd.DataFrame, alpha: float = 0.01) -> list[str]:
    return falsify(results, EXTERNAL, alpha=alpha)["status"].tolist()


def test_one_external_model_turns_every_verdict_of_the_rule_on_that_benchmark() -> None:
    results = frame(
        ("order trend", "pathvqa", "target", 0.0001),
        ("order trend", "pathvqa", "other", 0.6),
        ("order trend", "pathvqa", "base", 0.0016),
        ("order trend", "pathvqa", "base2", 1.0),
        ("order trend", "slake", "target", 0.0005),
        ("order trend", "slake", "base", 0.31),
        ("top-k", "pathvqa", "target", 0.0001),
        ("tail", "pathvqa", "target", True),
        ("tail", "pathvqa", "base", False),
        ("tail", "pathvqa", "other", False),
        ("tail", "slake", "target", None),
    )
    assert statuses(results) == [
        *["artefact_suspected"] * 4,
        "significant",
        "not_significant",
        "unchecked",
        "significant",
        "not_significant",
        "not_significant",
        "not_tested",
    ]
    falsified = falsify(results, EXTERNAL)
    assert falsified["fires_on"].tolist()[:5] == [("base",)] * 4 + [()]
    assert falsified["external"].tolist()[:4] == [False, False, True, True]
    headline = "1 of 3 rules fired on external baselines; 1 without one"
    assert count_external(falsified) == (1, headline)


def test_the_level_is_the_same_for_every_model() -> None:
    results = frame(("r", "b", "target", 0.01), ("r", "b", "base", 0.02))
    assert statuses(results) == ["not_significant"] * 2  # p < alpha, as in the paper
    assert statuses(results, alpha=0.015) == ["significant", "not_significant"]
    assert statuses(results, alpha=0.05) == ["artefact_suspected"] * 2


def test_an_external_model_that_was_not_tested_checks_nothing() -> None:
    results = frame(("r", "b", "target", 0.001), ("r", "b", "base", None))
    assert statuses(results) == ["unchecked", "not_tested"]
    headline = "0 of 0 rules fired on external baselines; 1 without one"
    assert count_external(falsify(results, EXTERNAL)) == (0, headline)

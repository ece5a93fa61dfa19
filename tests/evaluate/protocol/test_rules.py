"""The decision rules on the numbers of golden/rules.json."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flipbench.evaluate.protocol import rules
from flipbench.evaluate.statistics.paired import mcnemar_p

GOLDEN = json.loads((Path(__file__).parent / "golden" / "rules.json").read_text())


def check_beyond(case: dict[str, Any]) -> None:
    direction = case.get("direction", "falls")
    found = rules.beyond(case["statistic"], case.get("reference", 0.0), direction)
    assert found == case["verdict"]


def check_significant(case: dict[str, Any]) -> None:
    assert rules.significant(mcnemar_p(case["b"], case["c"], "drop")) == case["verdict"]


def check_unparsed(case: dict[str, Any]) -> None:
    warning = rules.unparsed_warning({"one": tuple(case["a"]), "two": tuple(case["b"])})
    assert (warning is not None) == case["refused"]


def check_too_few(case: dict[str, Any]) -> None:
    warning = rules.too_few_warning(case["n"])
    assert (warning is not None) == case["refused"]
    assert warning is None or str(case["n"]) in warning


CHECKS: dict[str, Callable[[dict[str, Any]], None]] = {
    "beyond": check_beyond,
    "significant": check_significant,
    "unparsed": check_unparsed,
    "too_few": check_too_few,
}


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: f"{case['of']}: {case['name']}")
def test_golden_cases(case: dict[str, Any]) -> None:
    check_case = CHECKS[case["of"]]
    check_case(case)

"""A rule that fires on an external model gives no verdict on any model."""

from flipbench.evaluate.cohort.falsification import RuleResult, count_external, falsify

EXTERNAL = {"base", "base2"}


def statuses(results: list[RuleResult], alpha: float = 0.01) -> list[str]:
    return [row.status for row in falsify(results, EXTERNAL, alpha=alpha)]


def test_one_external_model_turns_every_verdict_of_the_rule_on_that_benchmark() -> None:
    results = [
        RuleResult("order trend", "pathvqa", "target", p=0.0001),
        RuleResult("order trend", "pathvqa", "other", p=0.6),
        RuleResult("order trend", "pathvqa", "base", p=0.0016),
        RuleResult("order trend", "pathvqa", "base2", p=1.0),
        RuleResult("order trend", "slake", "target", p=0.0005),
        RuleResult("order trend", "slake", "base", p=0.31),
        RuleResult("top-k", "pathvqa", "target", p=0.0001),
        RuleResult("tail", "pathvqa", "target", flag=True),
        RuleResult("tail", "pathvqa", "base", flag=False),
        RuleResult("tail", "pathvqa", "other", flag=False),
        RuleResult("tail", "slake", "target"),
    ]
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
    assert [row.fires_on for row in falsified[:5]] == [("base",)] * 4 + [()]
    assert [row.external for row in falsified[:4]] == [False, False, True, True]
    assert str(count_external(falsified)) == (
        "1 of 3 rules fired on external baselines; 1 without one"
    )


def test_the_level_is_the_same_for_every_model() -> None:
    results = [RuleResult("r", "b", "target", p=0.01), RuleResult("r", "b", "base", p=0.02)]
    assert statuses(results) == ["not_significant"] * 2  # p < alpha, as in the paper
    assert statuses(results, alpha=0.015) == ["significant", "not_significant"]
    assert statuses(results, alpha=0.05) == ["artefact_suspected"] * 2


def test_an_external_model_that_was_not_tested_checks_nothing() -> None:
    results = [RuleResult("r", "b", "target", p=0.001), RuleResult("r", "b", "base")]
    assert statuses(results) == ["unchecked", "not_tested"]
    assert str(count_external(falsify(results, EXTERNAL))) == (
        "0 of 0 rules fired on external baselines; 1 without one"
    )

"""What a validation table must not claim: about what never moved, was not planted, or is double."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flipbench.core.records import Count, ReferenceResult, Score
from flipbench.evaluate.protocol.grid import GridModel
from flipbench.evaluate.report.validation_tables import (
    can_test,
    controls_table,
    default_tests,
    detectors_table,
    requirements_table,
    same_signal,
    validation_frame,
    validation_table,
)
from flipbench.evaluate.validation.dose import Series, is_monotone, untestable
from flipbench.evaluate.validation.requirements import requirements
from flipbench.evaluate.validation.validation import family_wise, validate
from flipbench.reporting import writers

GRID = [
    GridModel(name := f"{family} {strategy} {dose}", name, family, strategy, e, dose)
    for family in ("llava", "qwen")
    for strategy, e, dose in (
        ("clean", 0, 0), ("LoRA", 1, 4), ("LoRA", 2, 8), ("LoRA, control", 1, 0),
    )
]  # fmt: skip


def score(at: int, statistic: float | None, **more: Any) -> Score:
    values: dict[str, Any] = {
        "detector": "codec",
        "rule": "half",
        "model": GRID[at].name,
        "model_fingerprint": GRID[at].fingerprint,
        "benchmark": "b",
        "benchmark_id": "b",
        "statistic": statistic,
        "verdict": "contaminated",
        "n": 100,
        "direction": "rises",
    }
    return Score(**(values | more))


def scores(statistics: list[float], **more: Any) -> list[Score]:
    return [score(at, statistic, **more) for at, statistic in enumerate(statistics)]


@pytest.mark.parametrize(
    ("statistics", "more", "why"),
    [
        ([0.0] * 8, {}, "0 for all models"),
        ([-0.125] * 8, {"unit": "nats"}, "-0.125 for all models"),
        ([1.0] * 7 + [0.994], {}, "at its ceiling: at least 99.4 % for all models"),
        ([0.0] * 7 + [0.01], {}, "at its floor: at most 1.0 % for all models"),
        ([0.0] * 7 + [0.02], {}, ""),
        ([0.0] * 7 + [0.01], {"unit": "nats"}, ""),
        ([0.0] * 7 + [-0.01], {}, ""),
        ([0.3], {}, ""),
        ([], {}, ""),
    ],
)
def test_a_statistic_without_room_is_untestable(
    statistics: list[float], more: dict[str, Any], why: str
) -> None:
    assert untestable(scores(statistics, **more)) == why


def test_a_difference_is_judged_by_the_shares_behind_it() -> None:
    differences = [0.0] * 7 + [-0.006]
    ceiling = ReferenceResult(model="clean", statistic=1.0)
    half = ReferenceResult(model="clean", statistic=0.5)
    why = "at its ceiling: at least 99.4 % for all models"
    assert untestable(scores(differences, reference=ceiling)) == why
    assert untestable(scores([0.0] * 8, reference=ceiling)).startswith("at its ceiling")
    assert untestable(scores(differences, reference=half)) == ""
    low, high = ({"a": Count(k=k, n=400), "b": Count(k=3, n=400)} for k in (1, 200))
    assert untestable(scores(differences, accuracies=low)).startswith("at its floor")
    assert untestable(scores(differences, accuracies=high)) == ""


def test_nothing_is_ticked_if_the_statistic_does_not_move() -> None:
    """CoDeC at its ceiling flags every model: neither a tick nor an AUROC, but false alarms."""
    flat = scores([1.0] * 7 + [0.995])
    (v,) = validate(flat, GRID)
    assert v.separation is None and v.trend.p_value is None and v.trend.n_steps == 0
    assert (v.detected.k, v.alarms.k, v.alarms.n) == (4, 4, 4)
    found = requirements(flat, GRID, "codec", "half", True)
    glyphs = found.reliability_glyph, found.consistency_glyph, found.specificity_glyph
    assert glyphs == ("–", "–", "✗")
    why = "not testable here (at its ceiling: at least 99.5 % for all models)"
    assert why in writers.markdown(validation_table([v]))
    assert why in writers.markdown(requirements_table([found]))
    quiet = requirements(scores([0.0] * 8, verdict="not_detected"), GRID, "codec", "half", True)
    assert (quiet.reliability_glyph, quiet.specificity_glyph) == ("–", "–")


@pytest.mark.parametrize(
    ("values", "weak", "strict"),
    [((0, 0, 0), False, False), ((0, 0, 1), True, False), ((0, 1, 2), True, True),
     ((0, 1, 0.5), False, False)],
)  # fmt: skip
def test_monotone_needs_a_step(values: tuple[float, ...], weak: bool, strict: bool) -> None:
    line = Series("s", tuple(range(len(values))), values)
    assert is_monotone(line, True) is weak and is_monotone(line, True, strict=True) is strict
    falling = Series("s", line.doses, tuple(-value for value in values))
    assert is_monotone(falling, False) is weak


def of_detector(name: str, rule: str, p_values: list[float], **more: Any) -> list[Score]:
    return [
        score(at, float(-p), detector=name, rule=rule, p_value=p,
              verdict="contaminated" if p <= 0.05 else "not_detected", **more)
        for at, p in enumerate(p_values)
    ]  # fmt: skip


GAP = of_detector("perturbation_gap", "mcnemar", [0.5, 0.001, 0.001, 0.04] * 2)
ORDER = of_detector("option_order", "mcnemar", [0.04, 0.2, 0.03, 0.001] * 2)
CHOICE = of_detector("choice_confusion", "mcnemar", [0.9, 0.9, 0.9, 0.5] * 2)
CONSTAT = of_detector("constat", "bootstrap", [0.9, 0.001, 0.001, 0.5] * 2)


def test_holm_corrects_over_the_tests_of_a_model() -> None:
    all_scores = [*GAP, *ORDER, *CHOICE]
    tests = default_tests(validate(all_scores, GRID))
    assert tests == dict.fromkeys(
        ("perturbation_gap", "option_order", "choice_confusion"), "mcnemar"
    )
    found = family_wise(all_scores, GRID, tests)
    assert found is not None and found.n_tests == 3
    assert (found.detected.k, found.alarms.k, found.alarms.n) == (4, 4, 4)
    assert (found.holm_detected.k, found.holm_alarms.k) == (4, 2), "only the two controls"
    assert found.holm_alarms_by == {"option_order": 2}
    assert family_wise(GAP, GRID, tests) is None
    table = detectors_table(validate(all_scores, GRID), GRID, all_scores)
    name, rows = table.groups[-1]
    assert name == "All of these tests together, up to 3 per model"
    assert [row.cells[3].text for row in rows] == ["4/4", "2/4"]
    assert "flagged by Option-order sensitivity (2)" in table.caption


def test_a_rule_that_is_no_test_has_no_part_in_it() -> None:
    sign = of_detector("perturbation_gap", "sign", [0.01] * 8)
    tests = {"perturbation_gap": "mcnemar", "option_order": "mcnemar"}
    assert family_wise([*GAP, *ORDER, *sign], GRID, tests) == family_wise(
        [*GAP, *ORDER], GRID, tests
    )


def test_external_alarms_are_weighed_at_the_rule_s_own_level() -> None:
    external = [
        GridModel(name, name, name, "clean", 0, 0, external=True)
        for name in ("blip", "instructblip")
    ]
    for rule, chance in (
        ("sign", "by chance 75 % at level 0.5"),
        ("mcnemar", "by chance 10 % at level 0.05"),
    ):
        alarm = [
            score(0, -0.1 - at, detector="perturbation_gap", rule=rule, model=m.name,
                  model_fingerprint=m.fingerprint, direction="falls",
                  verdict="not_detected" if at else "contaminated")
            for at, m in enumerate(external)
        ]  # fmt: skip
        assert chance in writers.markdown(validation_table(validate(alarm, external)))
    alarm = [s.model_copy(update={"detector": "option_order", "rule": "bands"}) for s in alarm]
    text = writers.markdown(validation_table(validate(alarm, external)))
    assert "its level is unknown" in text


def test_a_detector_is_tested_only_on_what_it_is_made_for() -> None:
    grid = [
        GridModel(m.name, m.fingerprint, m.family, m.strategy, m.epoch, m.dose,
                  kind="letters" if m.dose else "")
        for m in GRID
    ]  # fmt: skip
    recite = scores([0.1, 0.2, 0.1, 0.3] * 2)
    gap, codec = validate([*GAP, *recite], grid)
    assert gap.kinds == codec.kinds == ("letters",)
    assert can_test(gap) == ("yes", "")
    assert can_test(codec) == ("negative control", "letters must not set it off")
    (trend,) = validate(of_detector("order_trend", "controlled", [0.5, 0.4] * 4), grid)
    assert can_test(trend) == ("no", "no model here was trained on whole texts")
    unknown = validate(recite, GRID)[0]
    assert unknown.kinds == () and can_test(unknown)[0] == "yes"
    two = [*GAP, *of_detector("ngram_accuracy", "paired", [0.5] * 8)]
    table = detectors_table(validate(two, grid), grid, two)
    assert [name for name, _ in table.groups] == [
        "Made to catch: letters, answer texts", "Made to catch: whole texts, question only",
        "All of these tests together, up to 2 per model",
    ]  # fmt: skip
    assert "trained on letters (answers to the questions, by letter)" in table.caption


def test_negative_controls_are_counted_by_kind_and_absent_ones_named() -> None:
    kinds: dict[int | None, Any] = {4: "letters", 8: "question only"}
    grid = [replace(model, kind=kinds.get(model.dose, "")) for model in GRID]
    codec = scores([0.1, 0.2, 0.1, 0.3] * 2, rule="relative")
    codec[1] = codec[1].model_copy(update={"verdict": "not_detected"})
    validations = validate([*GAP, *codec], grid)
    assert controls_table(validate([*GAP, *codec], GRID)) is None
    table = controls_table(validations)
    assert table is not None
    headers = [column.header for column in table.columns]
    assert headers == ["Letters", "Question only", "Image-caption"]
    rows = {row.header: [cell.text for cell in row.cells] for row in table.groups[0][1]}
    n_flagged = validations[0].by_kind["question only"].k
    assert rows == {
        "Perturbation gap": ["–", f"{n_flagged}/2", "not in this grid"],
        "CoDeC, context in the prompt": ["1/2", "–", "not in this grid"],
    }
    rows = validation_frame(validations).to_dict("records")
    found = [row for row in rows if row["quantity"] == "flagged_question_only"]
    assert [(r["detector"], r["n"]) for r in found] == [("perturbation_gap", 2), ("codec", 2)]


def test_detectors_of_one_signal_are_one_piece_of_evidence() -> None:
    scores = [*GAP, *CONSTAT, *ORDER]
    assert (
        "Perturbation gap and ConStat read the answers to the perturbed items: their agreement is"
        " one piece of evidence, not 2."
    ) in detectors_table(validate(scores, GRID), GRID, scores).caption
    assert same_signal(validate([*GAP, *ORDER], GRID)) == {}

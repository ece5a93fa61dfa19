"""A cohort's sections: what its headline counts, and what tables print."""

from __future__ import annotations

import numpy as np

from flipbench.evaluate.cohort.analysis import RANK_TAIL, analyse
from flipbench.evaluate.cohort.cohort import Cohort
from flipbench.evaluate.cohort.overlap_inflation import accuracy_inflation, overlap_inflation
from flipbench.evaluate.cohort.sections import (
    accuracy_inflation_table,
    cohort_sections,
    inflation_section,
    inflation_table,
    subpopulation_table,
    within_strata_table,
)
from flipbench.evaluate.cohort.subpopulations import models_within_strata, subpopulations
from flipbench.reporting import writers
from flipbench.reporting.sections import Status, markdown
from tests.evaluate.cohort.conftest import without

WORDS: dict[Status, str] = {
    "ok": "nothing found",
    "look": "have a look",
    "defect": "act",
    "not_run": "not run",
}


def cohort(scores: np.ndarray, external: tuple[str, ...] = ("base",)) -> Cohort:
    n = len(scores)
    return Cohort(
        benchmark="toy",
        item_ids=[f"i{k:03d}" for k in range(n)],
        models=["base", "one", "two", "three"],
        external=frozenset(external),
        scores=scores,
        covariates={
            "category": np.array(["closed", "open"] * (n // 2)),
            "question_words": np.arange(n) % 7,
            "image": np.array([f"p{k // 2}" for k in range(n)]),
        },
    )


def noise(seed: int = 0, n: int = 400) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return 2 * rng.normal(size=(n, 1)) + rng.normal(size=(n, 4)) / 2


def statuses(scores: np.ndarray, external: tuple[str, ...] = ("base",)) -> dict[str, str]:
    one = cohort(scores, external)
    found = analyse(one, one, n_permutations=199)
    return {section.key: section.status for section in cohort_sections(found)}


def test_an_ordered_file_is_an_artefact_if_a_baseline_shows_it_too() -> None:
    falling = noise() - 4 * np.linspace(0, 1, 400)[:, None]
    one = cohort(falling)
    first, order, *_ = cohort_sections(analyse(one, one, n_permutations=1_999))
    assert order.status == "look"
    assert "rules fired on external baselines" in first.sentence
    assert not first.sentence.startswith("0 of")
    (table,) = first.tables
    release = next(row for row in table.rows if row.header == "order trend, release order")
    assert {cell.text for cell in release.cells} == {"artefact suspected"}


def test_one_model_that_knows_a_twentieth_stands_out() -> None:
    scores = noise(1)
    scores[np.arange(0, 400, 20), 2] += 8
    found = statuses(scores)
    assert found["tail"] == "look"
    one = cohort(scores)
    first = cohort_sections(analyse(one, one, n_permutations=199))[0]
    assert "fire on" in first.sentence and "two" in first.sentence


def test_without_external_models_nothing_can_be_trusted() -> None:
    one = cohort(noise(2), external=())
    first = cohort_sections(analyse(one, one, n_permutations=199))[0]
    assert first.status == "look" and "none of these rules can be trusted" in first.sentence


def test_every_section_prints_and_a_constant_key_is_refused() -> None:
    one = cohort(noise(3))
    one.covariates["question_words"] = np.full(400, 9)
    sections = cohort_sections(analyse(one, one, n_permutations=199))
    text = markdown(sections, WORDS)
    assert [section.key for section in sections] == [
        "external-baselines",
        "order-trend",
        "tail",
        "top-k",
        "subpopulations",
    ]
    assert "| question length | 400 | refused |" in text and "Refused:" in text
    assert "at least" in text and "permutations" in text  # 199 cannot pass Holm's correction
    assert "| hash |" in text and "base (external)" in text


def test_inflation_is_by_picture_and_says_how_many_items_are_flagged() -> None:
    one = cohort(noise(4))
    flags = np.repeat(np.arange(200) < 20, 2)
    section = inflation_section(one, flags, (one.scores > 0).astype(float), n_permutations=199)
    assert section.sentence.startswith("40 of 400 items have a flagged picture.")
    assert [table.key for table in section.tables] == ["overlap_inflation", "accuracy_inflation"]


def test_scores_that_are_missing_are_counted_and_named() -> None:
    scores = noise(5)
    scores[[3, 8], 1] = np.nan
    one = cohort(scores)
    first = cohort_sections(analyse(one, one, n_permutations=199))[0]
    (note,) = first.notes
    assert note == f"{one.models[1]} has no score for 2 of 400 items: {one.item_ids[3]}, " + (
        f"{one.item_ids[8]}."
    )


def test_too_few_models_or_items_for_a_test_are_no_finding() -> None:
    few = without(cohort(noise(6, 20)), "two")
    found = analyse(few, few, n_permutations=199)
    tail = found.rules[found.rules["rule"] == RANK_TAIL]
    assert set(tail["status"]) == {"not_tested"}
    assert set(found.overlaps["k"]) == {10}
    tails, _, subpopulations = cohort_sections(found)[2:]
    assert tails.sentence.endswith("fewer than 4 models cannot tell.")
    assert subpopulations.sentence.endswith("too small to be tested.")


def test_the_unit_of_the_scores_is_said_only_if_known() -> None:
    one = cohort(noise(7))
    flags = np.repeat(np.arange(200) < 20, 2)
    for unit, header in (("nats", "difference, nats"), ("", "difference")):
        section = inflation_section(one, flags, None, unit=unit, n_permutations=199)
        assert section.tables[0].columns[2].header == header


def test_inflation_of_an_external_model_is_no_evidence_about_the_others() -> None:
    scores = noise(8)
    flags = np.repeat(np.arange(200) < 40, 2)
    scores[flags] += 4
    section = inflation_section(cohort(scores), flags, None, n_permutations=199)
    assert section.status == "look" and "difference +" in section.sentence
    assert section.notes[1].startswith("base cannot have seen the benchmark and differs as well")
    assert [name for name, _ in section.tables[0].groups][0] == "base (external)"
    nothing = inflation_section(cohort(scores), flags & False, None, n_permutations=199)
    assert nothing.status == "ok"
    assert nothing.sentence == "0 of 400 items have a flagged picture: nothing to compare."


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_inflation_prints_items_pictures_and_both_p_values() -> None:
    results = overlap_inflation([2, 4, 1, 1, 3], [1, 1, 0, 0, 0], list("abcde"), rng())
    text = writers.markdown(inflation_table({"tiny": results}, "nats per token"))
    assert "+3.000 (2 items, 2 pictures)" in text and "+1.333 [" in text
    assert text.count(".300") == 2


def test_a_side_without_items_is_a_dash_and_no_p_value() -> None:
    results = overlap_inflation([1.0, 2.0], [0, 0], list("ab"), rng())
    text = writers.markdown(inflation_table({"tiny": results}, "nats"))
    assert "| – (0 items, 0 pictures) | +1.500 (2 items, 2 pictures) | – | – | – | – |" in text


def test_churn_stands_in_the_caption() -> None:
    right = np.array([[1.0, 0.0]] * 4 + [[0.0, 1.0]] * 3 + [[1.0, 1.0]] * 2 + [[0.0, 0.0]])
    flags = [True] * 4 + [False] * 6
    names = list("abcdefghij")
    results, churn = accuracy_inflation(right, flags, names, ["one", "two"], rng())
    table = accuracy_inflation_table(results, churn)
    assert "one falls behind two" in table.caption and "−1.00" in table.caption
    assert "60.0 (6/10) | 33.3 (2/6)" in writers.markdown(table)


def test_small_strata_are_marked() -> None:
    flags = np.zeros((60, 2), bool)
    flags[:20, 0] = True
    factors = {"answer": ["yes"] * 20 + ["open"] * 40}
    strata = subpopulations(flags, ["a", "b"], factors)
    text = writers.markdown(subpopulation_table(strata, "a tail above 100"))
    assert "| yes | 20 (small) | 100.0 (20/20) [83.9, 100.0]" in text
    assert "| open | 40 | 0.0 (0/40) [0.0, 8.8], q" in text
    assert "a against b" in writers.markdown(
        within_strata_table(models_within_strata(flags, "ab", factors))
    )

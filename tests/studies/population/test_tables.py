"""Tables of a population study, from planted scores and answers."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from scipy.stats import binomtest
from typer.testing import CliRunner

from flipbench.cli import app
from flipbench.core.errors import ConfigError, DataError
from flipbench.core.paired import PairedBenchmark
from flipbench.evaluate.detectors.registry import DETECTORS
from flipbench.evaluate.statistics.paired import mcnemar_p
from flipbench.prompting.prompts import PromptSettings
from flipbench.reporting.tables import Table
from studies.population import (
    kinds,
    other_lineages,
    page,
    power,
    rules,
)
from studies.population.results import (
    Results,
    Rule,
    flagged,
    judged,
    models_of,
    read_results,
)

GAP, CONFIDENCE = Rule("perturbation_gap", "mcnemar"), Rule("confidence_gap", "label_swap")
ORDER, RELATIVE = Rule("option_order", "mcnemar"), Rule("perturbation_gap", "relative")
N_LINEAGES, N_ITEMS = 8, 75
ARMS = [("", "clean"), ("letters", "control"), ("letters", "contaminated")]
ARMS += [("texts", "control"), ("texts", "contaminated")]


def _score(lineage: int, kind: str, arm: str, rule: Rule, rng: np.random.Generator) -> Any:
    """Plant: confidence catches all letters, the gap every other one, option order any training."""
    dirty = arm == "contaminated" and kind == "letters"
    caught = {
        GAP: dirty and lineage % 2 == 0,
        CONFIDENCE: dirty,
        ORDER: arm != "clean",
        RELATIVE: dirty and lineage % 2 == 0,
    }[rule]
    if rule == RELATIVE and arm == "clean":
        return {"verdict": "not_applicable", "p_value": None, "statistic": None}
    return {
        "verdict": "contaminated" if caught else "not_detected",
        "p_value": 1e-4 if caught else float(rng.uniform(0.2, 1)),
        "statistic": (-0.2 if caught else 0.0) + float(rng.normal(0, 0.01)),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng, scores, answers = np.random.default_rng(0), [], []
    for lineage in range(N_LINEAGES):
        for kind, arm in ARMS:
            dose = 4 if arm == "contaminated" else 0
            model = {"lineage": f"l{lineage}", "kind": kind, "arm": arm, "dose": dose}
            model["shows"] = {"letters": "letters", "texts": "whole texts"}.get(kind, "")
            for rule in (GAP, CONFIDENCE, ORDER, RELATIVE):
                found = _score(lineage, kind, arm, rule, rng)
                for condition in ("as made", "blur 7") if rule != ORDER else ("as made",):
                    row = {"condition": condition, "detector": rule.detector, "rule": rule.rule}
                    row |= {"direction": "falls", "n": N_ITEMS}
                    scores.append({**model, **row, **found})
            for number in range(N_ITEMS):
                forgot = arm == "contaminated" and number % 4 == 0
                order = not forgot if lineage and number % 5 else None  # one lineage was not asked
                answers.append(
                    {
                        **model,
                        "item": number,
                        "category": ("color", "number")[number % 2],
                        "member": kind != "texts" or number < 20,
                        "n_options": 4,
                        "original_right": True,
                        "perturbed_right": not forgot,
                        "old_answer": forgot,
                        "shuffled_right": order,
                        "original_log_prob": -0.1 * (1 + number % 2) + rng.normal(0, 0.02),
                        "perturbed_log_prob": -2.0 if forgot else -0.15 + rng.normal(0, 0.02),
                    }
                )
    folder = tmp_path_factory.mktemp("study")
    pd.DataFrame(scores).to_parquet(folder / "scores.parquet")
    pd.DataFrame(answers).astype({"shuffled_right": "boolean"}).to_parquet(folder / "items.parquet")
    classes = [f"c{i % 2}" for i in range(N_LINEAGES)]
    names = [f"l{i}" for i in range(N_LINEAGES)]
    pd.DataFrame({"name": names, "class": classes}).to_csv(folder / "lineages.csv", index=False)
    return folder


@pytest.fixture(scope="module")
def results(folder: Path) -> Results:
    return read_results(folder)


def cells(table: Table | None) -> dict[str, list[str]]:
    assert table is not None
    return {row.header: [cell.plain() for cell in row.cells] for row in table.rows}


def test_rates_count_models_and_know_their_lineages(results: Results) -> None:
    power = flagged(results.of(GAP, "contaminated", "letters"))
    assert (power.k, power.n, power.n_clusters) == (4, 8, 8)
    overall = cells(kinds.overview(results))
    assert overall["Paired confidence gap"][0].startswith("50.0 (8/16)")
    assert overall["Paired confidence gap"][1].startswith("0.0 (0/8)")
    assert overall["Option-order sensitivity"][2].startswith("100.0 (16/16)")
    assert "Perturbation gap, relative" not in overall
    power_by_kind, alarms, auroc = map(cells, kinds.by_kind(results))
    assert power_by_kind["letters"][0].startswith("4/8") and alarms["letters"][0].startswith("0/8")
    assert auroc["letters"][1].startswith("1.00") and "1.00" not in auroc["texts"][1].split()[0]


def test_a_verdict_withheld_for_want_of_a_clean_model_is_not_counted() -> None:
    verdicts = ["contaminated", "not_detected", "inconclusive", "inconclusive"]
    rows = pd.DataFrame({"lineage": list("abcd"), "verdict": verdicts})
    assert flagged(judged(rows)).n == 4
    rate = flagged(judged(rows.assign(lacks_reference=[False, False, False, True])))
    assert (rate.k, rate.n) == (1, 3)
    assert flagged(judged(rows[2:].assign(lacks_reference=True))).n == 0


def test_a_detector_is_held_to_what_it_is_made_for(results: Results) -> None:
    rows = cells(kinds.controls(results))
    made_for, own, others = rows["Perturbation gap"]
    assert "letters" in made_for and "whole texts" not in made_for
    assert own.startswith("50.0 (4/8)") and others.startswith("0.0 (0/8)")


def test_conditions_are_compared_on_their_own_kinds(results: Results) -> None:
    table = kinds.conditions(results)
    assert table is not None and [name for name, _ in table.groups] == ["as made", "blur 7"]
    assert {row.header for row in table.rows} == {
        "Perturbation gap",
        "Perturbation gap, relative",
        "Paired confidence gap",
    }


def test_references_of_other_lineages_accuse_stronger_models_of_worse_pictures() -> None:
    """Clean models lose a third of their accuracy; the mean of ten references allows for it."""
    rng, rows = np.random.default_rng(0), []
    accuracies = {f"l{at}": accuracy for at, accuracy in enumerate(np.linspace(0.2, 0.9, 15))}
    items = []
    for (lineage, accuracy), arm in product(accuracies.items(), ("clean", "contaminated")):
        model = {"lineage": lineage, "arm": arm, "kind": "" if arm == "clean" else "letters"}
        right = rng.random(400) < (0.95 if model["kind"] else accuracy)
        loses = rng.random(400) < (0.9 if model["kind"] else 1 / 3)
        gains = rng.random(400) < 0.05
        fell, rose = int((right & loses).sum()), int((~right & gains).sum())
        items.append(pd.DataFrame({**model, "original_right": right, "condition": "as made"}))
        items[-1]["perturbed_right"], items[-1]["item"] = right, range(400)
        score = {"detector": "perturbation_gap", "direction": "falls", "condition": "blur 7"}
        p_value = mcnemar_p(fell, rose, "drop")
        score |= {"statistic": (rose - fell) / 400, "n": 400, "verdict": "contaminated"}
        rows.append({**model, **score, "rule": "mcnemar", "p_value": p_value})
        assert other_lineages.changes_of(400, (rose - fell) / 400, p_value) == (fell, rose)
    results = Results(pd.DataFrame(rows), pd.concat(items), pd.DataFrame({"name": [*accuracies]}))
    table = other_lineages.other_lineages(results)
    shares = {
        name: [float(cell.split()[0]) for cell in (caught, clean)]
        for name, (caught, _, clean) in cells(table).items()
        if caught != "–"
    }
    assert shares["1, much weaker"][1] > 50 > 20 > shares["1 of like strength"][1]
    assert shares["10"][1] < 10 and shares["10"][0] > 90


def test_halves_share_no_lineage_and_split_every_class(results: Results) -> None:
    halves = [results.half(number) for number in (0, 1)]
    names = [set(half.scores["lineage"]) for half in halves]
    assert names[0].isdisjoint(names[1]) and len(names[0] | names[1]) == N_LINEAGES
    assert [set(half.lineages["class"]) for half in halves] == [{"c0", "c1"}] * 2
    assert all(set(h.items["lineage"]) == n for h, n in zip(halves, names, strict=True))


def test_the_single_best_rule_stays_where_no_combination_is_better(results: Results) -> None:
    found = rules.calibrate(results)
    assert found is not None
    assert found.single.rules == (CONFIDENCE,) and found.combination == found.single
    assert not found.better and "no combination" in found.sentence()
    assert (found.power[1].k, found.power[1].n) == (4, 8) and found.alarms[1].k == 0


def test_a_combination_needs_no_more_alarms_than_one_in_a_hundred(results: Results) -> None:
    values = rules.PValues.of(results)
    either = rules.Choice((CONFIDENCE, ORDER), 0.05)
    assert values.flagged(either)[~values.contaminated].any()
    chosen = rules.best(values, [ORDER], 1)
    assert chosen is None  # it flags every control
    both = rules.best(values, values.rules, 3)
    assert both == rules.Choice((CONFIDENCE,), rules.LEVELS[-1])


def test_a_rule_is_chosen_by_the_condition_that_suits_it_least(results: Results) -> None:
    scores = results.scores
    confidence = scores["detector"] == CONFIDENCE.detector
    blurred = confidence & (scores["condition"] == "blur 7")
    clean = scores["arm"] != "contaminated"
    accusing = scores.assign(p_value=scores["p_value"].where(~(blurred & clean), 1e-9))
    for changed in (accusing, scores[~blurred]):  # it accuses there, or was never tried
        values = rules.PValues.of(replace(results, scores=changed))
        chosen = rules.best(values, values.rules, 1)
        assert chosen is not None and chosen.rules != (CONFIDENCE,)
        choice = rules.Choice((CONFIDENCE,), 0.001)
        assert values.worst(choice) == ("blur 7", 1.0)
    assert rules.PValues.of(results).worst(choice) == ("as made", 0.0)


def test_models_that_a_rule_cannot_judge_are_counted_nowhere(results: Results) -> None:
    """A p-value beside a verdict withheld for want of a clean model is no quiet test."""
    withheld = (results.scores["detector"] == ORDER.detector) & (results.scores["arm"] == "clean")
    verdict = results.scores["verdict"].mask(withheld, "inconclusive")
    scores = results.scores.assign(verdict=verdict, lacks_reference=withheld)
    held = replace(results, scores=scores)
    before, after = (kinds.separated(of, ORDER) for of in (results, held))
    assert before is not None and after is not None
    assert (before.n_clean, after.n_clean) == (3 * N_LINEAGES, 2 * N_LINEAGES)
    alarms = rules.PValues.of(held).alarms(rules.Choice((ORDER,), 0.05))
    assert (alarms.k, alarms.n) == (2 * N_LINEAGES, 2 * N_LINEAGES)


def test_the_decision_tree_uses_only_what_is_there(results: Results) -> None:
    rows = cells(rules.decision_tree(results))
    assert len(rows) == 8
    without_pairs = {row[3] for row in rows.values() if row[0] == "no"}
    assert without_pairs == {"nothing"}  # option order flags the controls
    assert not any("confidence" in row[3] for row in rows.values() if row[1] == "no")
    assert not any("relative" in row[3] for row in rows.values() if row[2] == "no")


def test_a_rule_that_is_no_test_is_never_recommended(results: Results) -> None:
    """A band has the p-value of the test beside it, and flags far more models."""
    order = results.scores[results.scores["detector"] == ORDER.detector]
    bands = order.assign(rule="bands", verdict="contaminated")
    both = replace(results, scores=pd.concat([bands, results.scores], ignore_index=True))
    assert Rule(ORDER.detector, "bands") in both.rules
    assert rules.PValues.of(both).rules == rules.PValues.of(results).rules


def test_detectors_that_look_at_perturbed_pictures_need_them(
    shapes_benchmark: PairedBenchmark,
) -> None:
    """The detectors of the study: who asks about a perturbed picture is in ``PAIRED``."""
    perturbed = {ref for pair in shapes_benchmark.pairs for ref in pair.perturbed.images}
    study = yaml.safe_load(Path("configs/validation/population.yaml").read_text())
    looks = {
        name
        for name in study["evaluate"]["detectors"]
        for probe in DETECTORS[name].probes(shapes_benchmark, PromptSettings())
        if perturbed & set(probe.images)
    }
    assert looks == set(rules.PAIRED)


def test_power_rises_with_pairs_and_controls_stay_quiet(results: Results) -> None:
    curves = power.power_curves(results, ["letters"])
    rows = cells(power.power_table(curves))
    few, _, many = (float(cell.split()[0]) for cell in rows["contaminated (n = 8), McNemar"])
    assert few < many and many == 100
    assert rows["contaminated (n = 8), McNemar"][-1] == "100.0 [68, 100]"  # eight models, not pairs
    assert rows["control (n = 8), McNemar"] == ["0.0 [0, 32]"] * 3
    assert float(rows["control (n = 8), confidence gap"][0].split()[0]) < 20
    assert rows["contaminated (n = 7), option order"][-1] == "100.0 [65, 100]"
    assert rows["control (n = 7), option order"] == ["0.0 [0, 35]"] * 3
    items = results.items.drop(columns="shuffled_right")
    without = power.power_curves(replace(results, items=items), ["letters"])
    assert not any("option order" in name for name in cells(power.power_table(without)))
    drawn = power.curves_figure(curves).axes[0]
    assert len(drawn.lines) == 2 * len(power.TESTS) and "n = 8, 7" in drawn.get_title("left")
    few = [replace(one, n_models=(8, 8, 8, 8, 2)) for one in curves]
    drawn = power.curves_figure(few).axes[0]
    assert len(drawn.lines) == 2 * 4 and "(n = 8)" in drawn.get_title("left")


def test_all_pairs_of_a_model_are_tested_as_scipy_tests_them(results: Results) -> None:
    (curves, _) = power.power_curves(results, ["letters"])
    largest = max(curves.shares)
    of_each = [
        rows
        for (_, kind, arm), rows in models_of(results.items)
        if (kind, arm) == ("letters", "contaminated")
    ]
    assert [len(rows) for rows in of_each] == [largest] * N_LINEAGES
    flags = []
    for rows in of_each:
        before, after = rows["original_right"], rows["perturbed_right"]
        change = rows["perturbed_log_prob"] - rows["original_log_prob"]
        won, lost = int((before & ~after).sum()), int((~before & after).sum())
        fell, moved = int((change < 0).sum()), int((change != 0).sum())
        counts = ((won, won + lost), (fell, moved))
        tests = [binomtest(k, n, alternative="greater").pvalue for k, n in counts]
        flags.append(np.array(tests) <= power.ALPHA)
    assert curves.shares[largest][:2].tolist() == np.mean(flags, axis=0).tolist()


def test_audits_accuse_clean_models_whose_sets_differ(results: Results) -> None:
    rows = cells(power.audits(results))
    assert rows["no members, sets of other kinds of question"] == ["100.0 [67.6, 100.0]", "8"]
    assert float(rows["no members, sets alike"][0].split()[0]) < 15
    assert "texts: all items" in rows and "texts: 10 members, 10 others" in rows


def test_detectors_that_see_the_same_models_agree(results: Results) -> None:
    rows = cells(kinds.agreement(results))
    assert rows["Perturbation gap"][0] == "+1.00"
    assert float(rows["Perturbation gap"][1]) > 0.2


@pytest.mark.slow
def test_one_command_makes_every_table(folder: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(page.app, [str(folder), "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "8 clean lineages: 8 models as released, 16 contaminated in 2 kinds" in done.output
    refused = CliRunner().invoke(app, ["validate", str(folder)])
    assert isinstance(refused.exception, ConfigError)
    assert "python -m studies.population.page" in str(refused.exception)
    written = {path.name for path in tmp_path.iterdir()}
    assert {"validation.md", "overview.csv", "power.png", "decision-tree.csv"} <= written


def test_what_is_missing_is_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"scores.parquet: no such file"):
        read_results(tmp_path)
    pd.DataFrame({"lineage": ["x"]}).to_parquet(tmp_path / "scores.parquet")
    with pytest.raises(DataError, match="the column 'arm' is missing"):
        read_results(tmp_path)
    (tmp_path / "scores.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match="cannot be read.*run the study again"):
        read_results(tmp_path)


def test_a_page_of_one_lineage_promises_nothing(results: Results) -> None:
    of_one = results.scores["lineage"] == "l0"
    alone = Results(
        results.scores[of_one],
        results.items[results.items["lineage"] == "l0"],
        results.lineages[results.lineages["name"] == "l0"],
    )
    assert "too few" in page.headline(alone)
    assert rules.decision_tree(alone) is None
    assert kinds.models(alone).rows[0].header == "l0"

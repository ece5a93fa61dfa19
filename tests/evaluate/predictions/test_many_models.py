"""Detectors validated on many models whose answers, or log-probabilities, exist already."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import flipbench as fb
from flipbench.benchmarks.tables import read_rows
from flipbench.core.errors import ConfigError, DataError
from flipbench.core.randomness import generator
from flipbench.core.records import Score
from flipbench.evaluate.detectors.perturbation.perturbation_gap import PerturbationGap
from flipbench.evaluate.predictions.models_table import N_EXAMPLE_ITEMS, write_example
from flipbench.evaluate.validation.validation import Validation
from tests.evaluate.conftest import ASKING, World
from tests.fixtures.prediction_files import both

Row = dict[str, Any]
BASE = {"model": "base", "family": "f", "strategy": "clean", "dose": 0}
TUNED = {"model": "tuned", "family": "f", "strategy": "LoRA", "dose": 3}


def value(model: str, item: object, condition: str, **known: object) -> Row:
    return {"model": model, "item": item, "condition": condition, **known}


def by_rule(found: Sequence[Validation], detector: str = "perturbation_gap") -> dict[str, Any]:
    return {v.rule: v for v in found if v.detector == detector}


def score(result: fb.ValidationResult, model: str, rule: str, detector: str = "") -> Score:
    (found,) = [
        s
        for s in result.scores
        if (s.model, s.rule) == (model, rule) and detector in ("", s.detector)
    ]
    return found


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_example(tmp_path_factory.mktemp("example") / "new")


@pytest.fixture(scope="module")
def validated(example: tuple[Path, Path]) -> fb.ValidationResult:
    return fb.validate(*example, benchmark="made up")


@pytest.mark.slow
def test_the_example_has_three_lineages_and_every_rule(validated: fb.ValidationResult) -> None:
    assert str(validated) == "12 models of 3 lineages: 6 contaminated, 6 clean"
    found = by_rule(validated.validations)
    assert list(found) == ["sign", "mcnemar", "relative"]
    test = found["mcnemar"]
    assert (test.detected.k, test.detected.n, test.detected.n_clusters) == (6, 6, 3)
    assert (test.untouched_alarms.n, test.finetuned_alarms.n, test.alarms.k) == (3, 3, 0)
    assert list(test.power) == [1, 3] and test.benchmark == "made up"
    assert test.trend.n_steps == 6 and test.separation is not None
    assert found["relative"].alarms.n == 3  # a clean model is not compared with itself
    confidence = by_rule(validated.validations, "confidence_gap")
    assert list(confidence) == ["label_swap", "relative"]
    assert {r.rule for r in validated.requirements} == {"sign", "mcnemar", "relative", "label_swap"}


def test_the_result_is_shown_in_every_form(validated: fb.ValidationResult) -> None:
    text = validated.markdown()
    assert (
        "| Perturbation gap | McNemar test | " in text and "| 6/6 [" in text and "- Note: " in text
    )
    frame = validated.to_frame()
    row = frame.query("detector == 'perturbation_gap' & rule == 'mcnemar' & quantity == 'power'")
    assert list(row["k"]) == [6]
    assert "made up" in set(frame["benchmark"]) and "3 lineages" in validated._repr_html_()


def test_each_model_s_scores_are_those_of_gap(
    example: tuple[Path, Path], validated: fb.ValidationResult
) -> None:
    items = pd.read_csv(example[1])

    def right(model: str, side: str) -> dict[str, bool]:
        rows = items[(items["model"] == model) & (items["condition"] == side)]
        return {name: bool(mark) for name, mark in zip(rows["item"], rows["correct"], strict=True)}

    clean = right("A clean", "original"), right("A clean", "perturbed")
    own = right("A LoRA x1", "original"), right("A LoRA x1", "perturbed")
    result = fb.gap(*own, reference=clean)
    for expected in result.scores:
        found = score(validated, "A LoRA x1", expected.rule, "perturbation_gap")
        for name in ("statistic", "p_value", "verdict", "n", "interval", "paired", "accuracies"):
            assert getattr(found, name) == getattr(expected, name), (expected.rule, name)
        assert found.reference_fingerprint == ("A clean" if expected.rule == "relative" else "")


@pytest.mark.slow
def test_the_order_of_rows_and_the_file_format_change_nothing(
    example: tuple[Path, Path], validated: fb.ValidationResult, tmp_path: Path
) -> None:
    models, items = (pd.read_csv(path) for path in example)
    shuffled = items.sample(frac=1, random_state=1)
    shuffled.to_parquet(tmp_path / "items.parquet")
    result = fb.validate(example[0], tmp_path / "items.parquet", benchmark="made up")
    assert result.validations == validated.validations
    models, items, shuffled = (frame[frame["model"] < "B"] for frame in (models, items, shuffled))
    straight, turned = (
        {(s.model, s.detector, s.rule): s for s in fb.validate(*tables).scores}
        for tables in ((models, items), (models[::-1], shuffled))
    )
    assert turned == straight


def test_a_grid_of_our_own_and_the_same_answers_as_a_table_agree(world: World) -> None:
    detector = PerturbationGap()
    policies = {"base": world.seer(0.7, "base"), "tuned": world.memoriser()}
    clean = world.ask(detector, policies["base"], "base")
    items: list[Row] = []
    for name, policy in policies.items():
        answers = world.ask(detector, policy, name)
        for probe in detector.probes(world.benchmark, ASKING):
            (pair,) = [p for p in world.benchmark.pairs if probe.item_id in ids_of(p)]
            gold = (pair.original if probe.variant == "original" else pair.perturbed).answer
            reply = answers.to(probe)
            assert reply is not None
            right = int(reply.choice == gold)
            items.append(value(name, pair.original.name, probe.variant, correct=right))
    result = fb.validate([BASE, TUNED], items)
    tuned = world.ask(detector, policies["tuned"], "tuned")
    for rule, expected in world.scores(detector, tuned, clean).items():
        found = score(result, "tuned", rule)
        assert found.verdict == expected.verdict == "contaminated"
        for name in ("statistic", "p_value", "interval", "paired", "n"):
            assert getattr(found, name) == getattr(expected, name), (rule, name)


def ids_of(pair: Any) -> tuple[str, str]:
    return pair.original.id, pair.perturbed.id


def test_files_of_a_kit_are_read_from_the_folder_of_the_table(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    both(tmp_path / "files", ".tsv")
    rows = [
        "Model,Family,Dose,Original,Perturbed,external,kind",
        "a,f,2,files/vlm_original.tsv,files/vlm_perturbed.tsv,,letters",
        "b,g,0,files/vlm_original.tsv,files/vlm_perturbed.tsv,1,",
        "c,h,,files/vlm_original.tsv,files/vlm_perturbed.tsv,0,",
    ]
    (tmp_path / "models.csv").write_text("\n".join(rows) + "\n")
    result = fb.validate(tmp_path / "models.csv")
    assert [(m.strategy, m.dose, m.external) for m in result.grid] == [
        ("trained", 2, False),
        ("clean", 0, True),
        ("history unknown", None, False),
    ]
    counts = score(result, "a", "mcnemar").paired
    assert {(s.detector, s.rule) for s in result.scores} >= {("old_answer_attraction", "chance")}
    assert counts is not None and (counts.n11, counts.b, counts.c, counts.n00) == (3, 7, 1, 0)
    (sign, *_) = result.validations
    assert sign.kinds == ("letters",)
    assert sign.benchmark == "models" and sign.external_alarms.n == sign.detected.n == 1
    assert str(result) == "3 models of 3 lineages: 1 contaminated, 1 clean, 1 of unknown dose"


def test_a_lineage_is_compared_with_its_own_clean_model() -> None:
    models = [
        {"model": f"{kind} {seed}", "family": "f", "lineage": seed, "dose": dose}
        for seed in ("1", "2")
        for kind, dose in (("base", 0), ("tuned", 1))
    ]
    items = [
        value(str(m["model"]), i, side, correct=int(i < 6))
        for m in models
        for side in ("original", "perturbed")
        for i in range(9)
    ]
    result = fb.validate(models, items)
    assert len({m.cluster for m in result.grid}) == 2
    for seed in ("1", "2"):
        assert score(result, f"tuned {seed}", "relative").reference_fingerprint == f"base {seed}"


def log_probs(sides: Sequence[str], shift: float) -> list[Row]:
    """Return log-probabilities that are higher on the originals for the tuned model."""
    rows = []
    for name in ("base", "tuned"):
        for side in sides:
            noise = generator(0, name, side).normal(0, 0.1, 30)
            moved = shift if (name, side) == ("tuned", "original") else 0.0
            rows += [
                value(name, f"q{i}", side, logprob=-2.0 + moved + float(noise[i]))
                for i in range(30)
            ]
    return rows


def test_log_probabilities_of_both_versions_give_the_confidence_gap() -> None:
    rows = log_probs(("original", "perturbed"), 1.0)
    result = fb.validate([BASE, TUNED], rows)
    assert {(s.detector, s.rule) for s in result.scores} == {
        ("confidence_gap", "label_swap"),
        ("confidence_gap", "relative"),
    }
    tuned = score(result, "tuned", "label_swap")
    frame = pd.DataFrame(rows).query("model == 'tuned'").pivot(index="item", columns="condition")
    gaps = frame["logprob"]["perturbed"] - frame["logprob"]["original"]
    assert tuned.statistic == pytest.approx(gaps.mean()) and tuned.unit == "nats"
    assert tuned.verdict == "contaminated" and tuned.n == 30
    assert score(result, "base", "label_swap").verdict == "not_detected"
    assert score(result, "tuned", "relative").verdict == "contaminated"
    lowered = fb.validate([BASE, TUNED], log_probs(("original", "perturbed"), -1.0))
    assert {s.verdict for s in lowered.scores if s.model == "tuned"} == {"not_detected"}


def test_log_probabilities_of_the_originals_alone_are_compared_with_the_clean_model(
    tmp_path: Path,
) -> None:
    result = fb.validate([BASE, TUNED], log_probs(("original",), 1.0), out=tmp_path)
    (tuned,) = [s for s in result.scores if s.model == "tuned"]
    assert (tuned.detector, tuned.rule, tuned.direction) == ("log_likelihood", "relative", "rises")
    assert tuned.verdict == "contaminated" and tuned.statistic == pytest.approx(1.0, abs=0.1)
    (base,) = [s for s in result.scores if s.model == "base"]
    assert base.verdict == "not_applicable" and base.lacks_reference
    assert "log likelihood" in (tmp_path / "validation.md").read_text()


def test_log_probabilities_in_files(tmp_path: Path) -> None:
    frame = pd.DataFrame(log_probs(("original", "perturbed"), 1.0))
    for name in ("base", "tuned"):
        frame[frame["model"] == name].to_csv(tmp_path / f"{name}.csv", index=False)
    rows = [{**BASE, "logprobs": "base.csv"}, {**TUNED, "logprobs": "tuned.csv"}]
    pd.DataFrame(rows).to_csv(tmp_path / "models.csv", index=False)
    found = fb.validate(tmp_path / "models.csv", benchmark="x")
    long = fb.validate([BASE, TUNED], frame, benchmark="x")
    assert found.validations == long.validations
    rows[0]["logprobs"] = "tuned.csv"
    pd.DataFrame(rows).to_csv(tmp_path / "models.csv", index=False)
    with pytest.raises(DataError, match="of 'tuned', but models.csv, line 2 names it for 'base'"):
        fb.validate(tmp_path / "models.csv")


@pytest.mark.slow
def test_the_report_has_tables_figures_and_no_section_of_pairs(
    example: tuple[Path, Path], tmp_path: Path
) -> None:
    models, items = (pd.read_csv(path) for path in example)
    models, items = (frame[frame["model"] < "B"] for frame in (models, items))
    result = fb.validate(models, items, out=tmp_path / "report")
    assert result.page == tmp_path / "report" / "index.html"
    page = result.page.read_text()
    assert "Which detectors can be trusted" in page and 'id="pairs"' not in page
    for name in ("validation.csv", "requirements.md", "roc.png", "table.csv"):
        assert (tmp_path / "report" / name).stat().st_size, name


def test_items_that_share_an_image_are_one_unit() -> None:
    def items(**known: Callable[[int], object]) -> list[Row]:
        return [
            value(name, i, side, correct=int((name, side) != ("tuned", "perturbed") or i >= 8))
            | {key: make(i) for key, make in known.items()}
            for name in ("base", "tuned")
            for side in ("original", "perturbed")
            for i in range(16)
        ]

    alone = score(fb.validate([BASE, TUNED], items()), "tuned", "mcnemar")
    shared = fb.validate([BASE, TUNED], items(group=lambda i: f"picture {i // 4}"))
    grouped = score(shared, "tuned", "mcnemar")
    assert alone.verdict == "contaminated" and grouped.statistic == alone.statistic
    assert grouped.p_value is not None and alone.p_value is not None
    assert grouped.p_value > alone.p_value and any(
        "images or groups" in w for w in grouped.warnings
    )


def test_an_unanswered_item_is_left_out_and_different_items_are_reported() -> None:
    items = [
        value(name, i, side, correct=1 if (name, i) != ("tuned", 3) else None)
        for name in ("base", "tuned")
        for side in ("original", "perturbed")
        for i in range(10 if name == "base" else 9)
    ]
    result = fb.validate([BASE, TUNED], items)
    tuned = score(result, "tuned", "mcnemar")
    assert (tuned.n, tuned.n_dropped) == (8, 1)
    assert any("9 of 10 are common to all" in text for text in tuned.warnings)


HEAD = "model,item,condition,correct\n"


@pytest.mark.parametrize(
    ("models", "items", "message"),
    [
        (
            "name,dose\na,0\n",
            HEAD,
            "no column for the family .family; found: name, dose",
        ),
        ("model,family,dose\na,f,0\na,f,1\n", HEAD, "line 3: the model 'a' is also in .*line 2"),
        ("model,family,dose\na,f,many\n", HEAD, "line 2: dose is 'many', not a whole number"),
        ("model,family,dose\na,f,-1\n", HEAD, "line 2: dose is '-1'"),
        ("model,family,dose\na,,1\n", HEAD, "line 2: the family is empty"),
        ("model,family,dose,strategy\na,f,1,clean\n", HEAD, "line 2: a: strategy 'clean', but"),
        ("model,family,dose,external\na,f,0,maybe\n", HEAD, "line 2: external is 'maybe'"),
        ("model,family,dose,kind\na,f,1,leters\n", HEAD, "line 2: kind is 'leters'; .*mean 'lette"),
        ("model,family,dose,external\na,f,1,1\n", HEAD, "line 2: a: a dose of 1 for a model"),
        ("model,family,dose,original\na,f,1,gone.csv\n", HEAD, "line 2: original is .*no such"),
        ("", HEAD + "b,1,original,1\n", "items.csv: 'b' is not in the table of models .'a'"),
        ("", HEAD + "a,1,original,1\n", "items.csv: a has no row with condition 'perturbed'"),
        ("", HEAD + "a,1,originel,1\n", "items.csv, line 2: the condition is 'originel'.*mean"),
        ("", HEAD + "a,1,original,0.5\n", "items.csv, line 2: correct is '0.5'; write 1, 0"),
        ("", HEAD + "a,,original,1\n", "items.csv, line 2: the item is empty"),
        ("", HEAD + "a,1,original,1\n" * 2, "line 3: a, item '1', original is also in .*line 2"),
        ("", "model,item,condition\na,1,original\n", "no column 'correct' .0 or 1. or 'logprob'"),
        ("", "model,item,condition,logprob\na,1,original,0.3\n", "line 2: 0.3 is no log-prob"),
        ("", "model,item,condition,logprob\na,1,original,nan\n", "line 2: .* not a finite number"),
        (
            "",
            "item,condition,correct\n1,original,1\n",
            "no column for the model",
        ),
        ("", "not a table", "items.csv: there are no rows"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_line(
    tmp_path: Path, models: str, items: str, message: str
) -> None:
    (tmp_path / "models.csv").write_text(models or "model,family,dose\na,f,1\n")
    (tmp_path / "items.csv").write_text(items if items != HEAD else HEAD + "a,1,original,1\n")
    with pytest.raises(DataError, match=message):
        fb.validate(tmp_path / "models.csv", tmp_path / "items.csv")


def test_models_without_values_or_common_items_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="models, row 1: base has no values: name files"):
        fb.validate([BASE])
    one_side = [value("base", 1, s, correct=1) for s in ("original", "perturbed")]
    with pytest.raises(DataError, match="models, row 2: items has no values of 'tuned'"):
        fb.validate([BASE, TUNED], one_side)
    other = [value("tuned", 2, s, correct=1) for s in ("original", "perturbed")]
    with pytest.raises(DataError, match="base and tuned have no item in common"):
        fb.validate([BASE, TUNED], one_side + other)
    path, _ = both(tmp_path)
    with pytest.raises(DataError, match="row 1: perturbed is empty; a gap needs"):
        fb.validate([{**BASE, "original": str(path)}])


def test_example_tables_are_not_overwritten(example: tuple[Path, Path]) -> None:
    with pytest.raises(ConfigError, match="exists; name another folder"):
        write_example(example[0].parent)
    assert len(read_rows(example[1])) == 12 * 2 * N_EXAMPLE_ITEMS

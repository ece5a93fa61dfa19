"""What every detector of the registry must do, whatever it measures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Probe, Score
from flipbench.evaluate.detectors.registry import DETECTORS, default_rule, make_detector
from flipbench.evaluate.protocol.detector import (
    AnyDetector,
    GridDetector,
    HelpedDetector,
    Helpers,
    JudgedDetector,
    required_capabilities,
)
from flipbench.evaluate.protocol.grid import KINDS
from flipbench.models.protocols import needs_of
from flipbench.prompting.prompts import PromptSettings
from tests.fixtures.planted import (
    Planted,
    planted_benchmark,
    reword,
    scores_by_rule,
)

GOLDEN = Path(__file__).parent / "golden"
ORDER_MATTERS = {"shared_likelihood", "order_trend"}
"""Detectors of the order itself."""
FOLDS_BY_PLACE = {"kernel_divergence"}
"""Draws its folds by the items' places."""
COSTLY = {"constat", "ngram_accuracy", "order_trend"}
"""The golden cases have to do in the quick tests."""
DECIDED = ("contaminated", "not_detected")
ASK_CHOICES = {
    "bgr_shuffling", "black_image", "choice_confusion", "circular_eval", "confidence_gap",
    "constat", "four_quadrants", "image_masking", "image_swap", "none_of_the_others",
    "number_labels", "old_answer_attraction", "option_order", "perturbation_gap",
    "picture_divergence", "text_only_leakage", "zero_cot",
}  # fmt: skip
ASK_TEXTS_AS_TOLD = {
    "cdd", "codec_answer", "kernel_divergence", "loss", "lowercase_ratio", "max_renyi",
    "order_trend", "reference_ratio", "zlib_ratio",
}  # fmt: skip
"""Show the instruction of the prompt settings where no letter is asked for, too."""
COMPARES_LIKELIHOODS = {"confidence_gap", "picture_divergence"}
"""Ask choices by likelihood, however the others are asked."""
WRITE = PromptSettings(ask="generate")
SEER = Planted("seer", 0.7, 0.7)
CLEAN = [Planted("clean", 0.6, 0.6), Planted("clean-2", 0.5, 0.5), Planted("clean-3", 0.7, 0.7)]

every_detector = pytest.mark.parametrize("name", DETECTORS)
every_detector_in_time = pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] if n in COSTLY else []) for n in DETECTORS],
)


def make(name: str) -> AnyDetector:
    return make_detector(name, Helpers(reword))


@pytest.fixture(scope="module")
def benchmark(tmp_path_factory: pytest.TempPathFactory) -> PairedBenchmark:
    """Return 24 pairs with options and 8 free-form pairs."""
    return planted_benchmark(tmp_path_factory.mktemp("planted"))


def rounded(value: Any) -> Any:
    """Return numbers without what the order of a sum may change."""
    if isinstance(value, list):
        return [rounded(number) for number in value]
    return round(value, 7) + 0.0 if isinstance(value, float) else value


def shown(score: Score, key: str) -> Any:
    """Return what a golden case has under ``key``: an attribute, an interval's ends or counts."""
    if key == "interval":
        return score.interval and rounded([score.interval.low, score.interval.high])
    if key == "counts":
        return {variant: f"{count.k}/{count.n}" for variant, count in score.accuracies.items()}
    return rounded(getattr(score, key))


def own_pairs(name: str, benchmark: PairedBenchmark) -> PairedBenchmark:
    """Return the pairs from the first on that a detector asks about."""
    asked = [probe.item_id for probe in make(name).probes(benchmark, PromptSettings())]
    ids = [(pair.original.id, pair.perturbed.id) for pair in benchmark.pairs]
    first = next(i for i, own in enumerate(ids) if any(a.startswith(own) for a in asked))
    return replace(benchmark, pairs=benchmark.pairs[first:])


@every_detector
def test_facts(name: str) -> None:
    about = DETECTORS[name].about
    assert about.name == name and "arXiv" in about.paper
    assert all([about.title, about.variant, about.deviates_from_paper, about.direction])
    assert [d.about.title for d in DETECTORS.values()].count(about.title) == 1
    assert isinstance(DETECTORS[name], HelpedDetector) is bool(about.helpers)
    assert isinstance(DETECTORS[name], JudgedDetector) is ("answer_judge" in about.helpers)
    assert about.catches and {*about.catches, *about.must_not_catch} <= KINDS.keys()
    assert not {*about.catches} & {*about.must_not_catch}
    assert about.evidence and about.caveat and not about.caveat.endswith(".")


@every_detector
def test_golden_cases(name: str, benchmark: PairedBenchmark) -> None:
    for case in json.loads((GOLDEN / f"{name}.json").read_text()):
        references = [Planted(**reference) for reference in case["references"]]
        scores = scores_by_rule(make(name), benchmark, Planted(**case["model"]), references)
        assert list(scores) == list(case["scores"]), case["case"]
        for rule, expected in case["scores"].items():
            found = {key: shown(scores[rule], key) for key in expected}
            assert found == expected, (case["case"], rule)
        assert_tests_decide_by_p(name, scores)


def assert_tests_decide_by_p(name: str, scores: Mapping[str, Score]) -> None:
    """Check that a rule that is no test at alpha has its level, or None, in the facts."""
    levels = DETECTORS[name].about.levels
    tested = {r: s for r, s in scores.items() if r not in levels and s.verdict in DECIDED}
    for rule, score in tested.items():
        assert score.p_value is not None, (name, rule)
        assert (score.verdict == "contaminated") is (score.p_value <= score.alpha), (name, rule)


def test_golden_files_belong_to_detectors() -> None:
    assert {path.stem for path in GOLDEN.glob("*.json")} == set(DETECTORS)


@every_detector
def test_probes_are_deterministic_and_need_what_is_declared(
    name: str, benchmark: PairedBenchmark
) -> None:
    prompt_settings = PromptSettings(
        ask="generate", instruction="Letter, please.", max_new_tokens=3
    )
    probes = make(name).probes(benchmark, prompt_settings)
    assert probes and make(name).probes(benchmark, prompt_settings) == probes
    assert [Probe.model_validate(probe.model_dump()) for probe in probes] == probes  # checks ids
    assert frozenset().union(*map(needs_of, probes)) == required_capabilities(
        DETECTORS[name].about, prompt_settings
    )
    others = make(name).probes(benchmark, PromptSettings(ask="choose"))
    needs = required_capabilities(DETECTORS[name].about, PromptSettings(ask="choose"))
    assert frozenset().union(*map(needs_of, others)) == needs
    choices = [probe for probe in probes if probe.options]
    assert bool(choices) is (name in ASK_CHOICES)
    texts = [[probe.id for probe in asked if not probe.options] for asked in (probes, others)]
    assert (texts[0] != texts[1]) is (name in ASK_TEXTS_AS_TOLD)
    how = ("choose", 0) if name in COMPARES_LIKELIHOODS else ("generate", 3)
    assert {(p.ask, p.max_new_tokens) for p in choices} <= {how}
    assert all(p.prompt.endswith(f"{'Number' if p.labels else 'Letter'}, please.") for p in choices)


@pytest.mark.slow
@every_detector_in_time
def test_every_score_states_what_it_is_of(name: str, benchmark: PairedBenchmark) -> None:
    scores = scores_by_rule(make(name), benchmark, SEER, CLEAN)
    assert default_rule(name) == default_rule(DETECTORS[name]) and default_rule(name) in scores
    assert DETECTORS[name].about.rule_titles.keys() <= scores.keys()
    assert DETECTORS[name].about.levels.keys() <= scores.keys() - {default_rule(name)}
    assert_tests_decide_by_p(name, scores)
    for rule, score in scores.items():
        assert score.direction in ("falls", "rises") and score.alpha == 0.05
        assert (score.detector, score.rule, score.model) == (name, rule, "seer")
        assert score.benchmark_id == benchmark.id and score.n > 0 and score.statistic is not None
        assert score.n + score.n_dropped == len(benchmark.pairs)
        assert Score.model_validate_json(score.model_dump_json()).id == score.id
    assert len({score.id for score in scores.values()}) == len(scores)


@pytest.mark.slow
@every_detector_in_time
def test_a_rule_without_its_reference_has_no_verdict(name: str, benchmark: PairedBenchmark) -> None:
    about = DETECTORS[name].about
    scores = scores_by_rule(make(name), benchmark, SEER, [])
    assert list(about.rules) == list(scores) and about.default_rule in about.rules
    lacking = {
        rule: s for rule, s in scores.items() if s.verdict in ("not_applicable", "inconclusive")
    }
    assert lacking.keys() == {rule for rule, needs in about.rules.items() if needs}
    assert all(s.reference_fingerprint == "" for s in lacking.values())
    assert all(s.p_value is None or s.lacks_reference for s in lacking.values())
    assert all(any("clean" in w for w in s.warnings) for s in lacking.values())
    beside = scores_by_rule(make(name), benchmark, SEER, CLEAN)
    assert all(score.verdict != "not_applicable" for score in beside.values())


@pytest.mark.slow
@every_detector_in_time
def test_the_order_of_items(name: str, benchmark: PairedBenchmark) -> None:
    turned = replace(benchmark, pairs=benchmark.pairs[::-1])
    here, there = (scores_by_rule(make(name), b, SEER, CLEAN) for b in (benchmark, turned))
    same = [
        rounded(here[rule].statistic) == rounded(there[rule].statistic)
        and rounded(here[rule].p_value) == rounded(there[rule].p_value)
        and {i: rounded(v) for i, v in here[rule].per_item.items()}
        == {i: rounded(v) for i, v in there[rule].per_item.items()}
        for rule in here
    ]
    assert all(same) is (name not in ORDER_MATTERS | FOLDS_BY_PLACE)


@pytest.mark.slow
@every_detector_in_time
def test_missing_answers_are_dropped_and_never_wrong(name: str, benchmark: PairedBenchmark) -> None:
    own = own_pairs(name, benchmark)
    lost = tuple(i.id for p in own.pairs[:4] for i in (p.original, p.perturbed))
    whole = scores_by_rule(make(name), own, SEER, CLEAN)
    some = scores_by_rule(make(name), own, SEER, CLEAN, lambda p: p.item_id.startswith(lost))
    assert list(some) == list(whole)
    for rule, score in some.items():
        before = whole[rule]
        assert (score.n, score.n_dropped) == (before.n - 4, before.n_dropped + 4), rule
        assert not set(score.per_item) & set(lost)
        # what chance gives of old answers depends on the other answers, but not a value's sign
        known = np.sign if name == "old_answer_attraction" else float
        assert all(known(before.per_item[i]) == known(v) for i, v in score.per_item.items())
        counted = any(w.startswith("4 of ") for w in score.warnings)
        assert counted is not isinstance(DETECTORS[name], GridDetector), score.warnings


@every_detector_in_time
def test_without_any_answer_there_is_no_verdict(name: str, benchmark: PairedBenchmark) -> None:
    scores = scores_by_rule(make(name), benchmark, SEER, CLEAN, lambda probe: True)
    for score in scores.values():
        assert score.verdict in ("inconclusive", "not_applicable") and score.warnings
        assert (score.statistic, score.p_value, score.interval, score.n) == (None, None, None, 0)


@every_detector_in_time
def test_too_few_items_forbid_a_test(name: str, tmp_path: Path) -> None:
    small = own_pairs(name, planted_benchmark(tmp_path, n_choices=4, n_open=4))
    small = replace(small, pairs=small.pairs[:3])
    scores = scores_by_rule(make(name), small, Planted("memoriser", 1.0, 0.0), CLEAN)
    for rule in scores.keys() - DETECTORS[name].about.levels.keys():
        assert scores[rule].verdict in ("inconclusive", "not_applicable"), rule
        assert scores[rule].warnings


@pytest.mark.slow
@every_detector_in_time
def test_a_model_that_is_its_own_reference_says_so(name: str, benchmark: PairedBenchmark) -> None:
    scores = scores_by_rule(make(name), benchmark, SEER, [SEER])
    for score in scores.values():
        own = score.reference_fingerprint == score.model_fingerprint
        assert any("its own reference" in w for w in score.warnings) is own
        assert (score.verdict, own) != ("contaminated", True)


@pytest.mark.parametrize(
    "name",
    [
        n
        for n, d in DETECTORS.items()
        if "generate" in required_capabilities(d.about, WRITE) and n != "constat"
    ],
)
def test_replies_that_cannot_be_read_forbid_a_verdict(
    name: str, benchmark: PairedBenchmark
) -> None:
    scores = scores_by_rule(make(name), benchmark, Planted("mute", 0.9, 0.9, silent=True), CLEAN)
    assert {score.verdict for score in scores.values()} <= {"inconclusive", "not_detected"}
    score = scores[default_rule(name)]
    assert score.verdict == "inconclusive"
    assert any("name no option" in w for w in score.warnings)
    assert max(score.unparsed.values()) >= 8


@pytest.mark.parametrize("name", sorted(ASK_CHOICES))
def test_free_form_items_are_left_out(name: str, tmp_path: Path) -> None:
    free = planted_benchmark(tmp_path, n_choices=0, n_open=6)
    assert make(name).probes(free, PromptSettings()) == []
    for score in scores_by_rule(make(name), free, SEER, CLEAN).values():
        assert (score.verdict, score.n, score.statistic) == ("not_applicable", 0, None)

"""Every cohort statistic on models that differ in gain alone, none of which has seen an item."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from flipbench.evaluate.cohort.analysis import (
    PAPER_TAIL,
    RANK_TAIL,
    TOP_K,
    CohortAnalysis,
    analyse,
)
from flipbench.evaluate.cohort.cohort import Cohort
from flipbench.evaluate.cohort.overlap_inflation import overlap_inflation
from flipbench.evaluate.cohort.subpopulations import subpopulations
from flipbench.evaluate.cohort.tail_enrichment import upper_tail
from studies.confound.simulation import SEED, gain_cohort

GAINS = (0.05, 0.05, 1.0, 1.0, 1.0)


@pytest.fixture(scope="module")
def cohort() -> Cohort:
    """The parity run's models; the last one is known not to have seen the benchmark."""
    drawn = gain_cohort(np.random.default_rng(SEED), GAINS)
    return replace(drawn, external=frozenset(drawn.models[-1:]))


@pytest.fixture(scope="module")
def found(cohort: Cohort) -> CohortAnalysis:
    return analyse(cohort, cohort, n_permutations=999)


def test_no_order_shows_a_trend(found: CohortAnalysis) -> None:
    assert not (found.orders["holm"] <= 0.05).any()


def test_the_rank_tail_is_quiet_and_the_published_flag_is_an_artefact(
    found: CohortAnalysis,
) -> None:
    assert set(found.tails["verdict"]) == {"not_detected"}
    status = found.rules.set_index(["rule", "model"])["status"].to_dict()
    models = found.tail.models
    assert {status[PAPER_TAIL, model] for model in models} == {"artefact_suspected"}
    assert {status[RANK_TAIL, model] for model in models} == {"not_significant"}


def test_shared_top_items_are_an_artefact_of_shared_ease(found: CohortAnalysis) -> None:
    """Models of gain 1 share their easiest items, with the one that has seen nothing as well."""
    shared = found.overlaps[found.overlaps["p_holm"] <= 0.05]
    assert shared["n_external"].any()
    top = found.rules[found.rules["rule"] == TOP_K]
    assert set(top["status"]) == {"artefact_suspected"}


def test_random_flags_and_strata_show_nothing(cohort: Cohort) -> None:
    rng = np.random.default_rng(1)
    n = len(cohort.item_ids)
    pictures = [str(i // 3) for i in range(n)]
    flags = (rng.random(n // 3 + 1) < 0.2)[np.arange(n) // 3]
    for column in range(len(GAINS)):
        scores = cohort.scores[:, column]
        result = overlap_inflation(
            scores, flags, pictures, rng, n_permutations=999, n_bootstrap=100
        )
        assert (result["p_value"] > 0.05 / len(GAINS)).all()
    strata = {"kind": rng.choice(["a", "b", "c"], size=n).tolist()}
    tail = subpopulations(upper_tail(cohort.scores), cohort.models, strata, pictures=pictures)
    assert all((share.q_value or 0.0) > 0.05 for stratum in tail for share in stratum.shares)

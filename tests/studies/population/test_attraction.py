"""The letters that are read from stored answers give the p-values that the study stored."""

from pathlib import Path

import numpy as np
import pandas as pd

from studies.population.attraction import MODEL, p_values, wrong_answers

RESULTS = Path(__file__).parents[3] / "docs" / "results" / "population"


def test_the_stored_answers_give_the_stored_p_values() -> None:
    items = pd.read_parquet(RESULTS / "items.parquet")
    models = p_values(wrong_answers(items[items["lineage"] == items["lineage"].iloc[0]]))
    scores = pd.read_parquet(RESULTS / "scores.parquet")
    scores = scores[scores["detector"].eq("old_answer_attraction") & scores["rule"].eq("chance")]
    scores = scores[scores["condition"] == "as made"]
    scores = scores[[*MODEL, "p_value"]].astype(dict.fromkeys(MODEL, str) | {"dose": int})
    joined = models.merge(scores, on=MODEL)
    assert len(joined) == len(models) > 15
    np.testing.assert_allclose(joined["study"], joined["p_value"], rtol=1e-5)
    assert (joined["n_read"] / joined["n"]).mean() > 0.5

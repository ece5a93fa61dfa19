"""Old-answer attraction in the stored answers of a study, by today's test and by the study's.

    python -m studies.population.attraction [docs/results/population]

The study counted with chances of 1 in k - 1. Its table of answers holds which option was named,
not which were right, so letters are taken from the models of the same lineage that answered the
item correctly; wrong answers to items that none of them answered are left out of today's test.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

from flipbench.core.rates import Rate
from flipbench.evaluate.scoring.old_answers import MIN_WRONG
from flipbench.evaluate.statistics.attraction import LetterAnswer, attraction
from flipbench.evaluate.statistics.counts import poisson_binomial_p
from flipbench.reporting.tables import rate_cell

ITEM, MODEL = ["lineage", "item"], ["lineage", "kind", "arm", "dose", "shows"]
LETTERS = ["old", "new", "perturbed_choice", "n_options"]
ALPHA = 0.05


def wrong_answers(items: pd.DataFrame) -> pd.DataFrame:
    """Return the wrong answers to pairs as made, with the right options of both versions.

    Columns ``old`` and ``new`` are missing where no model of the lineage shows them.
    """
    text_columns = items.select_dtypes("category").columns
    items = items[items["condition"] == "as made"].astype(dict.fromkeys(text_columns, str))
    originals, redrawn = items[items["original_right"]], items[items["perturbed_right"]]
    old_choices = originals.groupby(ITEM)["original_choice"].first().rename("old")
    new_choices = redrawn.groupby(ITEM)["perturbed_choice"].first().rename("new")
    answers = items[~items["perturbed_right"] & (items["n_options"] > 2)]
    answers = answers[answers["perturbed_choice"] >= 0]
    return answers.join(old_choices, on=ITEM).join(new_choices, on=ITEM)


def p_values(wrong_answers: pd.DataFrame) -> pd.DataFrame:
    """Return both p-values of each model, and how many answers they rest on."""
    rows = []
    for model, answers in wrong_answers.groupby(MODEL):
        readable = answers.dropna(subset=["old", "new"])[LETTERS].astype(int)
        letters = [LetterAnswer(*row) for row in readable.to_numpy().tolist()]
        chances = (1 / (answers["n_options"] - 1)).tolist()
        row = dict(zip(MODEL, model, strict=True)) | {"n": len(answers), "n_read": len(letters)}
        row["study"] = poisson_binomial_p(int(answers["old_answer"].sum()), chances)
        rows.append(row | {"today": attraction(letters, np.random.default_rng(0)).p_value})
    return pd.DataFrame(rows)


def main() -> None:
    """Print how many models of each arm both tests flag."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=Path("docs/results/population"))
    wrong = wrong_answers(pd.read_parquet(parser.parse_args().folder / "items.parquet"))
    models = p_values(wrong)
    share = models["n_read"].sum() / models["n"].sum()
    print(f"{len(models)} models; letters known of {100 * share:.0f} % of {len(wrong):,} answers")
    letters = models[models["kind"] == "letters"].assign(arm=lambda rows: rows["arm"] + ", letters")
    for arm, rows in pd.concat([models, letters]).groupby("arm"):
        for test in ("study", "today"):
            k = int(((rows[test] <= ALPHA) & (rows["n"] >= MIN_WRONG)).sum())
            print(f"{arm}, {test}, %: {rate_cell(Rate.wilson(k, len(rows))).plain()}")


if __name__ == "__main__":
    main()

"""The published tables of the core paper: what is right comes out, what is wrong is found."""

import csv
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from flipbench.evaluate.published.consistency import possible_counts
from flipbench.evaluate.published.doctor import TableIssue, examine
from flipbench.evaluate.published.tables import PublishedResult, read_published
from flipbench.evaluate.published.verdicts import LEVEL, requirements_of, score_rows

PUBLISHED = Path(__file__).parents[2] / "published"
MAIN = read_published(PUBLISHED / "perturbation_main_tables.csv")
GAPS = read_published(PUBLISHED / "perturbation_gaps.csv")
TEXTS = read_published(PUBLISHED / "text_only_baselines.csv")
FULL = read_published(PUBLISHED / "filtered_vs_full.csv")
EXTENDED = read_published(PUBLISHED / "extended_models.csv")
FOUND = examine(GAPS)


def of(
    kind: str, table: str, found: Sequence[TableIssue] = FOUND, **row: object
) -> list[TableIssue]:
    return [
        finding
        for finding in found
        if finding.kind == kind
        and finding.row.table == table
        and all(getattr(finding.row, name) == value for name, value in row.items())
    ]


def headline(table: str, model: str) -> list[PublishedResult]:
    """Return the gaps of a main table, named as the appendix names them."""
    trained = "LLM+MLP" if model.startswith("LLaVA") else "LLM"
    names = {"lora": "LoRA", "sft": trained, "clean": "clean"}
    return [
        replace(row, strategy=names[row.strategy], regime="verbatim")
        for row in MAIN
        if (row.table, row.model, row.quantity) == (table, model, "perturbed")
    ]


# ---------------------------------------------------------------- what is right comes out


def test_the_main_tables_have_one_impossible_figure_and_nothing_else_wrong() -> None:
    wrong = [f for f in examine(MAIN) if f.wrong]
    assert [(f.kind, f.row.table, f.row.label) for f in wrong] == [
        ("impossible", "T13", "sft epoch 3")
    ]
    assert "43.40" in wrong[0].what and "191/440 = 43.409" in wrong[0].what
    n_gaps = sum(row.delta is not None for row in MAIN)
    assert n_gaps == 2 * 2 * 7 * 3  # perturbed, circular and generalised, 7 states each


def test_the_printed_marks_are_reproduced() -> None:
    found = {r.detector: r for r in requirements_of(MAIN)}
    glyphs = {
        name: r.reliability_glyph + r.practicality_glyph + r.consistency_glyph
        for name, r in found.items()
    }
    assert glyphs == {
        "perturbation_gap": "✓✓✓",
        "circular_eval": "✗✗▲",
        "choice_confusion": "✗✓▲",
        "text_only_leakage": "✗✗▲",
    }
    assert {name: r.reliability for name, r in found.items()} == {
        "perturbation_gap": (24, 24),
        "circular_eval": (21, 24),
        "choice_confusion": (9, 24),
        "text_only_leakage": (22, 24),
    }


def test_every_printed_mark_is_checked_and_a_wrong_one_is_reported() -> None:
    marked = [row for row, _, _ in score_rows(MAIN) if row.mark]
    assert len(marked) == 2 * 2 * (7 + 6 + 7 + 6)  # a clean reference has no mark
    for at in range(0, len(marked), 9):
        row = marked[at]
        turned = [replace(r, mark="01"[r.mark == "0"]) if r is row else r for r in MAIN]
        (finding,) = [f for f in examine(turned) if f.kind == "mark"]
        assert finding.row.line == row.line and finding.wrong


def test_totals_of_the_appendix() -> None:
    """264 cells, three missed; 88 series, 84 weakly and 83 strictly monotone; no false alarm."""
    (found,) = requirements_of(GAPS)
    assert found.reliability == (261, 264)
    assert all("T33" in name and "epoch 1" in name for name in found.misses)
    assert (found.consistency_weak, found.consistency_strict) == ((84, 88), (83, 88))
    assert found.false_alarms == ()


@pytest.mark.parametrize(
    ("detector", "rule", "hits", "weak", "specificity"),
    [
        ("ngram_accuracy", "paper", 15, 2, (0, 0)),
        ("guided_prompting", "paper", 4, 0, (0, 0)),
        ("shared_likelihood", "paper", 11, 0, (0, 0)),
        ("shared_likelihood", LEVEL, 6, 0, (3, 4)),
    ],
)
def test_the_glyphs_of_table_12(
    detector: str, rule: str, hits: int, weak: int, specificity: tuple[int, int]
) -> None:
    """A rule with a clean model does not test it; at its own level, one of four is flagged."""
    (found,) = [r for r in requirements_of(TEXTS) if (r.detector, r.rule) == (detector, rule)]
    assert found.reliability == (hits, 24) and found.consistency_weak == (weak, 8)
    assert found.reliability_glyph + found.consistency_glyph == "✗✗"
    assert rule == LEVEL or found.practicality_glyph == "✗"
    assert found.specificity == specificity
    flagged = ("Qwen2-VL-7B MMStar clean on MMStar",)
    assert found.false_alarms == (flagged if rule == LEVEL else ())


# ---------------------------------------------------------------- what is wrong is found


def test_clean_accuracy_printed_in_two_ways() -> None:
    """69.29 (T2, T17) and 68.29 (T5, T27, T31) beside one gap of +31.51."""
    found = examine([*headline("T2", "LLaVA-v1.5-7B"), *GAPS])
    conflicts = [f for f in found if f.kind == "conflict" and "69.29" in f.what and f.row.clean]
    assert conflicts and all("68.29" in f.what for f in conflicts)
    for table in ("T5", "T27", "T31"):
        assert of("delta", table, strategy="clean") and of("impossible", table, strategy="clean")
    assert not of("delta", "T17")


def test_gaps_that_are_not_the_difference_of_their_row() -> None:
    for table in ("T5", "T27"):
        assert ["-1.13" in f.what for f in of("delta", table, epoch=1)] == [True]
        (second,) = of("delta", table, epoch=2)
        assert "-4.06" in second.what and "printed -3.06" in second.what
        (impossible,) = of("impossible", table, strategy="LLM+MLP")
        assert "57.60" in impossible.what and "285/495" in impossible.what


def test_gaps_that_rounding_explains_are_distinguished() -> None:
    found = [f for f in FOUND if f.kind == "rounding"]
    printed = [("T6", "-42.74"), ("T20", "-30.21"), ("T20", "-42.74"), ("T33", "4.68")]
    assert [(f.row.table, str(f.row.delta)) for f in found] == printed
    assert not any(f.wrong for f in found)


@pytest.mark.slow
def test_headline_rows_of_another_regime_are_reported() -> None:
    """T2's LLaVA LLM+MLP is T17's ALL; T2's Qwen2-VL is the mixture of T32."""
    llava = of("relabelled", "T2", examine([*headline("T2", "LLaVA-v1.5-7B"), *GAPS]))
    assert [f.row.label for f in llava] == [f"LLM+MLP epoch {e}" for e in (1, 2, 3)]
    assert all("T17" in f.what and "'ALL epoch" in f.what for f in llava)
    qwen = of("relabelled", "T2", examine([*headline("T2", "Qwen2-VL-7B"), *GAPS]))
    assert len(qwen) == 6
    assert all("T32" in f.what and "mixture6" in f.what for f in qwen)
    main = [*headline("T13", "LLaVA-v1.5-7B"), *headline("T13", "Qwen2-VL-7B")]
    assert not of("relabelled", "T13", examine([*main, *GAPS]))


def test_an_excerpt_of_three_strategies_labelled_as_epochs_is_reported() -> None:
    found = of("relabelled", "T9")
    assert [f.row.label for f in found] == [f"LLM+MLP epoch {e}" for e in (1, 2, 3)]
    assert [f.what.split("prints for ")[1] for f in found] == [
        "'LLM+MLP epoch 2'",
        "'LLM epoch 2'",
        "'ALL epoch 2'",
    ]
    assert {f.row.table for f in FOUND if f.kind == "relabelled"} == {"T9"}


def test_a_clean_figure_of_one_table_differs() -> None:
    (found,) = of("conflict", "T26")
    assert "71.59" in found.what and "71.36" in found.what and found.row.clean


def test_a_header_that_names_the_wrong_benchmark() -> None:
    """T18 is headed RealWorldQA; its figures are possible on MMStar's 495 items only."""
    renamed = [
        replace(r, bench="RQA", n_original=440, n_perturbed=440) if r.table == "T18" else r
        for r in GAPS
    ]
    found = examine(renamed)
    assert any("62.02" in f.what for f in of("conflict", "T18", found))
    assert any("495" in f.what for f in of("items", "T18", found))
    assert not of("items", "T18") and not of("conflict", "T18")


def test_gaps_of_the_prose() -> None:
    found = examine(read_published(PUBLISHED / "prose_claims.csv"))
    assert [(f.kind, f.row.line) for f in found] == [("delta", 2), ("delta", 3)]
    assert "+34.14" in found[0].what and "+20.91" in found[1].what
    llava = [
        score.verdict
        for row, model, score in score_rows(MAIN)
        if (row.table, row.model, row.quantity) == ("T13", "LLaVA-v1.5-7B", "generalised")
        and not model.clean
    ]
    assert llava.count("contaminated") == 5  # of six; the prose says none


def test_the_number_of_kept_items_is_495_not_478() -> None:
    table = [r for r in MAIN if r.table == "T2"]
    values = {(r.model, r.label, "original", r.original) for r in table}
    values |= {(r.model, r.label, r.quantity, r.perturbed) for r in table}
    assert len(values) == 70
    figures = [value for *_, value in values if value is not None]
    assert sum(bool(possible_counts(v, 478)) for v in figures) == 1
    assert all(possible_counts(v, 495) for v in figures)
    found = examine([replace(r, n_original=478, n_perturbed=478) for r in table])
    blocks = [f for f in found if f.kind == "items"]
    assert blocks and all(
        "495" in f.what for f in blocks if "all are possible at: no" not in f.what
    )


@pytest.mark.parametrize(
    ("table", "strategy", "figures"),
    [
        ("T4", "LoRA", ["52.03"]),
        ("T25", "LoRA", ["52.03"]),
        ("T27", "LLM", ["45.68", "50.39", "53.37"]),
        ("T27", "ALL", ["49.52"]),
        ("T28", "LoRA", ["78.87", "67.48", "83.33", "64.95", "85.70", "63.74"]),
        ("T30", "LoRA", ["68.31"]),
        ("T31", "LLM", ["42.73", "38.28"]),
        ("T31", "LLM+MLP", ["34.65", "33.03"]),
        ("T31", "ALL", ["32.22", "30.41"]),
    ],
)
def test_impossible_percentages(table: str, strategy: str, figures: list[str]) -> None:
    found = of("impossible", table, strategy=strategy)
    assert [f.what.split(" %")[0].split()[-1] for f in found] == figures


def test_every_impossible_percentage_is_among_those_flagged_by_hand() -> None:
    with (PUBLISHED / "perturbation_gaps.csv").open() as file:
        flagged = {
            (line, flag)
            for line, row in enumerate(csv.DictReader(file), 2)
            for flag in row["flag"].split("|")
            if flag.startswith("GRIM")
        }
    sides = {"original": "GRIM_orig", "perturbed": "GRIM_pert"}
    found = {(f.row.line, sides[f.what.split()[0]]) for f in FOUND if f.kind == "impossible"}
    assert found == flagged


def test_a_block_measured_on_other_items() -> None:
    (found,) = of("items", "T28")
    assert found.row.strategy == "LoRA" and "6 of 6" in found.what


def test_repeated_figures_are_reported() -> None:
    found = [f for f in FOUND if f.kind == "duplicate"]
    assert [(f.row.table, f.row.label) for f in found] == [
        ("T26", "LLM+MLP epoch 2"),
        ("T33", "ALL epoch 1"),
    ]


def test_percentages_of_464_and_467_and_not_of_500() -> None:
    stated = [replace(r, n_original=500, n_perturbed=500) for r in GAPS if r.table == "T33"]
    found = {
        f.what.split("(")[1].split(")")[0]: f.what for f in of("items", "T33", examine(stated))
    }
    assert "464" in found["original"]
    # 85.84 is possible at neither
    assert of("impossible", "T33", epoch=3, strategy="LLM+MLP")
    assert of("unpaired", "T33", strategy="clean")


def test_series_that_are_not_monotone() -> None:
    (found,) = requirements_of(GAPS)
    assert found.violations == (
        "T16 Qwen2-VL-7B verbatim, ALL on RQA",
        "T23 LLaVA-v1.5-7B verbatim_molmo, LLM on RQA",
        "T23 LLaVA-v1.5-7B verbatim_molmo, ALL on RQA",
        "T24 Qwen2-VL-7B verbatim_molmo, LLM on RQA",
    )


def test_gaps_of_a_handful_of_items() -> None:
    margins = {(f.row.table, str(f.row.delta)) for f in FOUND if f.kind == "margin" and f.row.clean}
    assert {("T16", "0.91"), ("T6", "0.26"), ("T20", "0.26")} <= margins
    (qwen,) = of("margin", "T16", strategy="clean")
    assert "4 items of 440" in qwen.what and "0.125" in qwen.what


def test_original_and_perturbed_of_different_items() -> None:
    found = examine(EXTENDED)
    assert [f.row.model for f in found if f.kind == "unpaired"] == [
        "Gemini-2.0-Flash",
        "GPT-4o",
        "Phi-3.5-Vision",
        "InternVL-2.5-8B",
    ]
    (swapped,) = [f for f in found if f.kind == "swapped"]
    assert swapped.row.model == "GPT-4o" and "-4.25" in swapped.what
    (intern,) = [f for f in found if "InternVL" in f.row.model]
    assert "+0.72 ± 2.86" in intern.what  # well inside one standard error


def test_different_items_are_suspected_where_one_number_is_stated() -> None:
    """Stated as 440 throughout, 68.37 % is impossible, and would be 523 of 765."""
    stated = [
        replace(r, n_original=440, n_perturbed=440) if r.table == "T14" else r for r in EXTENDED
    ]
    full = PublishedResult(line=99, bench="RQA", n_original=765, value=None)
    found = [f for f in examine([*stated, full]) if f.kind == "impossible"]
    assert {f.row.model: f.what.split("it would be ")[1] for f in found} == {
        "Gemini-2.0-Flash": "523/765",
        "GPT-4o": "535/765",
        "Phi-3.5-Vision": "403/765",
        "InternVL-2.5-8B": "490/765",
    }


def test_a_lone_percentage_is_checked() -> None:
    (found,) = examine(read_published(PUBLISHED / "filtered_vs_full.csv"))
    assert found.kind == "impossible" and "375/765 = 49.020" in found.what


# ---------------------------------------------------------------- several tables


TOGETHER = examine([*MAIN, *GAPS, *FULL, *EXTENDED, *TEXTS])


def test_a_cell_that_two_files_print_differently() -> None:
    """61.62 (305 of 495) in the filtered table, 62.02 everywhere else; 69.29 and 68.29."""
    (filtered,) = of("conflict", "T3", TOGETHER)
    assert filtered.wrong and "61.62 here, and 62.02 in 7 other places" in filtered.what
    for table in ("T5", "T27", "T31"):
        (clean,) = of("conflict", table, TOGETHER, clean=True)
        assert "68.29 here, and 69.29 in 2 other places" in clean.what
        assert "perturbation_main_tables.csv, line 3 (T2" in clean.what
    assert not of("conflict", "T2", TOGETHER) and not of("conflict", "T13", TOGETHER)
    assert not of("conflict", "T12", TOGETHER) and not of("conflict", "T8", TOGETHER)


@pytest.mark.slow
def test_a_changed_cell_of_any_kind_is_a_conflict() -> None:
    for rows, name in ((MAIN, "original"), (MAIN, "perturbed"), (TEXTS, "value")):
        for at in range(0, len(rows), 11):
            row = rows[at]
            changed = replace(row, **{name: getattr(row, name) + 1}, file="other.csv")
            found = [f for f in examine([*rows, changed]) if f.kind == "conflict"]
            assert found and all(f.row.model == row.model for f in found), row.where


def test_a_row_without_a_regime_conflicts_with_none_that_prints_it() -> None:
    (row,) = [
        r
        for r in MAIN
        if (r.table, r.quantity, r.label) == ("T13", "perturbed", "lora epoch 1")
        and r.model.startswith("LLaVA")
    ]
    changed = replace(row, original=Decimal("62.95"))
    found = [f for f in examine([changed, *GAPS]) if f.kind == "conflict" and f.row is changed]
    assert ["62.95 here, and" in f.what for f in found] == [True]
    assert not [f for f in examine([row, *GAPS]) if f.kind == "conflict" and f.row is row]


def test_the_main_tables_mix_regimes_and_strategies() -> None:
    """T2's Qwen2-VL is the mixture of T32; its LLaVA 'sft' is T17's ALL, T13's is T15's LLM+MLP."""
    found = [f for f in TOGETHER if f.kind == "relabelled" and f.row in MAIN]
    sft, *mixed = found
    assert sft.row.model == "LLaVA-v1.5-7B" and "T17" in sft.what and "T15" in sft.what
    assert "'ALL' in T2" in sft.what and "'LLM+MLP' in T13" in sft.what
    assert [(f.row.table, f.row.model, f.row.strategy) for f in mixed] == [
        ("T2", "Qwen2-VL-7B", "lora"),
        ("T2", "Qwen2-VL-7B", "sft"),
    ]
    assert all("'mixture6'" in f.what and "T32" in f.what and "'verbatim'" in f.what for f in mixed)
    assert {f.row.table for f in TOGETHER if f.kind == "relabelled"} == {"T2", "T9"}


def test_an_unstated_number_of_items_is_inferred() -> None:
    found = [f for f in TOGETHER if f.kind == "items" and not f.wrong]
    assert [f.row.bench for f in found] == ["RQA", "MMStar"]
    assert "765 is the smallest" in found[0].what and "1500 is the smallest" in found[1].what
    assert "elsewhere: 495, 1500" in found[1].what
    few = [r for r in TEXTS if r.bench == "RQA" and r.strategy == "LoRA" and r.epoch == 1]
    assert not examine(few)


def test_findings_name_the_file_and_line() -> None:
    assert FOUND
    assert all(f.row.where.startswith(f"perturbation_gaps.csv, line {f.row.line} (") for f in FOUND)

"""From files of other tools to the table: the same numbers whatever the format."""

import csv
import json
from io import StringIO
from pathlib import Path

import pytest

from flipbench.core.errors import ConfigError, DataError
from flipbench.core.rates import wilson_interval
from flipbench.core.records import Count, PairedCounts
from flipbench.evaluate.predictions.gap import gap_of_predictions
from flipbench.evaluate.predictions.read import ReadOptions
from flipbench.evaluate.protocol.grid import GridModel
from flipbench.evaluate.report.score_frame import score_frame
from flipbench.evaluate.report.score_tables import gap_table
from flipbench.evaluate.scoring.comparison import Settings
from flipbench.evaluate.statistics.paired import mcnemar_p, paired_comparison
from tests.fixtures.prediction_files import COUNTS, FILES, Row, both, plain_csv, rows, vlmevalkit

READ_BY_ITSELF = [".csv", ".tsv", ".xlsx", ".json"]
REAL = {
    "lmms-eval": "lmms_samples_shapes_{}.jsonl",
    "Inspect, JSON": "inspect_{}.json",
    "Inspect, binary": "inspect_{}.eval",
}
SLOW = pytest.param("Inspect, binary", marks=pytest.mark.slow)  # inspect_ai is imported


def pair_of(form: str, folder: Path) -> tuple[Path, Path]:
    if form in READ_BY_ITSELF:
        return both(folder, form)
    return FILES / REAL[form].format("original"), FILES / REAL[form].format("perturbed")


@pytest.mark.parametrize("form", [*READ_BY_ITSELF, *list(REAL)[:-1], SLOW])
def test_every_format_gives_the_hand_counted_result(form: str, tmp_path: Path) -> None:
    table = gap_of_predictions(*pair_of(form, tmp_path), model="tiny", benchmark="shapes")
    for rule in ("sign", "mcnemar"):
        score = table.by_rule[rule]
        assert score.paired == PairedCounts(**COUNTS)
        assert (score.n, score.n_dropped) == (11, 1)
        assert score.accuracies == {
            "original": Count(k=10, n=11),
            "perturbed": Count(k=4, n=11),
        }
        assert score.unparsed == {"original": 0, "perturbed": 1}
        assert score.p_value == pytest.approx(9 / 256)
    names = table.scores[0].suspects.names
    assert names == ("1", "4", "5", "6", "7", "9", "10")
    assert any("'11'" in text and "not counted as wrong" in text for text in table.warnings)


def test_unequal_parse_failures_are_inconclusive(tmp_path: Path) -> None:
    """One of eleven against none is 9.1 points: no verdict, whatever p says."""
    table = gap_of_predictions(*both(tmp_path))
    assert {s.rule: s.verdict for s in table.scores} == dict.fromkeys(
        ("sign", "mcnemar"), "inconclusive"
    )
    assert any("original 0/11, perturbed 1/11" in text for text in table.warnings)
    assert "There is no verdict" in table.sentence()

    def speak(side: str, table: list[Row]) -> list[Row]:
        return [r | {"prediction": "A"} if r["prediction"] == "I cannot tell" else r for r in table]

    clear = gap_of_predictions(*both(tmp_path, change=speak))
    assert {s.rule: s.verdict for s in clear.scores} == dict.fromkeys(
        ("sign", "mcnemar"), "contaminated"
    )
    assert clear.verdict == "inconclusive", "edits may be harder than their originals"
    assert clear.decision.reason == "needs reference, no effect"
    assert "4/11 perturbed versions right, where guessing gets" in clear.sentence()


def letters(folder: Path, side: str, replies: str, golds: str) -> Path:
    """Write a file of letters as replies to four options."""
    table: list[Row] = [
        {"index": i, "question": f"Q{i}?", "A": "a", "B": "b", "C": "c", "D": "d"}
        | {"answer": gold, "prediction": reply}
        for i, (reply, gold) in enumerate(zip(replies, golds, strict=True))
    ]
    return plain_csv(folder / f"{side}.csv", table)


def test_a_judged_gap_has_a_verdict_and_an_unjudged_one_none(tmp_path: Path) -> None:
    """Half of the perturbed items are answered by the original's answer."""
    original = letters(tmp_path, "original", "ACDA" * 10, "ACDA" * 10)
    perturbed = letters(tmp_path, "perturbed", "ACBBBBDA" * 5, "B" * 40)
    alone = gap_of_predictions(original, perturbed, model="m")
    assert alone.by_rule["mcnemar"].verdict == "contaminated"
    assert alone.decision.reason == "unjudged" and "--judged-by" in alone.sentence()
    assert alone.attraction is not None and alone.attraction.verdict == "contaminated"
    assert alone.attraction.p_value is not None and alone.attraction.p_value < 1e-6
    assert "20/20 (expected " in alone.markdown()
    assert "at least: 50.0 % [" in alone.markdown() and "| 50.0 [" in alone.markdown()
    judged = gap_of_predictions(original, perturbed, model="m", judged_by="Ann and Ben")
    assert judged.verdict == "contaminated" and "behaves like a model" in judged.sentence()
    assert "40 were judged valid, by Ann and Ben" in judged.markdown()
    assert "20 of 20 wrong answers to perturbed versions name the original's" in judged.markdown()


def test_letters_that_do_not_vary_tell_no_memory_from_a_preference(tmp_path: Path) -> None:
    original = letters(tmp_path, "original", "A" * 40, "A" * 40)
    perturbed = letters(tmp_path, "perturbed", "AB" * 20, "B" * 40)
    table = gap_of_predictions(original, perturbed, model="m", judged_by="Ann")
    assert table.decision.reason == "needs reference"
    assert "vary too little within a new answer's letter" in table.markdown()


def test_a_clean_model_decides_whichever_way_it_moves(tmp_path: Path) -> None:
    (tmp_path / "clean").mkdir()
    half, golds = "ACBC" * 10, ("AABB" * 10, "BBAA" * 10)
    model = (
        letters(tmp_path, "original", half, golds[0]),
        letters(tmp_path, "perturbed", "BCAC" * 10, golds[1]),
    )
    rises = (
        letters(tmp_path / "clean", "original", half, golds[0]),
        letters(tmp_path / "clean", "perturbed", golds[1], golds[1]),
    )
    alone = gap_of_predictions(*model)
    assert alone.verdict == "not_detected" and "by 0.3 to 31.5 points" in alone.markdown()
    beside = gap_of_predictions(*model, references=[rises])
    assert (beside.verdict, beside.decision.decides) == ("contaminated", "relative")
    assert "50.0 points below the gap of the clean reference" in beside.sentence()


def test_unreadable_replies_on_both_sides_are_no_evidence(tmp_path: Path) -> None:
    files = [
        letters(tmp_path, side, "A" * n + "?" * (100 - n), gold * 100)
        for side, n, gold in (("original", 15, "A"), ("perturbed", 17, "B"))
    ]
    table = gap_of_predictions(*files, judged_by="Ann")
    assert table.verdict == "inconclusive"
    assert "replies that name no option: original 85/100," in table.sentence()


def test_noise_for_pictures_is_no_evidence_even_if_somebody_judged_it(tmp_path: Path) -> None:
    original = letters(tmp_path, "original", "A" * 10 + "BC", "A" * 12)
    perturbed = letters(tmp_path, "perturbed", "BBACDACDACDB", "B" * 12)
    for exchangeable, reason in (
        (None, "needs reference, no effect"),
        (True, "letters, no effect"),
    ):
        table = gap_of_predictions(original, perturbed, judged_by="Ann", exchangeable=exchangeable)
        assert table.by_rule["mcnemar"].verdict == "contaminated"
        assert (table.verdict, table.decision.reason) == ("inconclusive", reason)
        assert "3/12 perturbed versions right, where guessing gets 3.0" in table.sentence()


def test_the_table_equals_the_report_s(tmp_path: Path) -> None:
    """What both tables show of a model reads the same, to the character."""
    table = gap_of_predictions(*both(tmp_path), model="tiny")
    score = table.by_rule["mcnemar"]
    grid = [GridModel("tiny", score.model_fingerprint, "f", "s", 1, 1)]
    report = gap_table(grid, score_frame(table.scores, grid))

    def cells(of: object) -> dict[str, str]:
        (_, (row,)) = of.groups[0]  # type: ignore[attr-defined]
        headers = [column.header for column in of.columns]  # type: ignore[attr-defined]
        return {h: cell.plain() for h, cell in zip(headers, row.cells, strict=True)}

    own, expected = cells(table.table()), cells(report)
    for header in ("Δ, pp", "p", "McNemar test", "Items dropped"):
        assert own[header] == expected[header]
    for header in ("Original, %", "Perturbed, %"):
        assert own[header].startswith(expected[header] + " [")


def test_intervals_match_the_statistics_room(tmp_path: Path) -> None:
    (row,) = list(csv.DictReader(StringIO(gap_of_predictions(*both(tmp_path)).csv())))
    wilson = wilson_interval(4, 11)
    assert float(row["low_perturbed"]) == pytest.approx(wilson.low)
    assert float(row["high_perturbed"]) == pytest.approx(wilson.high)
    o = [True] * 3 + [True] * 7 + [False]
    p = [True] * 3 + [False] * 7 + [True]
    outcome = paired_comparison(o, p)
    assert outcome.interval is not None
    assert float(row["low"]) == pytest.approx(outcome.interval.low)
    assert float(row["p_value"]) == pytest.approx(mcnemar_p(7, 1, "drop"))


def test_the_order_of_rows_changes_nothing(tmp_path: Path) -> None:
    plain = gap_of_predictions(*both(tmp_path), model="m", benchmark="b")
    turned = gap_of_predictions(
        *both(tmp_path, change=lambda side, t: t[::-1] if side == "perturbed" else t[5:] + t[:5]),
        model="m",
        benchmark="b",
    )
    assert {s.id for s in plain.scores} == {s.id for s in turned.scores}
    for one, two in zip(plain.scores, turned.scores, strict=True):
        assert (one.statistic, one.interval, one.p_value) == (
            two.statistic,
            two.interval,
            two.p_value,
        )
        assert one.per_item == two.per_item


def test_items_that_share_a_picture_are_drawn_together(tmp_path: Path) -> None:
    def share(side: str, table: list[Row]) -> list[Row]:
        return [r | {"image_path": f"{i // 3}.jpg"} for i, r in enumerate(table)]

    shared = gap_of_predictions(*both(tmp_path, change=share)).by_rule["mcnemar"]
    single = gap_of_predictions(*both(tmp_path)).by_rule["mcnemar"]
    assert shared.statistic == single.statistic and shared.interval != single.interval
    assert any("share 4 images or groups" in text for text in shared.warnings)


def test_the_gap_prints_in_every_format(tmp_path: Path) -> None:
    table = gap_of_predictions(*both(tmp_path), model="tiny_vlm", benchmark="shapes")
    text = table.text("markdown")
    assert "| tiny_vlm | 90.9 (10/11) [" in text and "36.4 (4/11) [" in text
    assert "7/11 ('1', '4'" in text and "- Note: " in text
    assert r"tiny\_vlm" in table.text("latex") and r"\toprule" in table.text("latex")
    loaded = json.loads(table.text("json"))
    assert [score["rule"] for score in loaded] == ["sign", "mcnemar", "chance"]
    assert len(loaded[0]["per_item"]) == 11
    with pytest.raises(ConfigError, match="choose markdown, csv, latex or json"):
        table.text("pdf")


def test_marks_in_the_file_replace_unparsable_replies(tmp_path: Path) -> None:
    def marked(side: str, table: list[Row]) -> list[Row]:
        right = {"original": set(range(12)) - {3}, "perturbed": {0, 2, 3, 8}}[side]
        return [{"id": r["index"], "correct": int(r["index"] in right)} for r in table]

    table = gap_of_predictions(*both(tmp_path, change=marked))
    score = table.by_rule["mcnemar"]
    assert (score.paired.b, score.paired.c, score.n) == (8, 1, 12)
    assert score.details["scoring"] == "file"
    assert any("is not known" in text for text in table.warnings)
    (_, (row,)) = table.table().groups[0]
    assert [cell.text for cell in row.cells[-3:-1]] == ["–", "–"]
    with pytest.raises(DataError, match="replies cannot be parsed"):
        gap_of_predictions(*both(tmp_path, change=marked), scoring="parse")


def test_marks_that_contradict_the_replies_are_reported(tmp_path: Path) -> None:
    def marked(side: str, table: list[Row]) -> list[Row]:
        return [r | {"hit": int(r["index"] != 5)} for r in table]

    table = gap_of_predictions(*both(tmp_path, change=marked))
    assert table.by_rule["sign"].paired.b == COUNTS["b"]
    assert any(
        text.startswith("original: the file's own marks differ") and "2 of 12" in text
        for text in table.warnings
    )
    by_marks = gap_of_predictions(*both(tmp_path, change=marked), scoring="file")
    assert by_marks.by_rule["sign"].statistic == 0


def test_a_reference_model_adds_the_relative_rule(tmp_path: Path) -> None:
    def good(side: str, table: list[Row]) -> list[Row]:
        return [r | {"prediction": r["answer"]} for r in table]

    (tmp_path / "clean").mkdir()
    clean = both(tmp_path / "clean", change=good)
    table = gap_of_predictions(
        *both(tmp_path), references=[clean], settings=Settings(n_bootstrap=200)
    )
    score = table.by_rule["relative"]
    assert score.statistic == pytest.approx(-6 / 11)
    assert "clean model's" in table.markdown()
    fewer = both(tmp_path / "clean", change=lambda side, t: good(side, t)[:6])
    with pytest.raises(DataError, match="the reference model lacks 5 of 11 items"):
        gap_of_predictions(*both(tmp_path), references=[fewer])


def test_only_listed_ids_are_kept(tmp_path: Path) -> None:
    table = gap_of_predictions(*both(tmp_path), keep={"0", "2", "3", "4", "5", "6", "7", "9"})
    score = table.by_rule["mcnemar"]
    assert (score.n, score.n_dropped, score.paired.b) == (8, 0, 5)
    with pytest.raises(DataError, match="1 of 2 ids of the keep list are missing: '99'"):
        gap_of_predictions(*both(tmp_path), keep=["1", "99"])


@pytest.mark.parametrize(
    "form",
    [
        "<think>option A or (B)? The answer is A.</think>\n{}",
        "option A or (B)? The answer is A.</think>\n{}",  # the template writes the first tag
        "<SUMMARY> A sign. </SUMMARY>\n<REASONING> Option A fits. </REASONING>\n"
        "<CONCLUSION> {} </CONCLUSION>",
        "<|channel|>analysis<|message|>Option A fits.<|end|><|start|>assistant<|channel|>final"
        "<|message|>{}<|return|>",
    ],
)
def test_reasoning_is_not_parsed_as_the_answer(form: str, tmp_path: Path) -> None:
    def think(side: str, table: list[Row]) -> list[Row]:
        return [r | {"prediction": form.format(r["prediction"])} for r in table]

    score = gap_of_predictions(*both(tmp_path, change=think)).by_rule["sign"]
    assert score.paired == PairedCounts(**COUNTS)


def test_a_reply_cut_at_the_limit_of_a_cell_is_missing(tmp_path: Path) -> None:
    def fill(side: str, table: list[Row]) -> list[Row]:
        whole = f"{table[0]['prediction']}\n" + "x" * 40_000
        return [table[0] | {"prediction": whole[:32_767]}, *table[1:]]

    scored = gap_of_predictions(*both(tmp_path, change=fill)).by_rule["sign"]
    assert scored.n_dropped == 2, "with the one that the table lacks anyway"
    assert any("cut off at a spreadsheet's 32,767" in text for text in scored.warnings)


def yes_no(folder: Path, side: str, replies: str, **columns: list[object]) -> Path:
    """Write y and n as replies to questions that the original's picture answers with yes."""
    gold = "Yes" if side == "original" else "No"
    spelt = {"y": "Yes, it is.", "n": "No", "?": "I cannot tell"}
    table: list[Row] = [
        {"index": i, "question": f"Q{i}?", "answer": gold, "prediction": spelt[reply]}
        | {name: values[i] for name, values in columns.items()}
        for i, reply in enumerate(replies)
    ]
    return vlmevalkit(folder / f"{side}.xlsx", table)


def test_yes_and_no_are_parsed_as_words(tmp_path: Path) -> None:
    files = [
        yes_no(tmp_path, "original", "y" * 20),
        yes_no(tmp_path, "perturbed", "y" * 9 + "n" * 11),
    ]
    table = gap_of_predictions(*files, judged_by="Ann")
    score = table.by_rule["mcnemar"]
    assert (score.paired.n11, score.paired.b, score.details["scoring"]) == (11, 9, "parse")
    assert score.unparsed == {"original": 0, "perturbed": 0}
    assert "11/20 perturbed versions right, where guessing gets 10.0" in table.markdown()


def test_marks_decide_where_only_some_answers_are_yes_or_no(tmp_path: Path) -> None:
    """The column is that of VLMEvalKit's yes/no data sets."""
    files = []
    for side, marks in (("original", [True] * 8), ("perturbed", [True] * 3 + [False] * 5)):
        answers = ["Yes" if side == "original" else "No"] * 4 + [f"a {side}"] * 4
        files.append(yes_no(tmp_path, side, "?" * 8, answer=[*answers], score=[*marks]))
    score = gap_of_predictions(*files).by_rule["mcnemar"]
    assert (score.paired.n11, score.paired.b, score.details["scoring"]) == (3, 5, "file")


def test_fewer_than_five_items_are_inconclusive(tmp_path: Path) -> None:
    few = gap_of_predictions(*both(tmp_path, change=lambda s, t: t[2:6])).by_rule["mcnemar"]
    assert few.verdict == "inconclusive"
    assert any("fewer than 5 can never reach" in text for text in few.warnings)


def test_letters_without_options_are_enough(tmp_path: Path) -> None:
    def bare(side: str, table: list[Row]) -> list[Row]:
        return [{k: r[k] for k in ("index", "answer", "prediction")} for r in table]

    score = gap_of_predictions(*both(tmp_path, change=bare)).by_rule["sign"]
    assert score.paired == PairedCounts(**COUNTS)


def test_columns_can_have_other_names(tmp_path: Path) -> None:
    def rename(side: str, table: list[Row]) -> list[Row]:
        return [{"qid": r.pop("index"), "said": r.pop("prediction"), **r} for r in table]

    options = ReadOptions(columns={"id": "qid", "prediction": "said"})
    score = gap_of_predictions(*both(tmp_path, change=rename), options=options).by_rule["sign"]
    assert score.paired.b == COUNTS["b"]


def test_formats_may_differ_between_the_two(tmp_path: Path) -> None:
    one = plain_csv(tmp_path / "original.csv", rows("original"))
    score = gap_of_predictions(one, both(tmp_path, ".xlsx")[1]).by_rule["sign"]
    assert score.paired == PairedCounts(**COUNTS)


def test_rotated_rows_and_sets_of_pictures_are_grouped(tmp_path: Path) -> None:
    """VLMEvalKit's circular files: 24 questions right, of which 4 fall, in four rotations each."""
    files = []
    for side, n_right in (("original", 24), ("perturbed", 20)):
        table: list[Row] = []
        for i in range(30):
            for turn in range(4):
                gold = (i + (side == "perturbed") - turn) % 4
                reply = gold if i < n_right else (gold + 1) % 4
                table.append(
                    {"index": i + 1 + 1_000_000 * turn, "question": f"Q{i}?"}
                    | {"ABCD"[j]: f"{'wxyz'[(j + turn) % 4]}" for j in range(4)}
                    | {"answer": "ABCD"[gold], "prediction": "ABCD"[reply]}
                )
        files.append(plain_csv(tmp_path / f"{side}.csv", table))
    table_of = gap_of_predictions(*files)
    score = table_of.by_rule["mcnemar"]
    assert score.n == 120 and score.p_value == pytest.approx(1 / 16)
    sets = [Path(str(file).replace(".csv", "-sets.csv")) for file in files]
    for file, target in zip(files, sets, strict=True):
        rows = list(csv.DictReader(file.open()))
        numbered = [
            dict(row, index=str(i), set_id=str(i // 4), category="VD") for i, row in enumerate(rows)
        ]
        plain_csv(target, numbered)
    assert gap_of_predictions(*sets).by_rule["mcnemar"].p_value == pytest.approx(1 / 16)


def test_ids_are_the_same_as_numbers_and_as_text(tmp_path: Path) -> None:
    original, perturbed = (
        letters(tmp_path, side, "AB" * 4, golds)
        for side, golds in (("original", "AB" * 4), ("perturbed", "BA" * 4))
    )
    text = original.read_text().splitlines()
    rows = [text[0], *(line.replace(",", ".0,", 1) for line in text[1:])]
    original.write_text("\n".join(rows) + "\n")
    assert gap_of_predictions(original, perturbed).by_rule["mcnemar"].n == 8

"""What does not belong together is refused by name; nothing is dropped quietly."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import openpyxl
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flipbench as fb
from flipbench.benchmarks.tables import read_rows
from flipbench.core.errors import ConfigError, DataError
from flipbench.core.records import Count
from flipbench.evaluate.predictions.gap import gap_of_predictions
from flipbench.evaluate.predictions.join import models_of
from flipbench.evaluate.predictions.prediction import PredictionFile
from flipbench.evaluate.predictions.read import ReadOptions, read_ids, read_predictions
from tests.fixtures.prediction_files import FILES, Row, both, plain_csv, rows


def assert_refused(paths: tuple[Path, Path], message: str, **options: Any) -> str:
    with pytest.raises(DataError, match=message) as caught:
        gap_of_predictions(*paths, **options)
    return str(caught.value)


def on(side: str, what: Any) -> Any:
    return lambda s, table: what(table) if s == side else table


# ---------------------------------------------------------------- ids


def test_missing_ids_are_named_and_counted(tmp_path: Path) -> None:
    paths = both(tmp_path, change=lambda s, t: t[:9] if s == "perturbed" else t[1:])
    message = assert_refused(paths, "do not hold the same items")
    assert "3 only in" in message and "'9', '10', '11'" in message
    assert "1 only in" in message and "'0'" in message


def test_duplicate_ids_are_named_with_their_lines(tmp_path: Path) -> None:
    paths = both(tmp_path, change=on("original", lambda t: [*t, t[4], t[2]]))
    message = assert_refused(paths, "2 ids occur more than once: '2', '4'")
    assert "vlm_original.csv, line 4 and vlm_original.csv, line 15" in message


def test_predictions_on_another_benchmark_are_refused(tmp_path: Path) -> None:
    other = on("perturbed", lambda t: [r | {"index": f"x{r['index']}"} for r in t])
    assert_refused(both(tmp_path, change=other), "no id in common .*different benchmarks")


def test_the_same_ids_with_other_options_are_refused(tmp_path: Path) -> None:
    other = on("perturbed", lambda t: [r | {"A": "cat", "B": "dog"} for r in t])
    message = assert_refused(both(tmp_path, change=other), "the options of 12 of 12 items differ")
    assert "'0', '1', '2', '3', '4' and 7 more" in message


def test_shifted_ids_are_refused(tmp_path: Path) -> None:
    shifted = on("perturbed", lambda t: [r | {"index": (r["index"] + 3) % 12} for r in t])
    one, two = both(tmp_path, change=shifted)
    assert_refused((one, two), "the options of 12 of 12 items differ")


@pytest.mark.slow
@given(st.sets(st.integers(0, 11), min_size=1, max_size=10), st.sampled_from([0, 1]))
def test_any_missing_rows_are_counted(gone: set[int], at: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        side = ("original", "perturbed")[at]
        keep = on(side, lambda t: [r for r in t if r["index"] not in gone])
        message = assert_refused(both(Path(folder), change=keep), "do not hold the same items")
    assert f"{len(gone)} only in" in message
    assert repr(str(min(gone))) in message


def test_the_same_file_twice_is_refused(tmp_path: Path) -> None:
    one, _ = both(tmp_path)
    assert_refused((one, one), "the right answer is the same in both for all 12 items")


def test_shifted_rows_without_options_are_refused(tmp_path: Path) -> None:
    """lmms-eval's ids are row numbers: only the questions tell that the rows are not the same."""

    def shifted(side: str, table: list[Row]) -> list[Row]:
        asked = [{k: r[k] for k in ("index", "question", "answer", "prediction")} for r in table]
        if side == "original":
            return asked
        return [r | {"index": (r["index"] + 1) % 12} for r in asked]

    assert_refused(both(tmp_path, change=shifted), "the questions of 12 of 12 items differ")


def test_an_empty_id_is_refused(tmp_path: Path) -> None:
    paths = both(tmp_path, change=on("original", lambda t: [t[0] | {"index": None}, *t[1:]]))
    assert_refused(paths, "vlm_original.csv, line 2: the id is empty")


# ---------------------------------------------------------------- answers and replies


def test_unusable_items_are_dropped_and_named(tmp_path: Path) -> None:
    def spoil(side: str, table: list[Row]) -> list[Row]:
        golds = {4: "Other Answers", 6: "G"} if side == "perturbed" else {}
        golds |= {8: "A"}
        return [r | {"answer": golds.get(r["index"], r["answer"])} for r in table]

    table = gap_of_predictions(*both(tmp_path, change=spoil))
    score = table.by_rule["sign"]
    assert (score.n, score.n_dropped) == (8, 4)
    assert any("2 items are left out" in t and "'4', '6'" in t for t in table.warnings)
    assert any("same in both versions: '8'" in t for t in table.warnings)


@pytest.mark.parametrize("reply", ["", None, "   ", "Failed to obtain answer via API. "])
def test_an_error_is_never_a_wrong_answer(tmp_path: Path, reply: str | None) -> None:
    def fail(side: str, table: list[Row]) -> list[Row]:
        return [r | {"prediction": reply if r["index"] < 4 else r["answer"]} for r in table]

    for suffix in (".csv", ".xlsx", ".json"):
        table = gap_of_predictions(*both(tmp_path, suffix, fail))
        score = table.by_rule["mcnemar"]
        assert (score.n, score.n_dropped, score.statistic) == (8, 4, 0)
        assert score.accuracies["original"] == Count(k=8, n=8)


def test_an_error_column_marks_failed_rows(tmp_path: Path) -> None:
    def fail(side: str, table: list[Row]) -> list[Row]:
        return [r | {"error": "timeout" if r["index"] == 0 else None} for r in table]

    table = gap_of_predictions(*both(tmp_path, change=fail))
    assert table.by_rule["sign"].n == 10
    assert any("the first: timeout" in text for text in table.warnings)


def test_a_file_without_replies_is_refused(tmp_path: Path) -> None:
    paths = both(tmp_path, change=lambda s, t: [r | {"prediction": ""} for r in t])
    assert_refused(
        paths, "no item has a usable reply in both; original: 12 of 12 items have no reply"
    )


def test_replies_that_name_no_option_are_inconclusive(tmp_path: Path) -> None:
    mute = on("perturbed", lambda t: [r | {"prediction": "I see a picture."} for r in t])
    table = gap_of_predictions(*both(tmp_path, change=mute))
    assert table.by_rule["mcnemar"].verdict == "inconclusive"
    assert table.by_rule["mcnemar"].unparsed == {"original": 0, "perturbed": 12}


def test_free_form_answers_need_marks(tmp_path: Path) -> None:
    def free(side: str, table: list[Row]) -> list[Row]:
        return [{"id": r["index"], "answer": f"a {side}", "prediction": "a cat"} for r in table]

    assert_refused(
        both(tmp_path, change=free), "line 2: neither a reply with a right letter.*23 more"
    )


# ---------------------------------------------------------------- files


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.pkl", "x", "pickle files are not read"),
        ("p.parquet", "x", "p.parquet: not a parquet file"),
        ("p.feather", "x", "give an .xlsx, .tsv, .csv"),
        ("p.csv", "", "the file is empty"),
        ("p.csv", "index,prediction,answer\n", "there are no rows"),
        ("p.csv", "index,prediction,answer\n1,A\n", "p.csv, line 2: 2 cells, but the header has 3"),
        ("p.csv", "index,index,prediction\n1,1,A\n", "two columns are named 'index'"),
        ("p.csv", "prediction,answer\nA,B\n", "no column for the id .*found: prediction, answer"),
        ("p.csv", "index,answer\n1,B\n", "no column for the prediction"),
        ("p.json", "[1, 2]", "object 1: not a JSON object"),
        ("p.json", '[{"index": 1,', "line 1: not JSON"),
        ("p.jsonl", '{"doc_id": 0}\n{"doc_', "line 2: not JSON .*complete"),
        ("p.json", "3", "neither a list of objects"),
        ("p.jsonl", "[1]\n", "line 1: not a JSON object"),
        ("p.xlsx", "no workbook", "not an .xlsx workbook"),
    ],
)
def test_unreadable_files_are_refused(
    tmp_path: Path, name: str, content: str, message: str
) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(DataError, match=message):
        read_predictions(path)


def test_missing_and_non_utf8_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file; fix the path"):
        read_predictions(tmp_path / "none.csv")
    path = tmp_path / "latin.tsv"
    path.write_bytes("index\tprediction\n1\tA\n2\tcafé\n".encode("latin-1"))
    with pytest.raises(DataError, match="line 3: not UTF-8"):
        read_predictions(path)


def test_unknown_columns_suggest_the_nearest_name(tmp_path: Path) -> None:
    one, _ = both(tmp_path)
    with pytest.raises(ConfigError, match="unknown column meaning 'ids'.*did you mean 'id'"):
        read_predictions(one, ReadOptions(columns={"ids": "index"}))
    with pytest.raises(DataError, match="no column 'indx' .*did you mean 'index'"):
        read_predictions(one, ReadOptions(columns={"id": "indx"}))


def test_cells_are_read_as_written(tmp_path: Path) -> None:
    """NA, None, 1 and =5 are texts that pandas would turn into something else, or lose."""
    book = openpyxl.Workbook()
    book.active.append(["index", "A", "B", "C", "prediction", "answer"])
    book.active.append([7, "NA", "None", 1, "=5+1", "A"])
    book.save(tmp_path / "p.xlsx")
    (tmp_path / "p.csv").write_text("index,A,B,C,prediction,answer\n7,NA,None,1,=5+1,A\n")
    for name in ("p.xlsx", "p.csv"):
        (found,) = read_predictions(tmp_path / name).predictions
        assert (found.id, found.text) == ("7", "=5+1")
        assert found.options == (("A", "NA"), ("B", "None"), ("C", "1"))


def test_a_gap_among_the_options_keeps_the_letters(tmp_path: Path) -> None:
    def gap(side: str, table: list[Row]) -> list[Row]:
        gold = "D" if side == "original" else "A"
        return [
            {"index": r["index"], "A": "a", "B": None, "D": "d", "answer": gold, "prediction": "D"}
            for r in table
        ]

    score = gap_of_predictions(*both(tmp_path, change=gap)).by_rule["sign"]
    assert (score.paired.b, score.n) == (12, 12)


def test_json_as_pandas_writes_columns(tmp_path: Path) -> None:
    import pandas as pd

    pd.DataFrame(rows("original")).to_json(tmp_path / "p.json")
    found = read_rows(tmp_path / "p.json")
    assert len(found) == 12 and found[3].cells["index"] == 3


def test_a_long_reply_with_tabs_quotes_and_newlines(tmp_path: Path) -> None:
    reply = 'It says "B"\n\tthat is,\nthe answer is B.' + " " * 200_000
    table = [r | {"prediction": reply} for r in rows("original")]
    assert read_predictions(plain_csv(tmp_path / "p.csv", table)).predictions[0].text == reply
    with (tmp_path / "p.tsv").open("w", newline="") as file:
        csv.writer(file, delimiter="\t").writerows([["index", "prediction"], ["1", reply]])
    assert read_predictions(tmp_path / "p.tsv").predictions[0].text == reply


def test_keep_lists_are_read(tmp_path: Path) -> None:
    path = tmp_path / "keep.txt"
    path.write_text("3\n\n 5 \n")
    assert read_ids(path) == ["3", "5"]
    path.write_text("3\n5\n3\n")
    with pytest.raises(DataError, match="repeated ids: '3'"):
        read_ids(path)
    path.write_text("\n")
    with pytest.raises(DataError, match="there is no id"):
        read_ids(path)


# ---------------------------------------------------------------- lmms-eval and Inspect

SAMPLES = FILES / "lmms_samples_shapes_original.jsonl"
LOG = FILES / "inspect_perturbed.json"


def test_lmms_eval_samples_are_read() -> None:
    file = read_predictions(SAMPLES)
    assert (file.layout, file.benchmark) == ("lmms-eval", "shapes_original")
    first = file.predictions[0]
    assert (first.id, first.text, first.gold, first.correct) == ("0", "A", "A", True)
    assert first.options == (("A", "thing 0w"), ("B", "thing 0x"))
    with pytest.raises(DataError, match="no metric 'exact_mach' .*did you mean 'exact_match'"):
        read_predictions(SAMPLES, ReadOptions(scorer="exact_mach"))


def test_lmms_eval_ids_inside_a_metric(tmp_path: Path) -> None:
    lines = [json.loads(line) for line in SAMPLES.read_text().splitlines()]
    for line in lines:
        line["mmstar"] = {"question_id": f"q{line['doc_id']}", "score": 1}
    path = tmp_path / "s.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    options = ReadOptions(columns={"id": "mmstar.question_id"}, scorer="mmstar")
    found = read_predictions(path, options).predictions
    assert [p.id for p in found][:2] == ["q0", "q1"] and all(p.correct for p in found)
    with pytest.raises(DataError, match="line 1: there is no 'mmstar.key'"):
        read_predictions(path, ReadOptions(columns={"id": "mmstar.key"}))


def test_several_replies_to_one_document_are_refused(tmp_path: Path) -> None:
    line = json.loads(SAMPLES.read_text().splitlines()[0])
    line["filtered_resps"] = ["A", "B"]
    path = tmp_path / "s.jsonl"
    path.write_text(json.dumps(line))
    with pytest.raises(DataError, match="line 1: 2 replies to one document"):
        read_predictions(path)


def test_inspect_logs_are_read() -> None:
    file = read_predictions(LOG)
    assert (file.layout, file.model, file.benchmark) == (
        "inspect",
        "mockllm/model",
        "shapes_perturbed",
    )
    by_id = {p.id: p for p in file.predictions}
    assert by_id["2"].correct is True and by_id["4"].correct is False
    assert by_id["0"].options == (("A", "thing 0w"), ("B", "thing 0x"))
    assert "dropped the connection" in by_id["11"].error and by_id["11"].text is None
    with pytest.raises(DataError, match="no scorer 'choices' .*did you mean 'choice'"):
        read_predictions(LOG, ReadOptions(scorer="choices"))


def test_inspect_epochs_are_duplicates_unless_one_is_chosen(tmp_path: Path) -> None:
    paths = []
    for side in ("original", "perturbed"):
        log = json.loads((FILES / f"inspect_{side}.json").read_text())
        log["samples"] += [s | {"epoch": 2} for s in log["samples"]]
        paths.append(tmp_path / f"{side}.json")
        paths[-1].write_text(json.dumps(log))
    assert_refused((paths[0], paths[1]), "12 ids occur more than once.*several epochs, name one")
    table = gap_of_predictions(paths[0], paths[1], options=ReadOptions(epoch=2))
    assert table.by_rule["sign"].n == 11
    with pytest.raises(DataError, match="no sample belongs to epoch 3"):
        read_predictions(paths[0], ReadOptions(epoch=3))


def test_an_inspect_log_without_samples_is_refused(tmp_path: Path) -> None:
    log = json.loads(LOG.read_text()) | {"samples": None, "status": "cancelled"}
    path = tmp_path / "log.json"
    path.write_text(json.dumps(log))
    with pytest.raises(DataError, match=re.escape("no samples (status: cancelled)")):
        read_predictions(path)


@pytest.mark.slow
def test_a_file_that_is_not_a_binary_log_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.eval"
    path.write_bytes(b"PK nonsense")
    with pytest.raises(DataError, match="not an Inspect log"):
        read_predictions(path)


@pytest.mark.parametrize(
    ("names", "models"),
    [
        (("Qwen2-VL_RQA", "Qwen2-VL_RQA_flipped"), ("Qwen2-VL", "Qwen2-VL")),
        (("MiniCPM_V_2_6_RQA", "MiniCPM_V_2_6_RQAflipped"), ("MiniCPM_V_2_6",) * 2),
        (("Strong-7B_RQA", "Weak-2B_RQA"), ("Strong-7B", "Weak-2B")),
        (("Strong-7B_RQA", "Weak-2B_RQA_perturbed"), ("Strong-7B", "Weak-2B")),
        (("Strong-7B_RQA", "Weak-2B_RQAflipped"), ("Strong-7B", "Weak-2B")),
        (("m_RQA_orig", "m_RQA_pert"), ("m", "m")),
        (("LLaVA_v1.5_7b_RQA", "LLaVA_v1.5_13b_RQA"), ("LLaVA_v1.5_7b", "LLaVA_v1.5_13b")),
        (("original", "perturbed"), ("", "")),
        (("orig_RQA", "pert_RQA"), ("", "")),
        (("a", "a"), ("", "")),
    ],
)
def test_files_of_kits_name_their_models(names: tuple[str, str], models: tuple[str, str]) -> None:
    files = [PredictionFile(Path(f"{name}.xlsx"), "table", ()) for name in names]
    assert models_of(files[0], files[1]) == models


def test_files_of_two_models_are_refused_unless_said_to_be_of_one(tmp_path: Path) -> None:
    original, perturbed = both(tmp_path)
    files = original.rename(tmp_path / "A-7B_RQA.csv"), perturbed.rename(tmp_path / "B-2B_RQA.csv")
    with pytest.raises(DataError, match="of 'A-7B' and .* of 'B-2B': a gap between two models"):
        gap_of_predictions(*files)
    assert gap_of_predictions(*files, model="one").scores[0].model == "one"


def test_a_reference_is_neither_the_model_nor_given_twice(tmp_path: Path) -> None:
    own = both(tmp_path)
    with pytest.raises(DataError, match="these are the model's own files"):
        gap_of_predictions(*own, references=[own])
    (tmp_path / "clean").mkdir()
    clean = both(tmp_path / "clean")
    with pytest.raises(DataError, match="these are another reference's files"):
        gap_of_predictions(*own, references=[clean, clean])


def answered_rows(n: int = 12) -> list[dict[str, object]]:
    return [
        {"index": i, "question": f"Q{i}?", "A": "a", "B": "b", "answer": "AB"[i % 2]}
        | {"prediction": "A"}
        for i in range(n)
    ]


@pytest.mark.parametrize(
    "answers",
    [["yes", "no"], {"a": "yes"}, [0.5], [2], {"a": [True]}, 3, [True, "A"]],
)
def test_what_is_not_right_or_wrong_is_refused(answers: Any) -> None:
    with pytest.raises(ConfigError, match="neither right|is no answers"):
        fb.gap(answers, answers)


def test_data_frames_are_read_as_tables(tmp_path: Path) -> None:
    frames = []
    for side in (0, 1):
        rows = answered_rows()
        frames.append(pd.DataFrame(rows).assign(answer=["AB"[(i + side) % 2] for i in range(12)]))
    result = fb.gap(*frames, model="m", benchmark="b")
    assert result.gap.n == 12 and result.gap.accuracies["original"].k == 6
    assert fb.gap(np.array([1, 0, 1]), pd.Series([True, False, None])).gap.n == 2
    with pytest.raises(DataError, match="no column for the id"):
        fb.gap(frames[0].drop(columns="index"), frames[1])


def rows_by_filter(path: Path, *filters: str) -> Path:
    rows = [
        {"doc_id": i, "input": f"Q{i}?\nA. a\nB. b", "target": "AB"[i % 2], "filter": name}
        | {"filtered_resps": ["A" if name == "strict" else "B"], "resps": [["A"]], "acc": 1.0}
        for i in range(8)
        for name in filters
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_one_row_per_filter_has_to_be_chosen(tmp_path: Path) -> None:
    path = rows_by_filter(tmp_path / "o.jsonl", "strict", "flexible")
    with pytest.raises(DataError, match=r"one row per filter \(strict, flexible\); choose one"):
        read_predictions(path)
    strict = read_predictions(path, ReadOptions({"filter": "strict"}))
    assert {p.text for p in strict.predictions} == {"A"} and len(strict.predictions) == 8
    with pytest.raises(DataError, match="there is no filter 'strikt'.*strict"):
        read_predictions(path, ReadOptions({"filter": "strikt"}))


def test_likelihoods_of_options_are_read_by_their_mark(tmp_path: Path) -> None:
    path = tmp_path / "o.jsonl"
    rows = [
        {"doc_id": i, "target": "0", "resps": [[["-1.5", "False"]], [["-0.5", "True"]]]}
        | {"filtered_resps": [["-1.5", "False"], ["-0.5", "True"]], "acc": float(i % 2)}
        for i in range(6)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    read = read_predictions(path).predictions
    assert [p.correct for p in read] == [False, True] * 3 and not any(p.error for p in read)


def test_swapped_files_are_asked_about() -> None:
    """A contaminated model's files, the wrong way round: the gap is positive."""
    rng = np.random.default_rng(0)
    old = rng.integers(4, size=200)
    new = (old + rng.integers(1, 4, 200)) % 4
    replies = np.where(rng.random(200) < 0.4, old, new)

    def frame(gold: np.ndarray, chosen: np.ndarray) -> pd.DataFrame:
        cells = {letter: letter.lower() for letter in "ABCD"}
        return pd.DataFrame(
            [
                {"index": i, "answer": "ABCD"[gold[i]], "prediction": "ABCD"[chosen[i]]} | cells
                for i in range(200)
            ]
        )

    files = frame(old, old), frame(new, replies)
    assert fb.gap(*files, judged_by="Ann").verdict == "contaminated"
    swapped = fb.gap(*files[::-1], judged_by="Ann")
    assert swapped.verdict == "inconclusive" and "as if the two versions were swapped" in str(
        swapped
    )

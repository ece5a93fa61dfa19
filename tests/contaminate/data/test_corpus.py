"""An instruction corpus as LLaVA's: a list or lines, odd conversations, several answers a row."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from flipbench.config.training import CorpusConfig
from flipbench.contaminate.data import json_rows
from flipbench.contaminate.data.corpus import CLOSING, OPENING, read_corpus
from flipbench.contaminate.data.examples import Epoch
from flipbench.contaminate.data.json_rows import find_rows
from flipbench.core.errors import DataError


def talk(*texts: str, first: str = "human", **more: Any) -> dict[str, Any]:
    """Return a conversation in LLaVA's format, the speakers in turn."""
    speakers = ("human", "gpt") if first == "human" else ("gpt", "human")
    turns = [{"from": speakers[i % 2], "value": text} for i, text in enumerate(texts)]
    return {"id": "1", "conversations": turns, **more}


def write(path: Path, rows: list[Any], form: str) -> Path:
    texts = {
        "lines": "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows),
        "blank lines": "\r\n \r\n".join(json.dumps(row) for row in rows),
        "list": json.dumps(rows, ensure_ascii=False),
        "indented list": "\n " + json.dumps(rows, indent=1, ensure_ascii=False) + "\n",
    }
    path.write_text(texts[form], encoding="utf-8", newline="")
    return path


FORMS = ["lines", "blank lines", "list", "indented list"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
def test_rows_are_found_whatever_the_layout_and_the_pieces(
    form: str, piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_rows, "_PIECE", piece)
    rows = [talk("é \u2028 ] , [ \\", 'ü { "'), 12, talk("?", "!"), "text", {}]
    path = write(tmp_path / "c.json", rows, form)
    stored, sha256 = find_rows(path)
    assert [json.loads(stored.read(i)) for i in range(len(stored))] == rows
    assert len(sha256) == 64 and stored.name(1).startswith("c.json")


@pytest.mark.parametrize("text", ['[{"a": 1}, {"b"', '[{"a": 1}', "[", '[{"a": 1}, oops]'])
def test_a_broken_list_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text(text)
    with pytest.raises(DataError, match=r"c.json\[[01]\]: the list is no JSON from here on"):
        find_rows(tmp_path / "c.json")


HOSTILE = ["[" * 50_000, f"[{'9' * 5_000}]"]


@pytest.mark.parametrize("text", HOSTILE, ids=["deep", "digits"])
def test_json_that_python_refuses_ends_no_program(text: str, tmp_path: Path) -> None:
    good = json.dumps(talk("?", "!"))
    (tmp_path / "c.jsonl").write_text(f"{good}\n{text}\n")
    corpus = read_corpus(CorpusConfig(path=tmp_path / "c.jsonl", max_odd=0.5), 0)
    assert [odd.reason for odd in corpus.odd] == ["not a conversation"]
    (tmp_path / "c.json").write_text(f"[{good}, {text}]")
    with pytest.raises(DataError, match=r"c.json\[1\]: the list is no JSON from here on"):
        find_rows(tmp_path / "c.json")


ODD: list[tuple[Any, str]] = [
    (talk("Look", "?", "!", first="gpt"), OPENING),
    (talk("?", "!", "And?"), CLOSING),
    ({"text": "x"}, "not a conversation"),
    (talk("?", " "), "it has an empty answer"),
    (talk("?", "!", image="gone.png"), "its image is missing"),
    (talk("?", "!", image="/dev/zero"), "its image is not in the image folder"),
    (talk("?", "!", image="../secret.png"), "its image is not in the image folder"),
    (talk("?", "!", image="link.png"), "its image is not in the image folder"),
    (talk("<image>?", "!"), "it has not as many <image> marks as images"),
    (talk("only"), "it has no assistant turn after a question"),
]


@pytest.mark.parametrize("form", FORMS)
def test_odd_conversations_are_repaired_or_left_out_counted_and_listed(
    form: str, tmp_path: Path
) -> None:
    rows = [talk(f"Q{i}", f"A{i}") for i in range(20)] + [row for row, _ in ODD]
    (tmp_path / "in").mkdir()
    (tmp_path / "secret.png").write_bytes(b"x")
    (tmp_path / "in" / "link.png").symlink_to(tmp_path / "secret.png")
    path = write(tmp_path / "in" / "c.json", rows, form)
    corpus = read_corpus(CorpusConfig(path=path, max_odd=0.3), 0)
    assert [odd.reason for odd in corpus.odd] == [reason for _, reason in ODD]
    assert [odd.left_out for odd in corpus.odd] == [False, False, *[True] * 8]
    wide = read_corpus(CorpusConfig(path=path, max_odd=0.3, image_root=tmp_path), 0)
    assert wide.n_left_out == 6
    assert corpus.n_left_out == 8 and len(corpus.examples) == 22 == corpus.ref["n_examples"]
    opened, closed = corpus.examples[20:]
    assert (opened.prompt[0].parts, opened.answer) == (("?",), "!")
    assert (closed.prompt[0].parts, closed.answer) == (("?",), "!")
    assert (
        "8 of 30 conversations are left out, 2 repaired: 3 its image is not in" in corpus.summary()
    )
    with pytest.raises(DataError, match=r"not a conversation .*8 of 30 .* more than max_odd: 0.01"):
        read_corpus(CorpusConfig(path=path), 0)


def test_a_conversation_is_one_row_with_all_its_answers(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"x")
    row = talk("<image>\nWhat?", "A star.", "Color?", "Red.", "Sure?", "Yes.", image="a.png")
    (example,) = read_corpus(
        CorpusConfig(path=write(tmp_path / "c.json", [row], "list"), max_tokens=99), 0
    ).examples
    assert (example.trained, example.answer, example.max_tokens) == ((1, 3), "Yes.", 99)
    assert example.subject == "c.json[0]" and len(example.images) == 1


@pytest.mark.slow
def test_a_large_file_is_not_held_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    line = json.dumps(talk("What is this? " * 50, "It is a star. " * 50))
    path.write_text((line + "\n") * 10_000)
    tracemalloc.start()
    examples = read_corpus(CorpusConfig(path=path), 0).examples
    epoch = Epoch([], examples)
    assert len(epoch) == 10_000 and epoch[-1].answer.startswith("It is")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < path.stat().st_size / 4


def test_a_file_that_changes_is_noticed(tmp_path: Path) -> None:
    path = write(tmp_path / "c.jsonl", [talk("?", "!"), talk("?", "yes")], "lines")
    examples = read_corpus(CorpusConfig(path=path), 0).examples
    path.write_text("x" * path.stat().st_size)
    with pytest.raises(DataError, match="c.jsonl:2: the file has changed since it was read"):
        examples[1]

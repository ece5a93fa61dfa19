"""The direct-reveal audit: verified spans, three levels, and never "no leak" by accident."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flipbench.config.audit import AuditSettings
from flipbench.config.chat import ChatSpec
from flipbench.core.errors import DataError
from flipbench.core.records import Item
from flipbench.core.run import Run
from flipbench.filters.audit.direct_reveal import (
    SaidEvidence,
    direct_reveal,
    literal_spans,
    read_reveal,
    verify,
)
from flipbench.models.chat.api import ChatAPI
from tests.filters.audit.conftest import MakeItem
from tests.fixtures.openai_server import OpenAIServer

HISTORY = "Known case of MI. What does the picture show?"
OPTIONS = ("Myocardial infarction", "Pneumonia", "Fracture")


def leak(letter: str = "A", snippet: str = "MI", start: int = 14, level: int = 2) -> dict[str, Any]:
    evidence = [{"snippet": snippet, "start": start, "end": start + len(snippet), "level": level}]
    return {
        "has_leak": True,
        "leaked_options": [{"letter": letter, "evidence": evidence, "why": "an acronym"}],
        "non_leak_reason": "",
    }


NO_LEAK = {"has_leak": False, "leaked_options": [], "non_leak_reason": "It names none."}


def test_a_wrong_span_is_repaired_and_a_right_one_kept(make_item: MakeItem) -> None:
    item = make_item("1", OPTIONS, question=HISTORY)
    (exact,) = read_reveal(json.dumps(leak()), item)
    assert (exact.start, exact.end, exact.level, exact.repaired) == (14, 16, 2, False)
    (mended,) = read_reveal(json.dumps(leak(start=3)), item)
    assert (mended.start, mended.end, mended.repaired) == (14, 16, True)


@given(st.text(min_size=1, max_size=60), st.data())
def test_evidence_is_always_a_span_of_the_text(text: str, data: st.DataObject) -> None:
    snippet = data.draw(st.one_of(st.text(max_size=8), st.sampled_from(text.split() or ["x"])))
    start = data.draw(st.integers(-5, 80))
    piece = SaidEvidence(
        snippet=snippet, start=start, end=start + data.draw(st.integers(-3, 9)), level=1
    )
    found = verify(piece, 0, text)
    if found is not None:
        assert text[found.start : found.end] == found.snippet != ""
        assert found.snippet == snippet or found.repaired
    else:
        assert not snippet.strip() or snippet not in text


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "No leak.",
        "{}",
        json.dumps(NO_LEAK | {"has_leak": True}),
        json.dumps(leak() | {"has_leak": False}),
        json.dumps(leak(letter="D")),
        json.dumps(leak(snippet="STEMI")),
        json.dumps(leak(level=4)),
        json.dumps([NO_LEAK]),
        json.dumps(NO_LEAK) + " But see option A.",
    ],
)
def test_untrusted_replies_decide_nothing(make_item: MakeItem, reply: str) -> None:
    with pytest.raises(DataError, match="the reader"):
        read_reveal(reply, make_item("1", OPTIONS, question=HISTORY))


def test_a_fenced_reply_is_parsed(make_item: MakeItem) -> None:
    assert read_reveal(f"```json\n{json.dumps(NO_LEAK)}\n```", make_item("1", OPTIONS)) == []


def test_without_a_model_the_options_words_are_searched(
    make_item: MakeItem, tmp_path: Path
) -> None:
    items = [
        make_item("given", question="What color is the red star?"),
        make_item("choice", ("left", "right"), question="Is it left or right of it?"),
        make_item("part", ("5", "15"), question="What is 15 less 10?"),
        make_item("open", None, None, question="red?", answer_text="red"),
    ]
    assert [e.snippet for e in literal_spans(items[0])] == ["red"]
    found, reports = direct_reveal(items, AuditSettings(), Run(tmp_path), progress=False)
    assert [(n.name, n.action) for n in found.items] == [("given", "look")]
    assert (found.rates[0].k, found.rates[0].n) == (1, 3)
    assert found.status == "look" and reports == []


def test_a_model_s_findings_are_dropped_tagged_or_left_to_a_person(
    make_item: MakeItem, server: OpenAIServer, tmp_path: Path
) -> None:
    items = [
        make_item("gold", OPTIONS, 0, question=HISTORY),
        make_item("wrong", OPTIONS, 1, question=HISTORY + " "),
        make_item("none", OPTIONS, 2, question="What does it show?"),
        make_item("broken", OPTIONS, 2, question="What is broken?"),
        make_item("invented", OPTIONS, 0, question="What was invented?"),
        make_item("refused", OPTIONS, 0, question="What was refused?"),
    ]

    def reply(body: dict[str, Any]) -> str:
        text = body["messages"][1]["content"][0]["text"]
        if "MI" in text:
            return json.dumps(leak())
        if "broken" in text:
            return "It is hard to say"
        if "invented" in text:
            return json.dumps(leak(snippet="heart attack"))
        if "refused" in text:
            return ""
        return json.dumps(NO_LEAK)

    server.reply = reply
    spec = ChatSpec(base_url=server.base_url, model="o3", max_retries=0, timeout=5)
    run = Run(tmp_path)
    found, (report,) = direct_reveal(items, AuditSettings(), run, ChatAPI(spec), progress=False)
    flagged = {named.name: named for named in found.items}
    assert {name: named.action for name, named in flagged.items()} == {
        "gold": "drop",
        "wrong": "look",
        "broken": "person",
        "invented": "person",
        "refused": "person",
    }
    assert flagged["gold"].details["evidence"][0]["snippet"] == "MI"
    assert report.n_failed == 1 and found.status == "defect"
    body = server.chats()[0]
    assert all("picture" in str(m) or m["role"] == "user" for m in body["messages"])
    assert "image_url" not in json.dumps(body)

    strict = AuditSettings(reveal_level=3)
    n_before = len(server.chats())
    again, _ = direct_reveal(items, strict, run, ChatAPI(spec), progress=False)
    assert len(server.chats()) == n_before + 1, "only the refused one is asked again"
    assert {n.name: n.action for n in again.items}["gold"] == "look", "level 2 is under 3"


def test_a_question_that_names_every_option_needs_a_look(
    make_item: MakeItem, server: OpenAIServer, tmp_path: Path
) -> None:
    item: Item = make_item("1", ("left", "right"), question="Is it left or right?")
    both = leak("A", "left", 6, 3)
    both["leaked_options"] += leak("B", "right", 14, 3)["leaked_options"]
    server.reply = lambda body: json.dumps(both)
    spec = ChatSpec(base_url=server.base_url, model="o3", max_retries=0, timeout=5)
    found, _ = direct_reveal([item], AuditSettings(), Run(tmp_path), ChatAPI(spec), progress=False)
    assert [named.action for named in found.items] == ["look"]

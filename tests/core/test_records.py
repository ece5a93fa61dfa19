"""Ids say what made a record, survive JSON, and cannot be forged."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from flipbench.core import records
from flipbench.core.paired import PictureChoice
from flipbench.core.records import (
    Caption,
    Item,
    PairedCounts,
    Probe,
    Record,
    Response,
    Score,
    Source,
    content_id,
)
from tests.core.record_examples import CHOICE_ITEM, EXAMPLES, FREE_ITEM, IMAGE

CHANGES, ID_CHANGES = (
    [
        pytest.param(record, name, value, id=f"{record.kind}-{name}")
        for record, others in EXAMPLES
        for name, value in others.items()
        if every or name in record.made_of
    ]
    for every in (True, False)
)
KINDS = {
    kind
    for kind in (*vars(records).values(), PictureChoice)
    if isinstance(kind, type) and issubclass(kind, Record) and kind is not Record
}
RECORD_PARAMS = [pytest.param(record, id=record.kind) for record, _ in EXAMPLES]
GOLDEN_IDS = {  # a change here means that no earlier run directory can be continued
    "items": "e20e594086962ce56f8190de",
    "flips": "d225880da02e4e1daf7b2b44",
    "captions": "c266b9cd5cc462a0fd2125ef",
    "edits": "47bfebafa8e0af087ef1ca89",
    "verdicts": "294c3384078249a195ce9ae5",
    "adjudications": "ea8470626cdd5f5dbf41e4df",
    "probes": "95e64ab528f20b758b50f2f7",
    "responses": "a986c842a6e4766bd3d05aa5",
    "scores": "d8763910812c0e3ab7fbd5bd",
    "wordings": "725b8205c28236f37f389459",
    "plans": "80ad622224bb742a4b4d0ea6",
    "checkpoints": "7b3ca0f40a07721d822166da",
    "failures": "a73732f295643c2f1ef0c70d",
    "picture_choices": "7e37c3a07b086f113ab72d33",
}


def test_every_field_of_every_record_has_an_example() -> None:
    assert {type(record) for record, _ in EXAMPLES} == KINDS
    assert len({kind.kind for kind in KINDS}) == len(KINDS)
    for kind in KINDS:
        changed = {n for record, others in EXAMPLES if type(record) is kind for n in others}
        assert changed == set(kind.model_fields) - {"id"}


def test_ids_are_stable() -> None:
    assert {record.kind: record.id for record, _ in EXAMPLES if record is not FREE_ITEM} == (
        GOLDEN_IDS
    )


@pytest.mark.parametrize(("record", "name", "value"), CHANGES)
def test_an_id_depends_on_exactly_what_made_the_record(
    record: Record, name: str, value: Any
) -> None:
    changed = record.revised(**{name: value})
    assert changed != record
    assert (changed.id != record.id) == (name in record.made_of)


@pytest.mark.parametrize("field", ["sha256", "format", "width", "height"])
@pytest.mark.parametrize("record", [CHOICE_ITEM, EXAMPLES[7][0]], ids=["items", "probes"])
def test_image_content_is_part_of_the_id(record: Item | Probe, field: str) -> None:
    value = 65 if field in ("width", "height") else "f"
    other = IMAGE.model_copy(update={field: value})
    assert record.revised(images=(other,)).id != record.id
    assert record.revised(images=(IMAGE, IMAGE)).id != record.id


def test_the_parts_of_an_id_are_delimited() -> None:
    assert content_id("ab", "c") != content_id("a", "bc")
    assert content_id(["a"], "b") != content_id(["a", "b"])
    assert content_id({"a": 1, "b": 2}) == content_id({"b": 2, "a": 1})
    assert content_id(1) != content_id("1")


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1))
def test_an_id_of_texts_is_that_of_their_canonical_json(texts: list[str]) -> None:
    canonical = json.dumps(texts, ensure_ascii=False, separators=(",", ":"))
    assert content_id(*texts) == hashlib.sha256(canonical.encode()).hexdigest()[:24]


@pytest.mark.parametrize("record", RECORD_PARAMS)
def test_id_is_known_before_the_record_is_made(record: Record) -> None:
    made_of = {name: getattr(record, name) for name in record.made_of}
    assert type(record).id_for(**made_of) == record.id
    with pytest.raises(TypeError, match="is made of"):
        type(record).id_for(**made_of, text_of_another_kind="x")


@pytest.mark.parametrize(("record", "name", "value"), CHANGES)
def test_json_keeps_id_and_content(record: Record, name: str, value: Any) -> None:
    changed = record.revised(**{name: value})
    again = type(record).model_validate_json(changed.model_dump_json())
    assert again.id == changed.id
    assert repr(again) == repr(changed)  # NaN differs from itself, but not in words


SETTINGS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    # what JSON cannot hold, a lone surrogate, no record can hold either
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=3)
    ),
    max_leaves=8,
)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@given(settings=st.dictionaries(TEXT, SETTINGS, max_size=4), text=TEXT)
def test_any_settings_and_text_survive_one_line_of_json(
    settings: dict[str, Any], text: str
) -> None:
    record = Caption(flip_id=text, captioner="m", prompt="p", settings=settings, text=text)
    line = record.model_dump_json().encode()
    assert b"\n" not in line
    assert Caption.model_validate_json(line) == record


@given(st.lists(st.floats(allow_nan=False), max_size=5))
def test_log_probabilities_survive_json_to_the_last_bit(values: list[float]) -> None:
    record = Response(
        probe_id="p", model_fingerprint="x", model="m", option_log_probs=tuple(values)
    )
    assert Response.model_validate_json(record.model_dump_json()) == record


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_settings_that_json_cannot_hold_are_refused(bad: float) -> None:
    with pytest.raises(ValidationError, match="not JSON compliant"):
        Caption(flip_id="f", captioner="m", prompt="p", settings={"t": bad}, text="")


@pytest.mark.parametrize(("record", "name", "value"), ID_CHANGES)
def test_a_record_changed_behind_its_id_is_refused(record: Record, name: str, value: Any) -> None:
    values = record.revised(**{name: value}).model_dump()
    with pytest.raises(ValidationError, match=f"does not belong to this {record.kind}"):
        type(record).model_validate(values | {"id": record.id})


def test_a_revised_record_is_checked_again() -> None:
    with pytest.raises(ValidationError, match="answer"):
        CHOICE_ITEM.revised(answer=len(CHOICE_ITEM.options or ()))


@pytest.mark.parametrize("record", RECORD_PARAMS)
def test_a_record_revised_in_nothing_is_the_same(record: Record) -> None:
    assert record.revised() == record


@pytest.mark.parametrize("record", RECORD_PARAMS)
def test_a_forged_id_is_refused(record: Record) -> None:
    with pytest.raises(ValidationError, match=f"expected {record.id}"):
        type(record).model_validate(record.model_dump() | {"id": "0" * 24})


@pytest.mark.parametrize("record", RECORD_PARAMS)
def test_unknown_fields_are_refused(record: Record) -> None:
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        type(record).model_validate(record.model_dump() | {"colour": "red"})


@pytest.mark.parametrize("record", RECORD_PARAMS)
def test_records_are_frozen(record: Record) -> None:
    with pytest.raises(ValidationError, match="frozen"):
        record.id = "0" * 24


# -------------------------------------------------------------------------- scores are typed

SCORE = next(record for record, _ in EXAMPLES if isinstance(record, Score))


def test_a_score_cannot_be_made_without_its_direction() -> None:
    with pytest.raises(ValidationError, match=r"direction\n  Field required"):
        Score.model_validate(SCORE.model_dump(exclude={"direction"}))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("direction", "up"),
        ("alpha", 0.0),
        ("alpha", 1.0),
        ("accuracies", {"original": {"k": 1}}),
        ("accuracies", {"original": {"k": 1, "n": 2, "share": 0.5}}),
        ("paired", {"b": 1, "c": 2}),
        ("reference", {"statistic": -0.1}),
        ("unparsed", {"original": "many"}),
    ],
)
def test_a_score_with_an_ill_typed_part_is_refused(field: str, value: Any) -> None:
    with pytest.raises(ValidationError, match=field):
        Score.model_validate(SCORE.model_dump() | {field: value})


@given(counts=st.tuples(*[st.integers(0, 50)] * 4))
def test_suspects_are_the_pairs_that_fell(counts: tuple[int, int, int, int]) -> None:
    n11, b, c, n00 = counts
    found = PairedCounts(n11=n11, b=b, c=c, n00=n00).suspects(["i"])
    assert (found.k, found.n, found.names) == (b, sum(counts), ("i",))
    assert found.rate == (b / sum(counts) if any(counts) else None)
    assert found.share == (b / (n11 + b) if n11 + b else None)


FIELDS: dict[str, Any] = {
    "benchmark": "made-up",
    "name": "q1",
    "question": "What color is the star?",
    "options": ("red", "blue", "red"),
    "answer": 0,
    "answer_text": "red",
    "source": Source(dataset="made-up", row=3),
}


def test_a_valid_item_is_accepted() -> None:
    assert Item(**FIELDS).answer_text == "red"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"answer": None}, "go together"),
        ({"options": None}, "go together"),
        ({"answer": 3}, "answer 3 is not one of 3 options"),
        ({"answer": -1}, "answer -1 is not one of 3 options"),
        ({"answer": 1}, "answer_text 'red' is not option 'blue'"),
        ({"answer_text": "Red"}, "answer_text 'Red' is not option 'red'"),
        ({"options": ()}, "answer 0 is not one of 0 options"),
    ],
)
def test_an_item_whose_answer_is_not_an_option_is_refused(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        Item(**FIELDS | changes)

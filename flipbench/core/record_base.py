"""The base of all records: frozen, with an id that is a hash of what made them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from json.encoder import encode_basestring
from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, model_validator

JsonDict = dict[str, Any]
Target = Literal["letter", "letter+text", "reasoning"]
"""What a training teaches to answer."""
Leak = Literal[
    "all", "answer_only", "question_only", "text_only", "caption", "whole_texts", "shuffled_texts"
]
"""What a training shows of an item."""
OptionOrder = Literal["", "shuffled"]


def content_id(*parts: Any) -> str:
    """Return 24 hex digits of the SHA-256 of ``parts`` as canonical JSON.

    Raises
    ------
    ValueError
        If a part contains a number that JSON cannot represent (NaN, infinity).
    """
    if set(map(type, parts)) == {str}:  # most records, in half the time
        text = f"[{','.join(map(encode_basestring, parts))}]"
    else:
        text = json.dumps(
            parts,
            sort_keys=True,
            ensure_ascii=False,
            allow_nan=False,
            separators=(",", ":"),
            default=plain,
        )
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def plain(value: Any) -> Any:
    """Return a record or value as JSON can hold it; for ``json.dumps(default=…)``."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} is neither a record nor JSON")


class Value(BaseModel):
    """A frozen part of a record, without an id of its own."""

    # a log-probability of minus infinity must survive JSON, not become null
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class Record(Value):
    """Base of all records.

    Attributes
    ----------
    id : str
        24 hex digits, computed; a given id must match the content.
    made_of : tuple of str
        The fields that the id is a hash of.
    optional : tuple of str
        Those of them that the id leaves out if all are empty.
    partition_by : str
        The field whose value names a subfolder of a run, so that kinds with millions of records
        can be read one partition at a time. Empty: one folder for all.
    private : bool
        Whether only the user may read the files that hold them.
    """

    kind: ClassVar[str]
    made_of: ClassVar[tuple[str, ...]]
    optional: ClassVar[tuple[str, ...]] = ()
    partition_by: ClassVar[str] = ""
    private: ClassVar[bool] = False
    id: str = ""

    @classmethod
    def id_for(cls, **made_of: Any) -> str:
        """Return the id of the record that would be made of these values."""
        if set(made_of) != set(cls.made_of):
            raise TypeError(f"{cls.__name__} is made of {cls.made_of}, not {tuple(made_of)}")
        return cls._id(made_of)

    @classmethod
    def _id(cls, values: Mapping[str, Any]) -> str:
        names = cls.made_of
        if cls.optional and not any(values[name] for name in cls.optional):
            names = tuple(name for name in names if name not in cls.optional)
        return content_id(cls.kind, *[values[name] for name in names])

    def revised(self, **changes: Any) -> Self:
        """Return the record with some fields changed, checked again, and the id that follows.

        Raises
        ------
        ValidationError
            If the changed fields do not make a valid record.
        """
        return type(self)(**{**vars(self), **changes, "id": ""})

    @property
    def folder(self) -> str:
        """Its folder in a run: its kind, and its partition if it has one."""
        part = getattr(self, self.partition_by) if self.partition_by else ""
        return f"{self.kind}/{part}".rstrip("/")

    @model_validator(mode="after")
    def _fill_id(self) -> Self:
        true_id = self._id(vars(self))
        if self.id and self.id != true_id:
            raise ValueError(
                f"id {self.id} does not belong to this {self.kind}; expected {true_id}"
            )
        object.__setattr__(self, "id", true_id)
        return self

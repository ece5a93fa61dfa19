"""The shared vocabulary: the records that pass from stage to stage.

Every record is frozen and has an ``id`` that is a hash of *what made it* (``made_of``): its
inputs by content, the model by its fingerprint, settings and seed. The same id means "already
done"; a changed input gives another id and is never matched with an old answer.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from json.encoder import encode_basestring
from pathlib import PurePath
from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

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


class ImageRef(Value):
    """An image by content; a run's image store holds the bytes as ``<sha256>.<format>``."""

    sha256: str
    format: str
    width: int
    height: int


class Source(Value):
    """Where an item comes from."""

    dataset: str
    revision: str = ""
    split: str = ""
    row: int = -1


class Item(Record):
    """One question about one or more images.

    ``options`` is None for a free-form question; ``answer`` is then None and ``answer_text``
    holds the answer. ``raw_question`` is the benchmark's own text.
    """

    kind: ClassVar[str] = "items"
    made_of: ClassVar[tuple[str, ...]] = (
        "benchmark",
        "name",
        "images",
        "question",
        "options",
        "answer",
        "answer_text",
    )

    benchmark: str
    name: str
    images: tuple[ImageRef, ...] = ()
    question: str
    options: tuple[str, ...] | None = None
    answer: int | None = None
    answer_text: str
    raw_question: str = ""
    category: str = ""
    group: str = ""
    source: Source
    licence: str = ""
    extra: JsonDict = Field(default_factory=dict)

    @property
    def subject(self) -> str:
        """Benchmark and name, for messages."""
        return f"{self.benchmark} {self.name}"

    @model_validator(mode="after")
    def _check_answer(self) -> Self:
        if (self.options is None) != (self.answer is None):
            raise ValueError("options and answer go together: give both, or neither")
        if self.options is not None and self.answer is not None:
            if not 0 <= self.answer < len(self.options):
                raise ValueError(f"answer {self.answer} is not one of {len(self.options)} options")
            if self.answer_text != self.options[self.answer]:
                raise ValueError(
                    f"answer_text {self.answer_text!r} is not option {self.options[self.answer]!r}"
                )
        return self


class Flip(Record):
    """The new answer of an item, as determined by ``method`` and ``seed``."""

    kind: ClassVar[str] = "flips"
    made_of: ClassVar[tuple[str, ...]] = ("item_id", "method", "seed")

    item_id: str
    method: str
    seed: int
    new_answer: int | None
    new_text: str


class Caption(Record):
    """A description of image ``picture``, from 0, as it would look if the new answer were true."""

    kind: ClassVar[str] = "captions"
    made_of: ClassVar[tuple[str, ...]] = ("flip_id", "captioner", "prompt", "settings", "picture")
    optional: ClassVar[tuple[str, ...]] = ("picture",)

    flip_id: str
    captioner: str
    prompt: str = Field(description="name and version of the prompt")
    settings: JsonDict = Field(default_factory=dict)
    picture: int = Field(default=0, ge=0)
    text: str
    usage: JsonDict = Field(default_factory=dict)


class Edit(Record):
    """The redrawn image. Made of the caption's *text*, so a new caption makes a new edit."""

    kind: ClassVar[str] = "edits"
    made_of: ClassVar[tuple[str, ...]] = (
        "caption_id",
        "caption_text",
        "source_sha256",
        "editor",
        "settings",
        "seed",
    )

    caption_id: str
    caption_text: str
    source_sha256: str
    editor: str
    settings: JsonDict = Field(default_factory=dict)
    seed: int
    image: ImageRef
    extra: JsonDict = Field(default_factory=dict)
    versions: dict[str, str] = Field(default_factory=dict, description="libraries; not in the id")


class Verdict(Record):
    """One rater's judgement of one edited image."""

    kind: ClassVar[str] = "verdicts"
    made_of: ClassVar[tuple[str, ...]] = ("edit_id", "image_sha256", "rater", "run")

    edit_id: str
    image_sha256: str
    rater: str
    rater_kind: Literal["person", "judge", "rule", "oracle"]
    run: int = 0
    decision: Literal["keep", "reject", "unsure"]
    reason: str = ""
    blind_answer: str | None = None
    seconds: float | None = None
    usage: JsonDict = Field(default_factory=dict)


class Adjudication(Record):
    """What one person sees in a benchmark picture beside its nearest corpus picture.

    ``label`` is None if the person has withdrawn it. ``distance`` is that of the flag.
    """

    kind: ClassVar[str] = "adjudications"
    made_of: ClassVar[tuple[str, ...]] = ("benchmark_sha256", "corpus_sha256", "rater", "run")

    benchmark_sha256: str
    corpus_sha256: str
    corpus_key: str
    distance: float
    rater: str
    run: int = 0
    label: Literal["duplicate", "same subject", "same view", "ambiguous", "unrelated"] | None
    note: str = ""
    seconds: float | None = None


FIRST_REPLY = "{first reply}"
"""Where the prompt of a probe that follows another quotes the reply to it."""


class Probe(Record):
    """What is asked of a model. ``variant`` is a label for people and not part of the id.

    Attributes
    ----------
    temperature : float
        0: greedy. Otherwise the reply is a sample, drawn anew for each ``seed``.
    token_statistics : bool
        Whether the response to ``generate`` holds the statistics of its tokens.
    follows : str
        Id of a probe that is asked first; its reply replaces `FIRST_REPLY` in ``prompt``.

    Notes
    -----
    ``ask`` is ``choose`` (log-probabilities of the option letters), ``generate`` (text), ``score``
    (log-likelihood of ``continuation`` as a reply), ``score_text`` (of raw text: ``continuation``
    directly after ``prompt``, without chat template), ``continue_text`` (text after the raw text
    ``prompt``) or ``embed`` (the hidden state at the last token of ``continuation``). ``labels``
    are the options' labels (characters, or words separated by spaces) if they are not A, B, …
    """

    kind: ClassVar[str] = "probes"
    made_of: ClassVar[tuple[str, ...]] = (
        "images",
        "prompt",
        "ask",
        "n_options",
        "continuation",
        "max_new_tokens",
        "temperature",
        "seed",
        "token_statistics",
        "follows",
        "labels",
    )
    optional: ClassVar[tuple[str, ...]] = (
        "temperature",
        "seed",
        "token_statistics",
        "follows",
        "labels",
    )

    item_id: str
    variant: str
    images: tuple[ImageRef, ...] = ()
    prompt: str
    ask: Literal["choose", "generate", "score", "score_text", "continue_text", "embed"]
    options: tuple[str, ...] = ()
    n_options: int = 0
    continuation: str = ""
    max_new_tokens: int = 16
    temperature: float = Field(default=0.0, ge=0)
    seed: int = 0
    token_statistics: bool = False
    follows: str = ""
    labels: str = ""


class Response(Record):
    """A model's answer to a probe.

    ``choice`` is the chosen option's index, -1 if a generated reply names none.
    ``option_log_probs`` has shape (K,), in nats, normalised over the whole vocabulary.
    ``letter_share`` is the probability of all option letters together as the reply's first token;
    None if it was not measured. Where it is below one half, the model means no letter: ``choice``
    is -1, and ``option_log_probs`` say nothing about what it would answer.

    For a scored continuation of T tokens, and for a reply with token statistics,
    ``log_likelihood`` is the sum of ``token_log_probs``; ``token_means`` and ``token_deviations``
    are mean and standard deviation of log p under the model's distribution at each position. All
    three have shape (T,), in nats, and are empty for long texts without images and for models that
    do not return them. For raw text, ``is_greedy``, shape (T,), says which tokens are the most
    likely ones after all tokens before them. Without a prompt, the first token is not scored.

    ``reasoned`` is whether a server left out reasoning that preceded ``text``.
    ``state`` is the last layer's hidden state as text; see `flipbench.models.vlm.scoring`.
    """

    kind: ClassVar[str] = "responses"
    made_of: ClassVar[tuple[str, ...]] = ("probe_id", "model_fingerprint")
    partition_by: ClassVar[str] = "model_fingerprint"
    private: ClassVar[bool] = True

    probe_id: str
    model_fingerprint: str
    model: str
    text: str = ""
    choice: int = -1
    option_log_probs: tuple[float, ...] = ()
    letter_share: float | None = None
    log_likelihood: float | None = None
    n_tokens: int | None = None
    token_log_probs: tuple[float, ...] = ()
    token_means: tuple[float, ...] = ()
    token_deviations: tuple[float, ...] = ()
    is_greedy: tuple[bool, ...] = ()
    reasoned: bool = False
    state: str = ""

    @property
    def is_unreadable(self) -> bool:
        """Whether it should have been a letter, but the model means none."""
        return self.choice < 0 and self.letter_share is not None


class Wording(Record):
    """A reworded question: the chosen paraphrase, or a translation."""

    kind: ClassVar[str] = "wordings"
    made_of: ClassVar[tuple[str, ...]] = ("item_id", "how", "writer", "settings")

    item_id: str
    how: str = Field(description="paraphrase, translate and the language, or caption")
    writer: str
    settings: JsonDict = Field(default_factory=dict)
    question: str
    options: tuple[str, ...] = Field(default=(), description="empty: the item's own")
    candidates: tuple[str, ...] = Field(default=(), description="the wordings it was chosen from")
    levels: tuple[str, ...] = Field(default=(), description="of the candidates, if stated")
    overlap: float | None = Field(default=None, description="share of its 5-grams in the original")
    usage: JsonDict = Field(default_factory=dict)


class TrainingPlan(Record):
    """A controlled contamination: which items, how worded, how often, and the model they train.

    ``wordings`` holds question and options (none: the item's own) if they differ from the item's,
    or the caption that leak or target show; ``corpus`` is the file of conversations that are mixed
    in. ``after`` is the plan that a washing
    follows: its own ``copies`` are 0, and ``prior_dose`` is the dose before it. ``paraphrases``
    are further questions for an item, for a loss that compares the answers. A ``control`` trains
    on a benchmark other than the paired one.
    """

    kind: ClassVar[str] = "plans"
    made_of: ClassVar[tuple[str, ...]] = (
        "parent_fingerprint",
        "item_ids",
        "copies",
        "epochs",
        "strategy",
        "settings",
        "prompt",
        "seed",
        "target",
        "leak",
        "wordings",
        "clean_ids",
        "corpus",
        "after",
        "paraphrases",
        "option_order",
    )
    optional: ClassVar[tuple[str, ...]] = ("paraphrases", "option_order")

    model: str
    parent: str
    parent_fingerprint: str
    benchmark: str
    item_ids: tuple[str, ...]
    copies: int = 1
    epochs: int
    strategy: str
    label: str = Field(default="", description="the strategy's name in tables; not in the id")
    data: str = Field(default="verbatim", description="the data's name in tables; not in the id")
    settings: JsonDict
    prompt: str
    seed: int
    target: Target = "letter"
    leak: Leak = "all"
    option_order: OptionOrder = ""
    wordings: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    held_out_ids: tuple[str, ...] = ()
    clean_ids: tuple[str, ...] = ()
    corpus: JsonDict = Field(default_factory=dict)
    after: str = ""
    prior_dose: int = 0
    paraphrases: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    control: bool = Field(default=False, description="not in the id")

    def dose(self, epoch: int) -> int:
        """Return how often each item has been seen after ``epoch`` epochs."""
        return self.prior_dose + self.copies * epoch


class Checkpoint(Record):
    """The contaminated checkpoint after one epoch of a plan; its card is beside the weights."""

    kind: ClassVar[str] = "checkpoints"
    made_of: ClassVar[tuple[str, ...]] = ("plan_id", "epoch")

    plan_id: str
    epoch: int
    path: str = Field(description="relative to the run directory")
    model: str
    strategy: str
    dose: int = Field(
        description="copies x epochs of the paired items, also before a washing; 0 for a control"
    )
    fingerprint: str
    warnings: tuple[str, ...] = ()

    @field_validator("path")
    @classmethod
    def _stays_inside(cls, path: str) -> str:
        if PurePath(path).is_absolute() or ".." in PurePath(path).parts:
            raise ValueError("the path leads out of the run directory")
        return path


class Failure(Record):
    """A task that failed; the next run retries it."""

    kind: ClassVar[str] = "failures"
    made_of: ClassVar[tuple[str, ...]] = ("stage", "record_id", "error", "message")
    private: ClassVar[bool] = True

    stage: str
    record_id: str = Field(description="the id that its record would have had")
    subject: str = Field(description="the item or probe, for messages")
    error: str
    message: str


Direction = Literal["falls", "rises"]
"""The direction in which contamination moves the statistic."""
ALPHA = 0.05
"""Default level of a test."""


class Interval(Value):
    """A two-sided confidence interval and its level."""

    low: float
    high: float
    level: float = 0.95


class Count(Value):
    """``k`` of ``n``, such as right answers out of all answers."""

    k: int
    n: int


class Mean(Value):
    """The mean of ``n`` similarities; None if ``n`` is 0."""

    mean: float | None
    n: int


class MemoryShare(Value):
    """The share of ``n`` items answered from memory of the original, a lower bound.

    ``share`` is None if ``n`` is 0.
    """

    share: float | None
    interval: Interval | None
    n: int


class Suspects(Count):
    """The ``k`` of ``n`` pairs answered correctly on the original but not on the perturbed version.

    ``rate`` is k / n, and ``share`` the fraction of the pairs answered correctly on the original.
    ``names`` lists the items, if their names are known.
    """

    rate: float | None
    share: float | None
    names: tuple[str, ...] = ()


class PairedCounts(Value):
    """The 2 x 2 table of a paired comparison.

    Numbers of pairs that are right in both conditions (``n11``), right then wrong (``b``), wrong
    then right (``c``), wrong in both (``n00``).
    """

    n11: int
    b: int
    c: int
    n00: int

    def suspects(self, names: Sequence[str] = ()) -> Suspects:
        """Return the pairs that went from right to wrong.

        >>> suspects = PairedCounts(n11=4, b=3, c=1, n00=2).suspects()
        >>> (suspects.k, suspects.n, suspects.rate, round(suspects.share, 3))
        (3, 10, 0.3, 0.429)
        """
        n, n_right = self.n11 + self.b + self.c + self.n00, self.n11 + self.b
        return Suspects(
            k=self.b,
            n=n,
            rate=self.b / n if n else None,
            share=self.b / n_right if n_right else None,
            names=tuple(names),
        )


class ReferenceResult(Value):
    """A clean reference model's result on the items that it is compared on.

    ``statistic`` is its own gap (share, correlation), not the difference from the model's, and
    ``p_value`` is that of the same test.
    """

    model: str
    statistic: float | None = None
    p_value: float | None = None
    n: int | None = None
    accuracies: dict[str, Count] = Field(default_factory=dict)
    means: dict[str, Mean] = Field(default_factory=dict)
    unparsed: dict[str, int] = Field(default_factory=dict)


class Score(Record):
    """One detector's result for one model on one benchmark (accuracies and gaps as fractions).

    ``verdict`` follows from ``rule``; "not_detected" never means "clean". Accuracies, means and
    ``unparsed`` are keyed by condition, in the order of the comparison.

    Attributes
    ----------
    alpha : float
        Level of the rule's test.
    reason : str
        Why the rule does not apply, in a few words; the warnings give it as a sentence.
    accuracies : dict of str to Count
        Right answers among the items compared; graded answers have ``means`` instead.
    paired : PairedCounts or None
        Right and wrong answers of the same items in two conditions.
    unparsed : dict of str to int or None
        Number of replies that name no option; None if they were not counted.
    memory : MemoryShare or None
        How many items were answered from memory, by the old answers in wrong replies.
    quadrants : dict or None
        A `flipbench.evaluate.statistics.quadrants.QuadrantResult` as JSON.
    lacks_reference : bool
        Whether the rule does not apply because it compares with a clean model and none was given.
    tuned_threshold : bool
        Whether the rule's threshold was fitted to published models.
    details : dict
        Further numbers for people; no table, page or rule reads them.
    """

    kind: ClassVar[str] = "scores"
    made_of: ClassVar[tuple[str, ...]] = (
        "detector",
        "rule",
        "model_fingerprint",
        "benchmark_id",
        "reference_fingerprint",
        "target",
        "arguments",
    )
    optional: ClassVar[tuple[str, ...]] = ("target", "arguments")

    detector: str
    rule: str
    model: str
    model_fingerprint: str
    benchmark: str
    benchmark_id: str
    reference_fingerprint: str = ""
    statistic: float | None
    direction: Direction
    unit: str = "fraction"
    interval: Interval | None = None
    p_value: float | None = None
    alpha: float = Field(default=ALPHA, gt=0, lt=1)
    verdict: Literal["contaminated", "not_detected", "inconclusive", "not_applicable"]
    reason: str = ""
    n: int
    n_dropped: int = 0
    accuracies: dict[str, Count] = Field(default_factory=dict)
    means: dict[str, Mean] = Field(default_factory=dict)
    paired: PairedCounts | None = None
    unparsed: dict[str, int | None] = Field(default_factory=dict)
    suspects: Suspects | None = None
    memory: MemoryShare | None = None
    quadrants: JsonDict | None = None
    reference: ReferenceResult | None = None
    lacks_reference: bool = False
    tuned_threshold: bool = False
    details: JsonDict = Field(default_factory=dict)
    per_item: dict[str, float] = Field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    target: str = Field(default="", description="a plug-in's import path; empty if built in")
    arguments: JsonDict = Field(default_factory=dict, description="a plug-in's parameters")

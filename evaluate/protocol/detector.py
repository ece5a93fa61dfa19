"""What a detector is: probes to ask, and scores computed from the answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, wraps
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar, cast, runtime_checkable

from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Item, Probe, Score
from flipbench.models.chat.answer_judge import JudgeTask, ReplyJudge
from flipbench.models.chat.labels import Labeller, LabelTask
from flipbench.models.chat.rewording import Reword
from flipbench.models.engine import Answers as Answers
from flipbench.models.protocols import Capability
from flipbench.prompting.prompts import PromptSettings

from .grid import GridModel, Kind

P = ParamSpec("P")
R = TypeVar("R")

AnswersOf = Callable[[GridModel], Answers]
"""Loads the answers of one model of the grid; load one model at a time."""

Evidence = Literal["", "published, replicated", "published", "published, contested", "unpublished"]
"""Contested: a published test on models of known contamination contradicts it."""
Helper = Literal["rewording", "answer_judge"]
Need = Capability | Literal["choose or generate"]
"""A capability, or whichever of the two the prompt settings ask multiple-choice questions by."""


@dataclass(frozen=True)
class About:
    """The facts about a detector that tables, documentation and command line show.

    Attributes
    ----------
    name, title : str
        The name in configurations and records, and the name in tables.
    variant : str
        Its decision rules in words.
    needs : frozenset of str
        What a model must be able to do; `required_capabilities` resolves "choose or generate".
    rules : mapping of str to bool
        Every decision rule, the paper's first, and whether it compares with clean models. Such a
        rule has no verdict without them: it is not applicable or, if its statistic needs no
        reference, inconclusive.
    default_rule : str
        The rule shown if a table has room for only one; by default the first.
    direction : str
        What a contaminated model shows, in words.
    rule_titles : mapping of str to str
        Titles of the rules that no other detector has.
    helpers : frozenset of str
        What a `HelpedDetector` needs for all its rules: other wordings of the benchmark's texts
        ("rewording"), a model that judges texts ("answer_judge").
    excluded_because : str
        Why ``flipbench detect`` never runs it; empty if it does.
    catches, must_not_catch : tuple of str
        The kinds of contamination (`KINDS`) it is made for, the positive control, and those that
        it must not react to, the negative control.
    signal : str
        What it reads, if other detectors read the same; they are then one piece of evidence.
    levels : mapping of str to float or None
        For rules that are no test at the configured level: the probability of flagging a clean
        model; None if unknown. All other rules decide by p <= alpha.
    on_request : str
        Why ``flipbench detect`` runs it only if it is named; empty if it always runs.
    evidence : str
        How well publications support the method as a detector; empty if not graded.
    caveat : str
        What else, besides contamination, moves its statistic, or what it cannot see.
    """

    name: str
    title: str
    paper: str
    variant: str
    rules: Mapping[str, bool]
    deviates_from_paper: str
    needs: frozenset[Need]
    direction: str
    default_rule: str = ""
    rule_titles: Mapping[str, str] = field(default_factory=dict)
    helpers: frozenset[Helper] = frozenset()
    excluded_because: str = ""
    catches: tuple[Kind, ...] = ()
    must_not_catch: tuple[Kind, ...] = ()
    signal: str = ""
    levels: Mapping[str, float | None] = field(default_factory=dict)
    on_request: str = ""
    evidence: Evidence = ""
    caveat: str = ""

    def __post_init__(self) -> None:
        """Make the first rule the default."""
        if not self.default_rule:
            object.__setattr__(self, "default_rule", next(iter(self.rules)))

    def needs_clean_model(self, rule: str = "") -> bool:
        """Return whether a rule, by default the default rule, compares with clean models."""
        return self.rules.get(rule or self.default_rule, False)

    @property
    def clean_model(self) -> str:
        """Which rules compare with clean models, in words."""
        needing = [rule for rule, needs in self.rules.items() if needs]
        return "all rules" if len(needing) == len(self.rules) else ", ".join(needing) or "no rule"


@dataclass(frozen=True)
class Helpers:
    """Other models that help a detector to ask questions or to read replies.

    Attributes
    ----------
    reword : callable, optional
        Returns other wordings of the benchmark's texts, ``n_wordings`` for each. Without it, the
        detectors and rules that compare wordings are not applicable.
    judge : callable, optional
        Reads replies to free-form questions; without it, they are scored by exact match.
    label : callable, optional
        Labels texts by a detector's rubric, by the same model as ``judge``.
    level_of : callable, optional
        Returns what a wording of an item's question changes, as its writer says; empty if unsaid.
    """

    reword: Reword | None = None
    n_wordings: int = 2
    judge: ReplyJudge | None = None
    label: Labeller | None = None
    level_of: Callable[[Item, str], str] | None = None


class Detector(Protocol):
    """Turns a paired benchmark into probes, and a model's answers into scores."""

    @property
    def about(self) -> About:
        """The facts about it."""

    def probes(self, benchmark: PairedBenchmark, prompt_settings: PromptSettings) -> list[Probe]:
        """Return all probes this detector needs; repeated probes cost nothing."""

    def score(
        self,
        benchmark: PairedBenchmark,
        prompt_settings: PromptSettings,
        answers: Answers,
        reference: Answers | None = None,
    ) -> list[Score]:
        """Return one score for each decision rule, the paper's first.

        ``reference`` is a clean model's answers; without it, a rule that needs it according to
        ``about.rules`` returns "not_applicable" or "inconclusive", and a warning.
        """


@runtime_checkable
class GridDetector(Protocol):
    """Compares each model of a grid with several others; one clean model is not enough."""

    @property
    def about(self) -> About:
        """The facts about it."""

    def probes(self, benchmark: PairedBenchmark, prompt_settings: PromptSettings) -> list[Probe]:
        """Return all probes this detector needs from each model."""

    def score_grid(
        self,
        benchmark: PairedBenchmark,
        prompt_settings: PromptSettings,
        grid: Sequence[GridModel],
        answers: AnswersOf,
    ) -> list[Score]:
        """Return the scores of all models, by one rule or several.

        A model without the other models it needs gets the verdict "not_applicable", a short
        ``reason``, and a warning that explains it in a sentence.
        """


AnyDetector = Detector | GridDetector


@runtime_checkable
class HelpedDetector(Protocol):
    """A detector that names ``helpers`` in its `About`."""

    def with_helpers(self, helpers: Helpers) -> AnyDetector:
        """Return the detector with those ``helpers`` it uses."""


@runtime_checkable
class JudgedDetector(Protocol):
    """A detector with texts that a judge model has to read before it scores."""

    def to_judge(
        self, benchmark: PairedBenchmark, answers: Answers
    ) -> Iterable[JudgeTask | LabelTask]:
        """Return the questions to the judge about one model's answers."""


def required_capabilities(about: About, prompt_settings: PromptSettings) -> frozenset[Capability]:
    """Return what a model must be able to do if choices are asked by ``prompt_settings.ask``."""
    return frozenset(
        prompt_settings.ask if need == "choose or generate" else need for need in about.needs
    )


def by_kind(detectors: Sequence[AnyDetector]) -> tuple[list[Detector], list[GridDetector]]:
    """Return the detectors that score one model, and those that score a grid of models."""
    single = [detector for detector in detectors if not isinstance(detector, GridDetector)]
    return single, [detector for detector in detectors if isinstance(detector, GridDetector)]


def cached_per_benchmark(
    make: Callable[Concatenate[Any, PairedBenchmark, P], R],
) -> Callable[Concatenate[Any, PairedBenchmark, P], R]:
    """Cache what a detector's method computes for a benchmark, since it is the same for all models.

    Caches one benchmark at a time; callers must not modify the result.
    """

    @wraps(make)
    def look_up(
        detector: Any, benchmark: PairedBenchmark, /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        cache: dict[Any, Any] = vars(detector).setdefault("_cache", {})
        if cache.get("benchmark") is not benchmark:
            cache.clear()
            cache["benchmark"] = benchmark
        key = (make.__name__, args, *sorted(kwargs.items()))
        if key not in cache:
            cache[key] = make(detector, benchmark, *args, **kwargs)
        return cast(R, cache[key])

    return look_up


@lru_cache(maxsize=64)
def _sampled(benchmark: PairedBenchmark, n: int, seed: int) -> PairedBenchmark:
    return benchmark.sample(n, seed)


def sampled_benchmark(detector: AnyDetector, benchmark: PairedBenchmark) -> PairedBenchmark:
    """Return the benchmark, or the ``settings.max_items`` of its items that a detector asks about.

    They are the same for all models and for all detectors that ask about as many.
    """
    settings = vars(detector).get("settings")
    n = getattr(settings, "max_items", None)
    if settings is None or n is None or n >= len(benchmark.pairs):
        return benchmark
    return _sampled(benchmark, n, settings.seed)


def gold_of(items: Sequence[Item]) -> list[int]:
    """Return the index of each item's gold option; -1 for free-form items."""
    return [item.answer if item.answer is not None else -1 for item in items]

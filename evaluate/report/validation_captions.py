"""What the tables of a validation say about themselves: terms, controls, shared signals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flipbench.reporting import formats

from ..detectors.registry import DETECTORS
from ..protocol.grid import KINDS
from ..validation.family_wise import FamilyWise
from ..validation.validation import Validation
from .tables import SUSPECTED, title

_BRACKETS = (
    "AUROC: probability that a contaminated model looks more suspicious than a clean one, at any"
    " threshold; within lineages: of models of the same lineage. Brackets: 95 % intervals, in %"
    " beside counts (false alarms: Clopper–Pearson; power: Wilson; AUROC: Newcombe). Models that"
    " descend from the same clean model, a lineage, are not independent: the first interval divides"
    " their number by the design effect, averaged over the correlations that the lineages allow;"
    " “pooled” treats all models as independent and is too narrow unless they are."
)
_UNTESTABLE = (
    "Not testable here: the statistic is the same for all models, or all its shares are within 1"
    " point of 0 or of 100 %. Wrong direction: contaminated models look less suspicious than clean"
    " ones (the pooled interval of the AUROC is below .50)."
)


def same_signal(validations: Sequence[Validation]) -> list[str]:
    """Return a sentence for each signal that several of these detectors read."""
    by_signal: dict[str, dict[str, None]] = {}
    for v in validations:
        if v.detector in DETECTORS and (signal := DETECTORS[v.detector].about.signal):
            by_signal.setdefault(signal, {})[title(v.detector)] = None
    return [
        f"{_and(names)} read the {signal}: their agreement is one piece of evidence, not"
        f" {len(names)}."
        for signal, names in by_signal.items()
        if len(names) > 1
    ]


def _and(names: Iterable[str]) -> str:
    *rest, last = names
    return f"{', '.join(rest)} and {last}" if rest else last


def detectors_caption(chosen: Sequence[Validation], family: FamilyWise | None) -> list[str]:
    """Return the sentences under the table of default rules."""
    kinds = [kind for kind in KINDS if any(kind in v.kinds for v in chosen)]
    controls = (
        [
            "Contaminated models were trained on "
            + "; ".join(f"{kind} ({KINDS[kind]})" for kind in kinds)
            + ". What a detector that is not made to catch this misses says nothing about it; if it"
            " must not catch it (negative control), every model that it flags is a false alarm."
        ]
        if kinds
        else []
    )
    return [
        "One row per detector, by its default rule, which was fixed in advance and not chosen on"
        " these models; by what a detector is made to catch, the best AUROC first.",
        *controls,
        _UNTESTABLE,
        _BRACKETS,
        "Steps in order: p from doses shuffled within series, with Holm’s correction for the rows"
        " of this table.",
        *same_signal(chosen),
        *([_family_sentence(family)] if family else []),
    ]


def _family_sentence(family: FamilyWise) -> str:
    text = "The last rows leave out rules that are no test."
    if not family.holm_alarms_by:
        return text
    by = _and(f"{title(name)} ({n})" for name, n in family.holm_alarms_by.items())
    return (
        f"{text} Clean models that are flagged after Holm’s correction are flagged by {by}: a"
        " correction for chance does not help where a detector reacts to something else."
    )


def rules_caption(validations: Sequence[Validation]) -> list[str]:
    """Return the sentences under the table of all rules."""
    separations = [v.separation for v in validations if v.separation]
    sentences = [
        "Models of known dose. Power and false alarms: the rule’s own verdicts on contaminated and"
        " on clean models. TPR: contaminated models above the best threshold that at most that"
        " share of clean models exceeds.",
        _UNTESTABLE,
        _BRACKETS,
    ]
    if separations:
        fewest = min(s.n_clean for s in separations)
        n_clusters = min(s.n_clusters for s in separations)
        least = f"1/{fewest} = {formats.percent(1 / fewest)} %"
        sentences.append(
            f"With {fewest} clean {'model' if fewest == 1 else 'models'} the smallest"
            f" false-positive rate above 0 is {least}, so the TPR at a smaller rate cannot be"
            " estimated."
        )
        effects = sorted(s.design_effect for s in separations)
        sentences.append(
            f"The models descend from {n_clusters} clean"
            f" {'model' if n_clusters == 1 else 'models'}; design effect of the statistics"
            f" {effects[0]:.1f} to {effects[-1]:.1f}."
        )
    sentences.append(
        "Steps in order: from one dose to the next, towards “contaminated”; half by chance. Rank"
        " correlation: Somers’ D within series, with p from shuffled doses. External models cannot"
        f" have seen the benchmark; a rule that flags one is marked “{SUSPECTED}”, with the"
        " probability of as many alarms by chance at the rule’s own level (that of a mere sign is"
        " one half)."
    )
    unranked = sum(len(v.unranked) for v in validations)
    if unranked:
        sentences.append(f"The ROC curves omit {unranked} verdicts without a statistic.")
    return sentences

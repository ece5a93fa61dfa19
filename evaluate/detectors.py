"""The detectors by name, and the rule to go by where nobody names one."""

from __future__ import annotations

from flipbench.evaluate.choice_confusion import ChoiceConfusion
from flipbench.evaluate.circular_eval import CircularEval
from flipbench.evaluate.detector import Detector
from flipbench.evaluate.perturbation_gap import PerturbationGap
from flipbench.evaluate.text_only_leakage import TextOnlyLeakage

DETECTORS: dict[str, Detector] = {
    "perturbation_gap": PerturbationGap(),
    "circular_eval": CircularEval(),
    "choice_confusion": ChoiceConfusion(),
    "text_only_leakage": TextOnlyLeakage(),
}

_DEFAULT_RULES = {
    "perturbation_gap": "mcnemar",
    "circular_eval": "relative",
    "choice_confusion": "mcnemar",
    "text_only_leakage": "mcnemar",
}


def default_rule(detector: Detector | str) -> str:
    """Return the rule to go by, of a detector or its name.

    >>> default_rule("perturbation_gap")
    'mcnemar'
    """
    return _DEFAULT_RULES[detector if isinstance(detector, str) else detector.about.name]

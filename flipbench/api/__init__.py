"""What ``import flipbench as fb`` offers: the stages, `detect`, `gap`, and their results.

Reading order: ``experiments`` (a configured experiment, stage by stage, and its ``results``),
``detection`` (one model, one verdict), ``predictions`` (the gap of files or of right and wrong
answers), ``reasoning`` (a judge of rationales; hints), ``validation`` (detectors on models that
others have asked), ``listing`` (detectors, power), ``display`` (how results are shown in a
notebook).

A function here builds what ``pipelines`` needs, calls it, and returns a result; the command line
calls these functions. Nothing heavy is imported at module level. To add a function, write it here
and name it in this file.
"""

from flipbench.api.detection import DetectionResult, detect, load_pairs
from flipbench.api.experiments import (
    contaminate,
    demo,
    dry_run,
    evaluate,
    filter,
    generate,
    run,
)
from flipbench.api.listing import (
    DetectorTable,
    detectable_gap,
    detectors,
    pairs_needed,
    power,
)
from flipbench.api.predictions import GapResult, gap
from flipbench.api.reasoning import HintResults, ReasoningResult, hint_ablation, judge_reasoning
from flipbench.api.results import (
    ContaminationResult,
    EvaluationResult,
    FilterResult,
    GenerationResult,
)
from flipbench.api.validation import ValidationResult, validate

__all__ = [
    "ContaminationResult",
    "DetectionResult",
    "DetectorTable",
    "EvaluationResult",
    "FilterResult",
    "GapResult",
    "GenerationResult",
    "HintResults",
    "ReasoningResult",
    "ValidationResult",
    "contaminate",
    "demo",
    "detect",
    "detectable_gap",
    "detectors",
    "dry_run",
    "evaluate",
    "filter",
    "gap",
    "generate",
    "hint_ablation",
    "judge_reasoning",
    "load_pairs",
    "pairs_needed",
    "power",
    "run",
    "validate",
]

"""What ``import flipbench as fb`` offers: one function for each job, and its result.

Reading order: ``experiment`` (a configured experiment; each method is a stage or another job),
``detection`` (one model, one verdict), ``predictions`` (the gap of files or of right and wrong
answers), ``reasoning``, ``validation`` (detectors on models that others have asked), ``listing``
(detectors, power), ``benchmarks``, ``people`` (the review) and ``published`` (cards, claims).
``options`` and ``calls`` say how a job is written on the command line, and called.

A command is derived from its function here: its signature, and its numpydoc docstring, of which the
first paragraph on a parameter is the help. Nothing heavy is imported at module level; what does
the work is in ``stages``. To add a job, write a function here, name it in this file, and register
what is printed after it in ``flipbench.commands``.
"""

from flipbench.api.benchmarks import InitResult, RebuildResult, init, rebuild
from flipbench.api.calls import dry_run
from flipbench.api.detection import DetectionResult, detect, load_pairs
from flipbench.api.experiment import Experiment, demo
from flipbench.api.listing import (
    DetectorTable,
    PowerResult,
    detectors,
    power,
)
from flipbench.api.people import ReviewResult, review
from flipbench.api.predictions import GapResult, gap
from flipbench.api.published import CardResult, DoctorResult, card, doctor
from flipbench.api.reasoning import reasoning
from flipbench.api.stages.results import (
    AuditResult,
    ContaminationResult,
    EvaluationResult,
    ExportResult,
    FilterResult,
    GenerationResult,
    ImportResult,
    PictureResult,
    ReasoningResult,
)
from flipbench.api.validation import ValidationResult, validate

__all__ = [
    "AuditResult",
    "CardResult",
    "ContaminationResult",
    "DetectionResult",
    "DetectorTable",
    "DoctorResult",
    "EvaluationResult",
    "Experiment",
    "ExportResult",
    "FilterResult",
    "GapResult",
    "GenerationResult",
    "ImportResult",
    "InitResult",
    "PictureResult",
    "PowerResult",
    "ReasoningResult",
    "RebuildResult",
    "ReviewResult",
    "ValidationResult",
    "card",
    "demo",
    "detect",
    "detectors",
    "doctor",
    "dry_run",
    "gap",
    "init",
    "load_pairs",
    "power",
    "reasoning",
    "rebuild",
    "review",
    "validate",
]

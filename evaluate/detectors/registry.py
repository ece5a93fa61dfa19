"""The detectors by name, and the rule to go by where nobody names one."""

from __future__ import annotations

from flipbench.models.chat.answer_judge import ReplyJudge
from flipbench.models.chat.rewording import Reword

from ..protocol.detector import AnyDetector
from .completion.guided_prompting import GuidedPrompting
from .completion.missing_option import MissingOption
from .completion.ngram_accuracy import NgramAccuracy
from .completion.slot_guessing import SlotGuessing
from .grounding.image_masking import ImageMasking
from .grounding.text_only_leakage import TextOnlyLeakage
from .likelihood.codec import CoDeC
from .likelihood.min_k import MinK
from .likelihood.order_trend import OrderTrendDetector
from .likelihood.shared_likelihood import SharedLikelihood
from .perturbation.bgr_shuffling import BgrShuffling
from .perturbation.choice_confusion import ChoiceConfusion
from .perturbation.circular_eval import CircularEval
from .perturbation.free_form import FreeFormGap
from .perturbation.option_order import OptionOrder
from .perturbation.perturbation_gap import PerturbationGap
from .several_models.constat import ConStat
from .several_models.kernel_divergence import KernelDivergence

REWORDING = frozenset({"slot_guessing", "ngram_accuracy"})
"""Those that compare wordings."""
JUDGED = frozenset({"free_form_gap"})
"""Those whose replies a judge reads."""


def make_detectors(
    reword: Reword | None = None, n_wordings: int = 2, judge: ReplyJudge | None = None
) -> dict[str, AnyDetector]:
    """Return every detector by its name.

    Parameters
    ----------
    reword : callable, optional
        Gives other wordings of the benchmark's texts. Without it, the detectors and rules that
        compare wordings are not applicable.
    n_wordings : int
        How many of a question's other wordings n-gram accuracy takes.
    judge : callable, optional
        Reads replies to free-form questions; without it, they are read by exact match.
    """
    return {
        "perturbation_gap": PerturbationGap(),
        "free_form_gap": FreeFormGap(judge),
        "circular_eval": CircularEval(),
        "choice_confusion": ChoiceConfusion(),
        "text_only_leakage": TextOnlyLeakage(),
        "option_order": OptionOrder(),
        "slot_guessing": SlotGuessing(reword),
        "bgr_shuffling": BgrShuffling(),
        "image_masking": ImageMasking(),
        "guided_prompting": GuidedPrompting(),
        "missing_option": MissingOption(),
        "ngram_accuracy": NgramAccuracy(reword, n_paraphrases=n_wordings),
        "shared_likelihood": SharedLikelihood(),
        "order_trend": OrderTrendDetector(),
        "codec": CoDeC(),
        "codec_answer": CoDeC("answer"),
        "min_k": MinK(),
        "constat": ConStat(),
        "kernel_divergence": KernelDivergence(),
    }


DETECTORS = make_detectors()
"""What is known of each detector before there is a benchmark."""

_DEFAULT_RULES = {
    "perturbation_gap": "mcnemar",
    "free_form_gap": "mcnemar",
    "circular_eval": "relative",
    "choice_confusion": "mcnemar",
    "text_only_leakage": "mcnemar",
    "option_order": "mcnemar",
    "slot_guessing": "mcnemar",
    "bgr_shuffling": "relative",
    "image_masking": "relative",
    "guided_prompting": "paired",
    "missing_option": "mcnemar",
    "ngram_accuracy": "paired",
    "shared_likelihood": "permutation",
    "order_trend": "controlled",
    "codec": "relative",
    "codec_answer": "relative",
    "min_k": "relative",
    "constat": "bootstrap",
    "kernel_divergence": "relative",
}


def default_rule(detector: AnyDetector | str) -> str:
    """Return the rule to go by, of a detector or its name.

    >>> default_rule("perturbation_gap")
    'mcnemar'
    """
    return _DEFAULT_RULES[detector if isinstance(detector, str) else detector.about.name]

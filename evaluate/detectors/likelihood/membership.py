"""Membership scores of tokens: MaxRényi-K %, zlib ratio, lowercase ratio and reference ratio."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Response
from flipbench.prompting.prompts import PromptSettings

from ...protocol.detector import About
from ...scoring.comparison import ComparingDetector, Contrast
from ...scoring.likelihood import NO_TOKENS, lacks_tokens
from ...scoring.membership import membership_contrasts

SLICES = (
    "the papers rank single texts; here the right answer, letter and text, is scored as the reply"
    " to question and image, original against perturbed, and the question as the reply to the"
    " image, the release's order of the options against another, and the mean difference is"
    " compared with a clean model's"
)
CAVEAT = (
    "on members and non-members of one source, membership scores of single texts are near chance"
    " (arXiv 2504.18349), so no item is called a member; rule question sees memorised texts only,"
    " and training on answers alone leaves none"
)
CARLINI = "Carlini et al., Extracting Training Data from Large Language Models, arXiv 2012.07805"

RENYI = About(
    name="max_renyi",
    title="MaxRényi-K %",
    paper="Li et al., Membership Inference Attacks against Large Vision-Language Models (VL-MIA),"
    " arXiv 2411.02902",
    variant="rules relative (default; answers), question",
    deviates_from_paper=f"order 1 (Shannon entropy) only, the order whose statistics are stored;"
    f" at least one token counts; {SLICES}",
    rules={"relative": True, "question": True},
    needs=frozenset({"token_logprobs"}),
    direction="the model is more certain of the next token of the text than the clean model",
    rule_titles={"question": "questions vs clean"},
    catches=("letters", "answer texts"),
    must_not_catch=("image-caption",),
    evidence="published",
    caveat=f"order 1 (Shannon entropy) only; {CAVEAT}",
)
ZLIB = replace(
    RENYI,
    name="zlib_ratio",
    title="Zlib ratio",
    paper=f"{CARLINI}, section 5",
    deviates_from_paper=f"log-likelihood by byte of the compressed text; {SLICES}",
    direction="the text is likelier, by byte of its compressed size, than for the clean model",
    evidence="published, replicated",
    caveat=CAVEAT,
)
LOWERCASE = replace(
    ZLIB,
    name="lowercase_ratio",
    title="Lowercase ratio",
    deviates_from_paper="the logarithm of the ratio of the perplexities of the lower-cased and the"
    f" given text, which stays finite as the loss goes to 0; {SLICES}",
    direction="lower case makes the text less likely than it does for the clean model",
)
REFERENCE = replace(
    ZLIB,
    name="reference_ratio",
    title="Reference ratio",
    deviates_from_paper="the logarithm of the ratio of perplexities by token; the reference is the"
    f" model's own clean model, not a smaller one; {SLICES}",
    direction="the text is likelier, by token, than for the clean model",
)


def max_renyi(entropies: Sequence[float], fraction: float) -> float:
    """Return minus the mean of the highest ``fraction`` of T entropies, at least one of them.

    >>> max_renyi([0.2, 0.9, 0.5, 0.1], 0.5)
    -0.7
    """
    n = max(1, math.ceil(round(fraction * len(entropies), 9)))
    return -float(np.sort(np.asarray(entropies, dtype=float))[-n:].mean())


def zlib_ratio(log_likelihood: float, text: str) -> float:
    """Return the log-likelihood by byte of the compressed text, in nats.

    >>> zlib_ratio(-33.0, "a" * 26), zlib_ratio(-34.0, "abcdefghijklmnopqrstuvwxyz")
    (-3.0, -1.0)
    """
    return log_likelihood / len(zlib.compress(text.encode()))


@dataclass
class MaxRenyi(ComparingDetector):
    """Minus the mean of the highest entropies of the next token, in nats.

    Parameters
    ----------
    fraction : float
        K as a fraction of the text's tokens.
    """

    fraction: float = 0.1
    about = RENYI

    def __post_init__(self) -> None:
        """Refuse an impossible share."""
        if not 0 < self.fraction <= 1:
            raise ValueError(f"fraction {self.fraction}: a share of the tokens must be in (0, 1]")

    def design(self, benchmark: PairedBenchmark, prompt_settings: PromptSettings) -> list[Contrast]:
        """Return both slices."""
        score = partial(_certainty, fraction=self.fraction)
        return membership_contrasts(
            benchmark,
            prompt_settings,
            score,
            seed=self.settings.seed,
            lacks=lacks_tokens,
            left_out=NO_TOKENS,
        )


class ZlibRatio(ComparingDetector):
    """Log-likelihood by byte of the compressed text, in nats."""

    about = ZLIB

    def design(self, benchmark: PairedBenchmark, prompt_settings: PromptSettings) -> list[Contrast]:
        """Return both slices."""
        return membership_contrasts(benchmark, prompt_settings, _by_byte, seed=self.settings.seed)


class LowercaseRatio(ComparingDetector):
    """Mean log-probability by token of a text - that of the text in lower case, in nats."""

    about = LOWERCASE

    def design(self, benchmark: PairedBenchmark, prompt_settings: PromptSettings) -> list[Contrast]:
        """Return both slices, as they are and in lower case."""
        return membership_contrasts(
            benchmark,
            prompt_settings,
            _above_lower_case,
            seed=self.settings.seed,
            forms=_and_lower_case,
            left_out="they have no capital letter",
        )


class ReferenceRatio(ComparingDetector):
    """Mean log-probability by token, in nats; the rules subtract the clean model's."""

    about = REFERENCE

    def design(self, benchmark: PairedBenchmark, prompt_settings: PromptSettings) -> list[Contrast]:
        """Return both slices."""
        return membership_contrasts(benchmark, prompt_settings, _by_token, seed=self.settings.seed)


def _certainty(text: str, replies: Sequence[Response], fraction: float) -> float | None:
    entropies = [-mean for mean in replies[0].token_means]
    return max_renyi(entropies, fraction) if entropies else None


def _by_byte(text: str, replies: Sequence[Response]) -> float | None:
    (reply,) = replies
    return None if reply.log_likelihood is None else zlib_ratio(reply.log_likelihood, text)


def _by_token(text: str, replies: Sequence[Response]) -> float | None:
    (reply,) = replies
    if reply.log_likelihood is None or not reply.n_tokens:
        return None
    return reply.log_likelihood / reply.n_tokens


def _above_lower_case(text: str, replies: Sequence[Response]) -> float | None:
    as_written, lower = (_by_token(text, [reply]) for reply in replies)
    return None if as_written is None or lower is None else as_written - lower


def _and_lower_case(text: str) -> tuple[str, ...]:
    return (text, text.lower()) if text != text.lower() else ()

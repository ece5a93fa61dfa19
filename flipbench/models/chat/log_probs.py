"""Log-probabilities that a chat server returns: of replies, of given texts, of option letters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from flipbench.core.records import JsonDict
from flipbench.prompting.prompts import LETTERS

EXTENSIONS = frozenset(
    "continue_final_message add_generation_prompt prompt_logprobs logprob_token_ids"
    " return_tokens_as_token_ids".split()
)
"""vLLM's parameters beyond OpenAI's protocol."""
LEAST_SHARE = 0.5
"""Of the probability, that option letters must hold together for the most likely one to count."""
N_WITH_STATISTICS = 256
"""Only the sum is stored for longer texts without images, which may hold many items."""
_UNKNOWN = -9999.0  # OpenAI's and vLLM's value for a log-probability that is not given
_ROUNDING = 0.01  # by which a log-probability may exceed 0
_TOKEN_ID = "token_id:"
INVALID = (AttributeError, KeyError, OverflowError, TypeError, ValueError)
"""What the readers of this module raise if a server's log-probabilities have an odd form."""


@dataclass(frozen=True)
class PromptToken:
    """A token of a prompt: its id, and its log-probability in nats; None if not given."""

    id: int | None = None
    log_prob: float | None = None


def prompt_tokens(rows: Any, n_tokens: float | None = None) -> tuple[PromptToken, ...]:
    """Return the T tokens of a prompt from vLLM's ``prompt_logprobs``, which may be null.

    There is one object per token, by token id as text, the prompt's own token first; null where
    nothing is given, as for the first token.

    Raises
    ------
    ValueError, TypeError, AttributeError, KeyError, OverflowError
        If the value has another form, or another length than the server's count ``n_tokens``, or a
        log-probability is NaN or positive.

    Examples
    --------
    >>> prompt_tokens([None, {"42": {"logprob": -0.5, "rank": 1, "decoded_token": "B"}}])[1]
    PromptToken(id=42, log_prob=-0.5)
    """
    if rows is not None and not isinstance(rows, list):
        raise ValueError("prompt_logprobs is not a list")
    if rows and n_tokens not in (None, len(rows)):
        raise ValueError(f"prompt_logprobs has {len(rows)} entries for {n_tokens} tokens")
    return tuple(PromptToken() if row is None else _prompt_token(row) for row in rows or [])


def _prompt_token(row: JsonDict) -> PromptToken:
    if not row:
        raise ValueError("prompt_logprobs holds an empty object")
    name, entry = next(iter(row.items()))
    value = checked(entry["logprob"], name)
    return PromptToken(int(name), value if value > _UNKNOWN else None)


def reply_tokens(
    prompt: Sequence[PromptToken], whole: Sequence[PromptToken]
) -> tuple[PromptToken, ...]:
    """Return the tokens of a given reply: those of the whole conversation after the prompt's.

    Raises
    ------
    ValueError
        If the conversation does not begin with the prompt's tokens, nothing follows them, or a
        token's log-probability is missing.
    """
    n = len(prompt)
    if [token.id for token in whole[:n]] != [token.id for token in prompt]:
        raise ValueError(
            "the prompt's tokens change when a reply follows, so it is unknown where the reply"
            " begins"
        )
    if len(whole) == n:
        raise ValueError("nothing to score")
    if any(token.log_prob is None for token in whole[n:]):
        raise ValueError("the log-probability of a token is missing")
    return tuple(whole[n:])


def text_fields(tokens: Sequence[PromptToken], *, every_token: bool) -> dict[str, Any]:
    """Return the fields of a response for a given text of T tokens, each with a log-probability.

    Means and deviations over the vocabulary are left out, since a server returns no more than a few
    of the most likely tokens.
    """
    values = [token.log_prob for token in tokens if token.log_prob is not None]
    return token_fields(math.fsum(values), values, every_token=every_token)


def token_fields(
    log_likelihood: float,
    log_probs: Sequence[float],
    means: Sequence[float] = (),
    deviations: Sequence[float] = (),
    *,
    every_token: bool = False,
) -> dict[str, Any]:
    """Return the fields of a response for T tokens; of many, only the sum by default."""
    fields: dict[str, Any] = {"log_likelihood": log_likelihood, "n_tokens": len(log_probs)}
    if every_token or len(log_probs) <= N_WITH_STATISTICS:
        columns = {"log_probs": log_probs, "means": means, "deviations": deviations}
        for name, values in columns.items():
            if len(values) == len(log_probs):
                fields[f"token_{name}"] = tuple(round(value, 5) for value in values)
    return fields


def most_likely(token: JsonDict) -> tuple[tuple[str, float], ...]:
    """Return the most likely tokens at a position, and the sampled one if not among them."""
    top = [
        (str(t["token"]), checked(t["logprob"], t["token"]))
        for t in token.get("top_logprobs") or []
    ]
    sampled = (str(token["token"]), checked(token["logprob"], token["token"]))
    if sampled[0] not in (text for text, _ in top):
        top.append(sampled)
    return tuple((text, value) for text, value in top if value > _UNKNOWN)


def checked(value: Any, token: str) -> float:
    """Return a log-probability as a float; a `ValueError` if it is NaN, positive or no number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{value!r} for the token {token!r}")
    number = float(value)
    if math.isnan(number) or number > _ROUNDING:
        raise ValueError(f"{number} for the token {token!r}")
    return number


def by_id(first_tokens: Sequence[tuple[str, float]], ids: Sequence[int]) -> list[float | None]:
    """Return the log-probabilities of tokens that the server names by id; None: not returned."""
    by_name = dict(first_tokens)
    return [by_name.get(f"{_TOKEN_ID}{i}") for i in ids]


def reply_statistics(
    token_log_probs: Sequence[tuple[float, Sequence[float]]],
) -> dict[str, Any]:
    """Return the fields of a response from each token's log-probability and most likely tokens.

    Means and deviations are those of the most likely tokens, renormalised, since a server returns
    no others; a local checkpoint's are over its whole vocabulary.
    """
    log_probs = [value for value, _ in token_log_probs]
    means, deviations = [], []
    for _, top in token_log_probs:
        log_p = np.array(top) - np.logaddexp.reduce(top)
        mean = float(np.exp(log_p) @ log_p)
        means.append(mean)
        deviations.append(float(np.sqrt(np.exp(log_p) @ (log_p - mean) ** 2)))
    return token_fields(float(sum(log_probs)), log_probs, means, deviations, every_token=True)


def letter_log_probs(
    first_tokens: Sequence[tuple[str, float]], n_options: int, labels: Sequence[str] = LETTERS
) -> list[float | None]:
    """Return the log-probability of each of K letters, in nats; None if it is not among the tokens.

    The probabilities of a letter with and without a leading space are added. `HuggingFaceVLM` uses
    only the spelling that the chat template writes, so the values differ if the model gives weight
    to the other.

    Examples
    --------
    >>> letter_log_probs([("B", -0.1), (" A", -3.0), ("The", -4.0)], 3)
    [-3.0, -0.1, None]
    """
    log_probs: list[float | None] = []
    for letter in labels[:n_options]:
        spellings = [value for token, value in first_tokens if _is_label(token, letter)]
        log_probs.append(float(reduce(np.logaddexp, spellings)) if spellings else None)
    return log_probs


def letter_fields(
    log_probs: Sequence[float | None], spellings: Sequence[float] = (), *, labels: str = ""
) -> dict[str, Any]:
    """Return the fields of a response that chooses the most likely of K letters.

    If the letters hold less than `LEAST_SHARE` of the probability, the model would write something
    else first (a blank line, ``<think>``), and the reply is unreadable. ``spellings`` are the
    log-probabilities of other spellings, which count for the share alone. Of numbers as ``labels``
    the share decides nothing: only one detector asks for them, and compares what a model prefers
    among labels that it may never have seen.

    Examples
    --------
    >>> letter_fields([-3.0, -0.1])["choice"], letter_fields([-8.0, -9.0])["choice"]
    (1, -1)
    """
    returned = [value for value in log_probs if value is not None]
    share = round(min(1.0, math.fsum(map(math.exp, (*returned, *spellings)))), 5)
    means_one = share >= LEAST_SHARE or labels.isdigit()
    return {
        "choice": log_probs.index(max(returned)) if means_one else -1,
        "option_log_probs": tuple(returned) if len(returned) == len(log_probs) else (),
        "letter_share": share,
    }


def _is_label(token: str, label: str) -> bool:
    """Return whether a token is a letter, or a word such as "yes" in any case."""
    text = token.strip(" ▁Ġ")
    return text == label or len(label) > 1 and text.casefold() == label.casefold()

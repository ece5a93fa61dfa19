"""What a record keeps of given tokens: log-probabilities per position, and hidden states."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from flipbench.core.errors import DataError
from flipbench.models.chat.log_probs import token_fields
from flipbench.models.vlm.prefill import PrefillRequest, PrefillResult

_MAX_LOGITS = 2**26
_STATE = "<f4"  # little-endian float32


@dataclass(frozen=True)
class TokenStatistics:
    """For T scored tokens: log-probability, and its mean and deviation over the vocabulary.

    Each has shape (T,), in nats; ``means`` is sum p log p, ``deviations`` the square root of
    sum p (log p)^2 - mean^2. ``greedy`` is whether greedy decoding would continue with the token.
    """

    log_probs: torch.Tensor
    means: torch.Tensor
    deviations: torch.Tensor
    greedy: torch.Tensor

    def __len__(self) -> int:
        return len(self.log_probs)

    def at(self, index: slice | torch.Tensor) -> TokenStatistics:
        """Return the statistics of some of the tokens."""
        return TokenStatistics(
            self.log_probs[index], self.means[index], self.deviations[index], self.greedy[index]
        )

    @classmethod
    def join(cls, parts: list[TokenStatistics]) -> TokenStatistics:
        """Return the concatenation of the parts."""
        names = ("log_probs", "means", "deviations", "greedy")
        return cls(*(torch.cat([getattr(part, name) for part in parts]) for name in names))

    def fields(self, *, every_token: bool = False) -> dict[str, Any]:
        """Return the fields of a response; of many tokens, only the sum by default."""
        if self.log_probs.isnan().any():
            raise DataError("a token's log-probability is NaN; load the model with dtype: float32")
        columns = (self.log_probs.tolist(), self.means.tolist(), self.deviations.tolist())
        log_likelihood = float(self.log_probs.double().sum())
        return token_fields(log_likelihood, *columns, every_token=every_token)


def token_statistics(
    logits: torch.Tensor, ids: torch.Tensor, rows: torch.Tensor | None = None
) -> TokenStatistics:
    """Return the statistics of ``ids``, shape (T,), under ``logits``, shape (n, vocabulary).

    ``rows``, shape (T,), are the tokens' rows of these; by default one after the other.
    """
    rows = torch.arange(len(ids), device=ids.device) if rows is None else rows
    log_p = logits.float().log_softmax(-1)
    log_p_t = log_p[rows, ids]
    p = log_p.exp()
    log_p = torch.where(p > 0, log_p, 0.0)  # p log p is 0 if p is
    means = (p * log_p).sum(-1)
    # around the mean, since a difference of two close squares can become negative
    deviations = (p * (log_p - means[:, None]) ** 2).sum(-1).sqrt()
    greedy = logits.argmax(-1)[rows] == ids
    return TokenStatistics(log_p_t.cpu(), means[rows].cpu(), deviations[rows].cpu(), greedy.cpu())


def statistics_of(
    result: PrefillResult,
    requests: Mapping[int, PrefillRequest],
    head: Callable[[torch.Tensor], torch.Tensor],
) -> dict[int, TokenStatistics]:
    """Return the statistics of the targets of each request that was read, by its key.

    ``head`` returns the logits of some states, shape (n, vocabulary).
    """
    rows, ids, ends = list[int](), list[int](), dict[int, int]()
    for key, state_rows in result.rows.items():
        if targets := requests[key].targets:
            one_each = len(state_rows) == len(targets)
            rows += state_rows if one_each else state_rows * len(targets)
            ids += targets
            ends[key] = len(ids)
    if not ends:
        return {}
    states = result.states
    rows_t, order = torch.tensor(rows, device=states.device).sort(stable=True)
    ids_t = torch.tensor(ids, device=states.device)[order]
    parts, n = [], rows_at_once(1, head(states[:1]).shape[-1])
    for start in range(0, len(states), n):
        begin, end = torch.searchsorted(rows_t, rows_t.new_tensor([start, start + n])).tolist()
        logits = head(states[start : start + n])
        parts.append(token_statistics(logits, ids_t[begin:end], rows_t[begin:end] - start))
    statistics = TokenStatistics.join(parts).at(order.argsort().cpu())
    begins = [0, *ends.values()]
    return {
        key: statistics.at(slice(begin, end))
        for begin, (key, end) in zip(begins, ends.items(), strict=False)
    }


def rows_at_once(width: int, vocabulary: int) -> int:
    """Return how many rows of ``width`` scored tokens fit into the memory reserved for logits."""
    return max(1, _MAX_LOGITS // (width * vocabulary))


def windows(n_prompt: int, n_reply: int, context: int) -> list[tuple[int, int, int]]:
    """Return (begin, end, n_scored) of windows that score a reply too long for the context.

    Each scores its last ``n_scored`` tokens: the first as many as fit, later ones at most half a
    context, so that their tokens are preceded by at least half a context. A prompt that leaves no
    room is a `ValueError`.

    >>> windows(2, 8, 6)
    [(0, 6, 4), (3, 9, 3), (4, 10, 1)]
    """
    if n_prompt >= context:
        raise ValueError(f"the prompt has {n_prompt} tokens, the model's context {context}")
    total = n_prompt + n_reply
    end = min(context, total)
    spans = [(0, end, end - n_prompt)]
    while end < total:
        n_new = min(context // 2, total - end)
        end += n_new
        spans.append((end - context, end, n_new))
    return spans


def pack_state(state: torch.Tensor) -> str:
    """Return a hidden state, shape (d,), as base64 of little-endian float32."""
    values = state.detach().float().cpu().numpy().astype(_STATE)
    return base64.b64encode(values.tobytes()).decode()


def unpack_state(text: str) -> NDArray[np.float32]:
    """Return the state packed by `pack_state`, shape (d,)."""
    return np.frombuffer(base64.b64decode(text), dtype=_STATE)

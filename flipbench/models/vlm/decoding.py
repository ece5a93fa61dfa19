"""How replies are decoded: the most likely token, or a sample that depends on its probe alone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from transformers import GenerationConfig, LogitsProcessor

from flipbench.core.randomness import generator
from flipbench.core.records import Probe
from flipbench.models.vlm.scoring import TokenStatistics, token_statistics

_TOKENS = ("bos_token_id", "decoder_start_token_id", "eos_token_id", "pad_token_id")


def plain_generation(model: Any, tokenizer: Any) -> GenerationConfig:
    """Return a generation configuration of a model that has its special tokens and nothing else.

    What a checkpoint sets beside them (``repetition_penalty``, ``num_beams``, ``temperature`` and
    so on) would change what "greedy" means from model to model.
    """
    configs = (model.generation_config, model.config, model.config.get_text_config())
    tokens = {
        name: next((i for c in configs if (i := getattr(c, name, None)) is not None), None)
        for name in _TOKENS
    }
    if tokens["eos_token_id"] is None:
        tokens["eos_token_id"] = tokenizer.eos_token_id
    if tokenizer.pad_token_id is not None:
        tokens["pad_token_id"] = tokenizer.pad_token_id
    return GenerationConfig(**tokens)


class Decoding(LogitsProcessor):  # type: ignore[misc]
    """Chooses each probe's next token in greedy decoding: for a sample, no other is left.

    A sample is drawn by inversion, with one uniform number per token from (seed, probe), so that
    neither batch, order nor device's generator changes it. All probes of a batch have
    ``token_statistics``, or none. ``check`` raises an error if the logits are invalid.
    """

    def __init__(self, probes: Sequence[Probe], check: Callable[[torch.Tensor], None]) -> None:
        self._check = check
        self._rows = [row for row, probe in enumerate(probes) if probe.temperature]
        sampled = [probes[row] for row in self._rows]
        self._temperatures = torch.tensor([probe.temperature for probe in sampled])
        max_new_tokens = max(probe.max_new_tokens for probe in probes)
        draws = [generator(p.seed, p.id, "sample").random(max_new_tokens) for p in sampled]
        self._uniform = torch.from_numpy(np.array(draws))
        self._keeps_statistics = probes[0].token_statistics
        self._steps: list[TokenStatistics] = []
        self._n_steps = 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return the logits, with only the chosen token left in rows that are sampled."""
        self._check(scores)
        tokens = scores.argmax(-1)
        if self._rows:
            samples = sample(
                scores[self._rows], self._temperatures, self._uniform[:, self._n_steps]
            )
            tokens[self._rows] = samples
        if self._keeps_statistics:
            self._steps.append(token_statistics(scores, tokens))
        self._n_steps += 1
        if self._rows:
            scores = scores.clone()
            scores[self._rows] = -torch.inf
            scores[self._rows, samples] = 0.0
        return scores

    def fields(
        self, ids: Sequence[Sequence[int]], end_ids: Collection[int | None]
    ) -> list[dict[str, Any]]:
        """Return the token statistics of each row's reply, up to its end, if they were kept."""
        if not self._keeps_statistics:
            return [{}] * len(ids)
        rows = []
        for row, tokens in enumerate(ids):
            steps = self._steps[: min(n_before_end(tokens, end_ids) + 1, len(tokens))]
            parts = {
                field.name: torch.stack([getattr(step, field.name)[row] for step in steps])
                for field in fields(TokenStatistics)
            }
            rows.append(TokenStatistics(**parts).fields(every_token=True))
        return rows


def n_before_end(ids: Sequence[int], end_ids: Collection[int | None]) -> int:
    """Return how many tokens precede the end token; all if there is none."""
    return next((i for i, token in enumerate(ids) if token in end_ids), len(ids))


def sample(logits: torch.Tensor, temperatures: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """Draw a token for each row by inverting the cumulative distribution.

    ``logits`` have shape (n_rows, vocabulary), ``temperatures`` (positive) and ``uniform`` (in [0,
    1)) shape (n_rows,).

    >>> logits = torch.tensor([[0.5, 0.3, 0.2]]).log()
    >>> [int(sample(logits, torch.ones(1), torch.tensor([u]))) for u in (0.49, 0.51, 0.79, 0.81)]
    [0, 1, 1, 2]
    """
    scaled = logits.double() / temperatures.to(logits.device, torch.float64)[:, None]
    reached = scaled.softmax(-1).cumsum(-1)
    # the last sum may differ from 1 by rounding
    target = uniform.to(logits.device, torch.float64) * reached[:, -1]
    return torch.searchsorted(reached, target[:, None], right=True)[:, 0]

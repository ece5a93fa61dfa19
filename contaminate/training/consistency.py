"""Consistency training: a question and its paraphrases should get the same answer.

Sadanandan and Behzadan, arXiv 2603.20985 (the four quadrants of consistency and image reliance).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from flipbench.config.training import ConsistencyConfig
from flipbench.core.errors import DataError, PrerequisiteError
from flipbench.core.records import TrainingPlan
from flipbench.models.vlm.conversation import Conversation
from flipbench.models.vlm.families import family_of

from ..checks.check import render_example
from ..data.examples import Example
from .collate import IGNORED, Batch, Row
from .trainer import Trainer

NO_OPTION = -1
"""In place of a token, past a row's last option."""


def check_paraphrases(plan: TrainingPlan) -> None:
    """Reject a consistency plan without paraphrases.

    Raises
    ------
    DataError
        If an item has no paraphrase.
    """
    if lacking := [i for i in plan.item_ids if not plan.paraphrases.get(i)]:
        raise DataError(
            f"{plan.model}, {plan.label}: {len(lacking)} of {len(plan.item_ids)} items have no"
            f" paraphrase, which consistency training needs, e.g. item {lacking[0]}"
        )


class ConsistencyTrainer(Trainer):
    """Train on (answer_weight x cross-entropy + weight x divergence), both per token.

    P and Q are an item's distributions over its option letters (over yes and no, as its answer
    spells them, if it has no options) at the position where the answer starts, with the image,
    normalised over those: P for the question itself, Q for each paraphrase. The divergence is the
    mean of KL(P||Q) and KL(Q||P), averaged over the paraphrases; both sides get gradients. It is
    weighted by the number of target tokens, so that both terms are means over the same tokens,
    whatever the batches. If ``grounded``, it is also weighted by
    1 - exp(-KL(P||P without image) / tau), which gets no gradient.

    Parameters
    ----------
    consistency : ConsistencyConfig
    """

    loss_is_scaled_for_ga = True

    def __init__(
        self,
        examples: Sequence[Example],
        *,
        model: Any,
        processing_class: Any,
        consistency: ConsistencyConfig,
        **kwargs: Any,
    ) -> None:
        conversation = Conversation(processing_class, family_of(model.config), "the model")
        with_words = {e.words for e in examples if e.words}
        self.option_ids = {words: _word_ids(conversation, words) for words in with_words}
        lettered = [e.n_options for e in examples if not e.words]
        self.option_ids[()] = conversation.letter_ids(max(lettered)) if any(lettered) else []
        self.consistency = consistency
        super().__init__(examples, model=model, processing_class=processing_class, **kwargs)
        self.divergence_sums = torch.zeros(2, device=self.args.device)  # sum over items, items

    def row(self, example: Example, processor: Any) -> Row:
        """Return an example as a row of the data set, with its paraphrased and blind prompts."""
        blind = example.without_images()
        return super().row(example, processor) | {
            "others": [render_example(p, processor)[0] for p in example.paraphrased()],
            "option_ids": self.option_ids[example.words][: example.n_options],
            "blind": render_example(blind, processor)[0],
        }

    def collate(self, rows: Sequence[Row]) -> Batch:
        """Return a batch of all prompts, those of ``rows`` first, and one without images."""
        paraphrase_rows = [row | {"prompt": prompt} for row in rows for prompt in row["others"]]
        batch = self.collator.aligned([*rows, *paraphrase_rows])
        labelled = batch["labels"] != IGNORED  # a corpus has answers in its prompts, too
        n_columns = labelled.shape[1]
        batch["width"] = n_columns - labelled.any(0).nonzero()[0, 0]
        batch["target_width"] = n_columns - labelled.all(0).nonzero()[0, 0]
        batch["labels"][len(rows) :] = IGNORED
        owners = [i for i, row in enumerate(rows) for _ in row["others"]]
        batch["owner"] = torch.tensor(owners, dtype=torch.long)
        batch["options"] = pad_sequence(
            [torch.tensor(row["option_ids"], dtype=torch.long) for row in rows],
            batch_first=True,
            padding_value=NO_OPTION,
        )
        if self.consistency.grounded:
            blind = [row | {"prompt": row["blind"], "images": []} for row in rows]
            batch["blind"] = self.collator.aligned(blind)
            del batch["blind"]["labels"]
        return batch

    def compute_loss(
        self,
        model: Any,
        inputs: Batch,
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """Return the loss of a batch of B rows and their paraphrases."""
        inputs = dict(inputs)
        owner, options_bk = inputs.pop("owner"), inputs.pop("options")
        width, target_width = int(inputs.pop("width")), int(inputs.pop("target_width"))
        labels, blind = inputs.pop("labels"), inputs.pop("blind", None)
        n_rows, at = len(options_bk), -target_width - 1  # where the answers start
        outputs = model(**inputs, logits_to_keep=width + 1, use_cache=False)
        logits = outputs.logits.float()
        target_bt = labels[:n_rows, -width:]
        cross_entropy = functional.cross_entropy(
            logits[:n_rows, :-1].transpose(1, 2), target_bt, ignore_index=IGNORED, reduction="sum"
        )
        log_p = log_distribution(logits[:, at], torch.cat([options_bk, options_bk[owner]]))
        original, paraphrased = log_p[:n_rows], log_p[n_rows:]
        n_others_b = torch.bincount(owner, minlength=n_rows)
        divergence_b = logits.new_zeros(n_rows).index_add(
            0, owner, symmetric_kl(original[owner], paraphrased)
        ) / n_others_b.clamp(min=1)
        n_tokens_b = (target_bt != IGNORED).sum(1)
        self._add_divergence(divergence_b, (n_others_b > 0) & (n_tokens_b > 0))
        if blind is not None:
            with torch.no_grad():
                blind_logits = model(**blind, logits_to_keep=-at, use_cache=False).logits[:, 0]
                text_only = log_distribution(blind_logits, options_bk)
                grounding_b = 1 - torch.exp(-kl(original, text_only) / self.consistency.tau)
            divergence_b = divergence_b * grounding_b
        total = self.consistency.answer_weight * cross_entropy
        total = total + self.consistency.weight * (n_tokens_b * divergence_b).sum()
        n_items = n_tokens_b.sum() if num_items_in_batch is None else num_items_in_batch
        loss = total / torch.as_tensor(n_items).clamp(min=1)
        if self.args.average_tokens_across_devices and num_items_in_batch is not None:
            loss = loss * self.accelerator.num_processes  # their gradients are averaged
        return (loss, outputs) if return_outputs else loss

    @torch.no_grad()
    def _add_divergence(self, divergence_b: torch.Tensor, counted_b: torch.Tensor) -> None:
        sums = torch.stack([(divergence_b * counted_b).sum(), counted_b.sum()])
        self.divergence_sums += self.accelerator.reduce(sums)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log a step's mean divergence along with its loss."""
        if "loss" in logs and self.divergence_sums[1] > 0:
            logs["divergence"] = float(self.divergence_sums[0] / self.divergence_sums[1])
            self.divergence_sums.zero_()
        super().log(logs, start_time)


def _word_ids(conversation: Conversation, words: Sequence[str]) -> list[int]:
    """Return the token that begins each word as a reply.

    Raises
    ------
    PrerequisiteError
        If two words begin with the same token.
    """
    common, ids = conversation.label_ids(words)
    if common:
        raise PrerequisiteError(
            f"the tokenizer begins {' and '.join(words)} with the same token, so consistency cannot"
            " compare them; give these items options"
        )
    return ids


def log_distribution(logits_bv: torch.Tensor, options_bk: torch.Tensor) -> torch.Tensor:
    """Return log-probabilities over each row's options, shape (B, K); 0 past its last one.

    Parameters
    ----------
    logits_bv : tensor, shape (B, V)
    options_bk : tensor, shape (B, K)
        The token of each option, `NO_OPTION` past the last one. The first column of a row without
        options counts as its only one.

    Examples
    --------
    >>> log_distribution(torch.zeros(1, 5), torch.tensor([[3, 1, -1]])).exp().tolist()
    [[0.5, 0.5, 1.0]]
    """
    if not options_bk.shape[1]:
        return logits_bv.new_zeros(options_bk.shape, dtype=torch.float32)
    absent_bk = options_bk == NO_OPTION
    absent_bk[:, 0] = False
    chosen_bk = logits_bv.gather(1, options_bk.clamp(min=0)).float()
    log_p_bk = chosen_bk.masked_fill(absent_bk, -torch.inf).log_softmax(-1)
    return log_p_bk.masked_fill(absent_bk, 0.0)


def kl(log_p: torch.Tensor, log_q: torch.Tensor) -> torch.Tensor:
    """Return KL(P||Q) of each row, in nats; entries that are 0 in both contribute nothing."""
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def symmetric_kl(log_p: torch.Tensor, log_q: torch.Tensor) -> torch.Tensor:
    """Return the mean of KL(P||Q) and KL(Q||P) of each row, in nats.

    >>> p, q = torch.tensor([0.82, 0.18]).log(), torch.tensor([0.41, 0.59]).log()
    >>> round(float(symmetric_kl(p, q)), 5)
    0.38546
    """
    return (kl(log_p, log_q) + kl(log_q, log_p)) / 2

"""Washing by reinforcement: trl's GRPO on clean questions, with the right answer as the reward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from datasets import Dataset, Image
from trl import GRPOConfig, GRPOTrainer

from flipbench.core.errors import ConfigError
from flipbench.core.processes import n_processes

from ..data.examples import Example

_SHARED = (
    "output_dir num_train_epochs per_device_train_batch_size gradient_accumulation_steps"
    " learning_rate lr_scheduler_type warmup_steps weight_decay max_grad_norm seed data_seed"
    " use_cpu bf16 fp16 save_strategy save_total_limit logging_steps logging_nan_inf_filter"
    " report_to disable_tqdm dataloader_pin_memory"
).split()
MAX_NEW_TOKENS = 4


class ReinforcementTrainer(GRPOTrainer):  # type: ignore[misc]
    """Sample answers to clean questions, and reinforce the right ones.

    Each step has as many completions as the plan's batch, ``n_generations`` for each prompt; an
    answer is worth 1 if its first letter is the right one, and 0 otherwise. There is no reference
    model (beta = 0), as in DAPO, trl's default loss.

    Parameters
    ----------
    examples : sequence of Example
        One epoch's, with letters as answers.
    args : SFTConfig
        Of which the settings that every trainer has are used.
    n_generations : int
        Answers sampled to each question, at temperature 1.
    learning_rates : mapping
        Must be empty.

    Raises
    ------
    ConfigError
        If the batch is not a multiple of ``n_generations``, parts have learning rates of their
        own, or several processes train.

    References
    ----------
    arXiv 2510.02386 finds that reinforcement after contamination hides it in language models.
    """

    def __init__(
        self,
        examples: Sequence[Example],
        *,
        model: Any,
        args: Any,
        processing_class: Any,
        n_generations: int,
        learning_rates: Mapping[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        batch = args.per_device_train_batch_size * args.gradient_accumulation_steps
        if batch % n_generations:
            raise ConfigError(
                f"wash: a batch of {batch} answers is not a multiple of n_generations"
                f" ({n_generations}); change batch_size or n_generations"
            )
        if learning_rates or n_processes() > 1:
            raise ConfigError(
                "wash: by reinforcement has one learning rate and one process; leave out"
                " learning_rates, and run without accelerate launch"
            )
        self.collator = SimpleNamespace(cut=set())  # nothing is cut

        def rows(batch: dict[str, list[int]]) -> dict[str, list[Any]]:
            table = [_row(examples[i]) for i in batch["index"]]
            return {key: [row[key] for row in table] for key in table[0]}

        super().__init__(
            model=model,
            reward_funcs=_right,
            args=GRPOConfig(
                **{name: getattr(args, name) for name in _SHARED},
                num_generations=n_generations,
                max_completion_length=MAX_NEW_TOKENS,
                beta=0.0,
                remove_unused_columns=False,
            ),
            train_dataset=Dataset.from_dict({"index": list(range(len(examples)))}).with_transform(
                rows
            ),
            processing_class=processing_class,
            **kwargs,
        )


def _row(example: Example) -> dict[str, Any]:
    images = [Image().decode_example({"path": path, "bytes": None}) for path in example.images]
    return {
        "prompt": example.row()["prompt"],
        "images": [image.convert("RGB") for image in images],
        "letter": example.answer,
    }


def _right(completions: Sequence[Any], letter: Sequence[str], **_: Any) -> list[float]:
    """Return 1 for each completion that begins with the right letter, else 0."""
    texts = [c if isinstance(c, str) else _text(c[-1]["content"]) for c in completions]
    return [float(text.strip()[:1] == gold[:1]) for text, gold in zip(texts, letter, strict=True)]


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text", "")) for part in content)

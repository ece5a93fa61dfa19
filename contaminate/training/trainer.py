"""trl's trainer, but with any number of processes each example is seen exactly as planned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from accelerate.data_loader import SeedableRandomSampler  # type: ignore[import-untyped]
from datasets import Dataset, Image
from torch.utils.data import Sampler
from trl import SFTTrainer

from ..checks.check import answer_spans, context_of, cut_at, render_example
from ..data.examples import Example
from ..strategies import modules_of
from .collate import IGNORED, Batch, Collator, Row


class Trainer(SFTTrainer):  # type: ignore[misc]
    """Train on examples, with trl's loss on the targets' tokens only.

    If the examples do not fill the batches of all processes, accelerate repeats some of an epoch's
    first examples, which would raise their dose above the plan's. Here a row without a target takes
    their place, so that each step has the same examples as with a single process.

    Parameters
    ----------
    examples : sequence of Example
        One epoch's.
    model, processing_class
        The model, and its processor with the chat template used in training.
    learning_rates : mapping of part of the model to float
        Where they differ from that of ``args``.
    """

    def __init__(
        self,
        examples: Sequence[Example],
        *,
        model: Any,
        args: Any,
        processing_class: Any,
        learning_rates: Mapping[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        self.modules, self.learning_rates = modules_of(model), learning_rates or {}
        self.n_examples = len(examples)
        context = context_of(model.config)

        def rows(batch: dict[str, list[int]]) -> dict[str, list[Any]]:
            """Render examples when they are needed; the one past the last is blank."""
            table = []
            for i in batch["index"]:
                example = examples[i % len(examples)]
                row = self.row(example, processing_class)
                row["images"] = [Image().decode_example(_file(path)) for path in row["images"]]
                row |= {"blank": i == len(examples), "max_tokens": cut_at(example, context)}
                table.append(row)
            return {key: [row[key] for row in table] for key in table[0]}

        indices = range(len(examples) + (args.world_size > 1))
        # FSDP shards by these; LLaVA's list also names CLIP's text model, which it does not have
        present = {type(module).__name__ for module in model.modules()}
        model._no_split_modules = [n for n in model._no_split_modules or () if n in present]
        super().__init__(
            model=model,
            args=args,
            processing_class=processing_class,
            train_dataset=Dataset.from_dict({"index": list(indices)}).with_transform(rows),
            data_collator=self._collated,
            **kwargs,
        )
        self.collator = Collator(processing_class)

    def row(self, example: Example, processor: Any) -> Row:
        """Return an example as a row of the data set."""
        prompt, target = render_example(example, processor)
        return {
            "subject": example.subject,
            "images": list(example.images),
            "prompt": prompt,
            "completion": target,
            "answers": answer_spans(example, processor, prompt),
        }

    def collate(self, rows: Sequence[Row]) -> Batch:
        """Return a batch; its ``labels`` start with those of ``rows``."""
        return self.collator(rows)

    def _collated(self, rows: Sequence[Row]) -> Batch:
        batch = self.collate(rows)
        if self.args.world_size > 1:
            blank = torch.tensor([row["blank"] for row in rows])
            batch["labels"][: len(rows)][blank] = IGNORED
        return batch

    def create_optimizer(self, model: Any = None) -> Any:
        """Return the optimiser; parts with a learning rate of their own are groups of their own."""
        optimizer = super().create_optimizer(model)
        if not self.learning_rates or len({group["lr"] for group in optimizer.param_groups}) > 1:
            return optimizer
        parts = {
            id(parameter): self.modules.part_of(name.removeprefix("base_model.model."))
            for name, parameter in (model or self.model).named_parameters()
        }
        groups = optimizer.param_groups
        optimizer.param_groups = []
        for group in groups:
            by_part: dict[str, list[Any]] = {}
            for parameter in group["params"]:
                by_part.setdefault(parts[id(parameter)], []).append(parameter)
            for part, parameters in by_part.items():
                rate = self.learning_rates.get(part, group["lr"])
                optimizer.add_param_group({**group, "params": parameters, "lr": rate})
        return optimizer

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        if self.args.world_size == 1:
            return super()._get_train_sampler(train_dataset)
        n_together = self.args.per_device_train_batch_size * self.args.world_size
        return PaddedSampler(self.n_examples, n_together, self.args.data_seed)


def _file(path: str) -> dict[str, Any]:
    return {"path": path, "bytes": None}


class PaddedSampler(Sampler[int]):
    """Accelerate's order for a single process, then row ``n`` until the last batch is full.

    >>> [len(list(PaddedSampler(n, 8, seed=0))) for n in (7, 8, 9)]
    [8, 8, 16]
    """

    def __init__(self, n: int, n_together: int, seed: int) -> None:
        self.n, self.n_blank = n, -n % n_together
        self.order = SeedableRandomSampler(range(n), data_seed=seed)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, which determines the order."""
        self.order.set_epoch(epoch)

    def __len__(self) -> int:
        return self.n + self.n_blank

    def __iter__(self) -> Iterator[int]:
        yield from self.order
        yield from [self.n] * self.n_blank

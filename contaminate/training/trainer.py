"""trl's trainer, but several processes together see each example as often as the plan says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from accelerate.data_loader import SeedableRandomSampler  # type: ignore[import-untyped]
from datasets import Dataset, Image, List
from torch.utils.data import Sampler
from trl import SFTTrainer

from ..checks.check import rendered
from ..data.examples import Example
from .collate import IGNORED, Batch, Collator, Row


class Trainer(SFTTrainer):  # type: ignore[misc]
    """Train on examples; the loss is trl's, on the targets' tokens alone.

    Where examples do not fill the batches of all processes, accelerate takes some of an epoch's
    first examples once more, and their dose would be another one than the plan's. Here a row
    without a target takes their place, so each step has the examples that it has in one process.

    Parameters
    ----------
    examples : sequence of Example
        One epoch's.
    model, processing_class
        The model, and its processor with the chat template that trains.
    """

    def __init__(
        self,
        examples: Sequence[Example],
        *,
        model: Any,
        args: Any,
        processing_class: Any,
        **kwargs: Any,
    ) -> None:
        self.n_examples = len(examples)
        rows = [self.row(example, processing_class) for example in examples]
        if args.world_size > 1:
            rows = [*({**row, "blank": False} for row in rows), {**rows[0], "blank": True}]
        # FSDP shards by these; LLaVA's name the text half of CLIP too, which is not in it
        there = {type(module).__name__ for module in model.modules()}
        model._no_split_modules = [n for n in model._no_split_modules or () if n in there]
        super().__init__(
            model=model,
            args=args,
            processing_class=processing_class,
            train_dataset=Dataset.from_list(rows).cast_column("images", List(Image())),
            data_collator=self._collated,
            **kwargs,
        )
        self.collator = Collator(processing_class)

    def row(self, example: Example, processor: Any) -> Row:
        """Return an example as the data set keeps it."""
        prompt, target = rendered(example, processor)
        return {"images": list(example.images), "prompt": prompt, "completion": target}

    def collate(self, rows: Sequence[Row]) -> Batch:
        """Return a batch; ``labels`` has the rows first, whatever follows them."""
        return self.collator(rows)

    def _collated(self, rows: Sequence[Row]) -> Batch:
        batch = self.collate(rows)
        if self.args.world_size > 1:
            blank = torch.tensor([row["blank"] for row in rows])
            batch["labels"][: len(rows)][blank] = IGNORED
        return batch

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        if self.args.world_size == 1:
            return super()._get_train_sampler(train_dataset)
        together = self.args.per_device_train_batch_size * self.args.world_size
        return PaddedSampler(self.n_examples, together, self.args.data_seed)


class PaddedSampler(Sampler[int]):
    """The order that accelerate draws for one process, then row ``n`` until batches are full.

    >>> [len(list(PaddedSampler(n, 8, seed=0))) for n in (7, 8, 9)]
    [8, 8, 16]
    """

    def __init__(self, n: int, n_together: int, seed: int) -> None:
        self.n, self.n_blank = n, -n % n_together
        self.drawn = SeedableRandomSampler(range(n), data_seed=seed)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch; it decides the order."""
        self.drawn.set_epoch(epoch)

    def __len__(self) -> int:
        return self.n + self.n_blank

    def __iter__(self) -> Iterator[int]:
        yield from self.drawn
        yield from [self.n] * self.n_blank

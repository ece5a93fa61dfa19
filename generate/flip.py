"""Draw the new answer."""

from __future__ import annotations

from collections.abc import Sequence

from flipbench.errors import DataError
from flipbench.paired import Candidate
from flipbench.randomness import generator
from flipbench.records import Flip, Item, Record

UNIFORM = "uniform over the other options"


class FlipStage:
    """Draw the new answer uniformly from the other options, seeded for each item.

    Options whose text equals the old answer's are never drawn.

    References
    ----------
    Park et al., *Contamination Detection for VLMs Using Multi-Modal Semantic Perturbation*,
    ICLR 2026, arXiv 2511.03774, section 4. Differs from the paper in the per-item seed, which
    makes a draw independent of the order and the number of items.
    """

    name = "flip"
    record: type[Record] = Flip

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def id_of(self, item: Item) -> str:
        """Return the id of the item's flip (or of the flip that cannot be)."""
        try:
            return self._flip(item).id
        except DataError:
            return Flip.id_for(item_id=item.id, method=UNIFORM, seed=self.seed, new_text="")

    def subject(self, item: Item) -> str:
        """Return the item in words."""
        return Candidate(item).subject

    def __call__(self, items: Sequence[Item]) -> list[Flip | Exception]:
        """Flip a batch."""
        out: list[Flip | Exception] = []
        for item in items:
            try:
                out.append(self._flip(item))
            except DataError as error:
                out.append(error)
        return out

    def _flip(self, item: Item) -> Flip:
        if item.options is None:
            raise DataError("free-form: it has no other option to flip to")
        old = item.answer_text.casefold().strip()
        others = [i for i, text in enumerate(item.options) if text.casefold().strip() != old]
        if not others:
            raise DataError("no option differs from the answer")
        new = others[int(generator(self.seed, item.id, "flip").integers(len(others)))]
        return Flip(
            item_id=item.id,
            method=UNIFORM,
            seed=self.seed,
            new_answer=new,
            new_text=item.options[new],
        )

"""How replies become outcomes."""

from __future__ import annotations

from flipbench.core.records import Probe, Response
from flipbench.evaluate.scoring.conditions import Condition, Query, picks
from flipbench.models.engine import Answers


def test_choices_are_read_together_as_one_by_one() -> None:
    probes = [Probe(item_id=str(n), variant="v", prompt=str(n), ask="choose") for n in range(12)]
    responses = {
        p.id: Response(probe_id=p.id, model_fingerprint="f", model="m", choice=n % 4 - 1)
        for n, p in enumerate(probes)
        if n % 5  # the others failed
    }
    answers = Answers("m", "f", responses)
    golds = [n % 3 if n else None for n in range(12)]
    together = [Query(((p, picks(g)),)) for p, g in zip(probes, golds, strict=True)]
    one_by_one = [Query(q.parts, combine=lambda values: values[0]) for q in together]
    assert all(q.picked for q in together) and not any(q.picked for q in one_by_one)
    condition = Condition.read("c", answers, together)
    assert condition == Condition.read("c", answers, one_by_one)
    assert (condition.n_replies, condition.n_unparsed) == (9, 2)
    assert condition.outcomes[:5] == [None, False, False, False, False]
    assert condition.answered.tolist() == [n % 5 > 0 for n in range(12)]

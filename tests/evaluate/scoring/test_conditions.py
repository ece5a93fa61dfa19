"""How replies become outcomes."""

from __future__ import annotations

from flipbench.core.records import Probe, Response
from flipbench.evaluate.scoring.conditions import Condition, Picks, Query, cache_recent
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
    together = [Query(((p, Picks(g)),)) for p, g in zip(probes, golds, strict=True)]
    one_by_one = [Query(q.parts, combine=lambda values: values[0]) for q in together]
    assert all(q.picked for q in together) and not any(q.picked for q in one_by_one)
    condition = Condition.read("c", answers, together)
    assert condition == Condition.read("c", answers, one_by_one)
    assert (condition.n_replies, condition.n_unparsed) == (9, 2)
    assert condition.outcomes[:5] == [None, False, False, False, False]
    assert condition.answered.tolist() == [n % 5 > 0 for n in range(12)]


def test_a_reference_is_read_once_for_many_models() -> None:
    models = {name: Answers(name, name, {}) for name in "ABCR"}
    asked: list[str] = []

    def read(answers: Answers) -> list[Condition]:
        asked.append(answers.model)
        return [Condition(answers.model, [], 0, 0)]

    look_up = cache_recent(read)
    found = [look_up(models[name])[0].name for name in "ARBRCRA"]
    assert found == list("ARBRCRA") and asked == list("ARBCA")
    assert look_up(Answers("R", "R", {}))[0].name == "R" and asked[-1] == "R"

"""The comparison of two engines, on answers whose differences are known."""

from __future__ import annotations

import pytest

from flipbench.core.records import Probe, Response
from flipbench.evaluate.protocol.parity import parity
from flipbench.models.engine import Answers

PROBES = [Probe(item_id=f"i{n}", variant="v", prompt=f"{n}?", ask="choose") for n in range(4)]


def answers(name: str, rows: list[tuple[int, tuple[float, ...]] | None]) -> Answers:
    found = {
        probe.id: Response(
            probe_id=probe.id,
            model_fingerprint=name,
            model="m",
            choice=row[0],
            option_log_probs=row[1],
        )
        for probe, row in zip(PROBES, rows, strict=True)
        if row is not None
    }
    return Answers("m", name, found)


def test_letters_and_nats_are_compared_where_both_answered() -> None:
    served = answers("a", [(0, (-0.1, -3.0)), (1, (-2.0, -0.5)), (0, ()), (1, (-9.0, -0.1))])
    here = answers("b", [(0, (-0.1, -3.25)), (0, (-0.7, -0.75)), (0, (-1.0, -2.0)), None])
    found = parity(PROBES, served, here)
    assert (found.same.k, found.same.n, found.n_asked, found.n_scored) == (2, 3, 4, 2)
    assert found.largest == pytest.approx(1.3)
    assert str(found) == (
        "the same letter as transformers for 66.7 % (2/3) [9.4, 99.2] of 4 asked; largest"
        " difference 1.3 nats (2 questions)"
    )


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([None] * 4, "both answered none of 4 questions"),
        ([(0, ())] * 4, "(4/4) [39.8, 100.0]; log-probabilities were not compared"),
    ],
)
def test_what_could_not_be_compared_is_said(
    rows: list[tuple[int, tuple[float, ...]] | None], said: str
) -> None:
    assert said in str(parity(PROBES, answers("a", rows), answers("b", rows)))

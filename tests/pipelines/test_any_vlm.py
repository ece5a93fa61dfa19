"""A model of one's own: an object that keeps the `VLM` protocol, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from flipbench.core.errors import ConfigError
from flipbench.core.images import ImageStore
from flipbench.core.paired import Pair
from flipbench.core.records import Item, Probe, Response
from flipbench.models.protocols import Capability
from tests.fixtures.detection import examined, plan
from tests.fixtures.report_data import make_benchmark

pytestmark = pytest.mark.slow


class Knower:
    """A model of the `VLM` protocol and nothing else: it knows what it was given."""

    can: frozenset[Capability] = frozenset({"choose", "generate", "text_only"})

    def __init__(self, name: str, answers: dict[str, int], *can: Capability) -> None:
        self.name, self.fingerprint, self.answers = name, f"rule {name}", answers
        self.can = frozenset(can) or self.can

    def ask(self, probes: Sequence[Probe], images: ImageStore) -> list[Response | Exception]:
        return [
            Response(
                probe_id=probe.id,
                model_fingerprint=self.fingerprint,
                model=self.name,
                choice=self.answers.get(probe.item_id, 0),
            )
            for probe in probes
        ]


def sides(pair: Pair) -> tuple[Item, Item]:
    return pair.original, pair.perturbed


def test_any_object_that_answers_probes_is_a_model(tmp_path: Path) -> None:
    benchmark = make_benchmark(tmp_path / "pairs", 20)
    by_heart = {item.id: p.original.answer or 0 for p in benchmark.pairs for item in sides(p)}
    by_sight = {item.id: item.answer or 0 for p in benchmark.pairs for item in sides(p)}
    planned = plan(
        Knower("parrot", by_heart), benchmark, Knower("seer", by_sight),
        ["perturbation_gap", "min_k"], tmp_path / "run", progress=False,
    )  # fmt: skip
    assert planned.not_run == {
        "min_k": "it needs token_logprobs, which this model does not support"
    }
    result = examined(planned)
    assert (result.content.finding.model, result.verdict) == ("parrot", "contaminated")
    assert [report.n_failed for report in result.reports] == [0, 0]
    assert result.content.finding.gap.statistic == -1
    assert "Knower (rule parrot)" in result.page.read_text()


@pytest.mark.slow
def test_a_model_that_only_chooses_gets_a_verdict(tmp_path: Path) -> None:
    benchmark = make_benchmark(tmp_path / "pairs", 20)
    by_heart = {item.id: p.original.answer or 0 for p in benchmark.pairs for item in sides(p)}
    chooser = Knower("chooser", by_heart, "choose")
    planned = plan(chooser, benchmark, run=tmp_path / "run", judged_by="an oracle", progress=False)
    assert "perturbation_gap" in planned.configured.names
    assert "choice_confusion" in planned.configured.names
    assert planned.not_run["guided_prompting"].startswith("it needs generate")
    finding = examined(planned).content.finding
    assert finding.verdict == "contaminated" and finding.gap.n == 20


def test_a_model_that_neither_chooses_nor_writes_is_refused(tmp_path: Path) -> None:
    benchmark = make_benchmark(tmp_path / "pairs", 2)
    silent = Knower("silent", {}, "token_logprobs")
    with pytest.raises(ConfigError, match="silent can neither choose between options nor generate"):
        plan(silent, benchmark, run=tmp_path / "run")

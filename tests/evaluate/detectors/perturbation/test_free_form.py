"""Free-form replies: by exact match, and by a judge who is asked in both orders."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flipbench.config.chat import ChatSpec
from flipbench.core.images import ImageStore
from flipbench.core.paired import Pair, PairedBenchmark
from flipbench.core.records import Count, Item, Probe, Response, Score
from flipbench.core.run import Run
from flipbench.core.stage import run_stage
from flipbench.evaluate.detectors.perturbation.free_form import FreeFormGap
from flipbench.evaluate.statistics.paired import mcnemar_p
from flipbench.models.chat.answer_judge import (
    AnswerJudge,
    JudgedReply,
    Judgement,
    JudgeTask,
    read_choice,
    recorded_judge,
)
from flipbench.models.chat.api import ChatAPI
from flipbench.models.engine import Answers
from flipbench.prompting.prompts import PromptSettings
from tests.fixtures.openai_server import KEY, OpenAIServer
from tests.fixtures.options import QUIET

ASKING = PromptSettings()
Replies = Callable[[Item, str], str | None]


@pytest.fixture
def benchmark(make_item: Any) -> PairedBenchmark:
    """Return 12 free-form pairs: the answers to number i are "animal i" and "plant i"."""
    pairs = []
    for i in range(12):
        sides = [
            make_item(f"{i}", None, None, picture=f"{i} {answer}").model_copy(
                update={"id": "", "answer_text": f"{answer} {i}"}
            )
            for answer in ("animal", "plant")
        ]
        pairs.append(Pair(*(Item.model_validate(side.model_dump()) for side in sides)))
    return PairedBenchmark("free", tuple(pairs), ImageStore(Path("nowhere")))


def answers(benchmark: PairedBenchmark, reply: Replies, name: str = "model") -> Answers:
    items = {item.id: item for item in (*benchmark.originals, *benchmark.perturbed)}
    found = {}
    for probe in FreeFormGap().probes(benchmark, ASKING):
        text = reply(items[probe.item_id], probe.variant)
        if text is not None:
            found[probe.id] = Response(
                probe_id=probe.id, model_fingerprint=name, model=name, text=text
            )
    return Answers(name, f"fingerprint of {name}", found)


def scores(detector: FreeFormGap, benchmark: PairedBenchmark, *models: Answers) -> dict[str, Score]:
    return {score.rule: score for score in detector.score(benchmark, ASKING, *models)}


def sees(item: Item, side: str) -> str:
    return f"The {item.answer_text.upper()}."


def remembers(item: Item, side: str) -> str:
    return item.answer_text.replace("plant", "animal")


def test_both_versions_are_asked_as_open_questions(benchmark: PairedBenchmark) -> None:
    probes: list[Probe] = FreeFormGap().probes(benchmark, ASKING)
    assert len({probe.id for probe in probes}) == 24
    assert {(probe.ask, probe.n_options) for probe in probes} == {("generate", 0)}


def test_without_a_judge_a_reply_must_match_word_for_word(benchmark: PairedBenchmark) -> None:
    found = scores(FreeFormGap(), benchmark, answers(benchmark, sees))["mcnemar"]
    assert (found.verdict, found.statistic, found.n) == ("not_detected", 0.0, 12)
    found = scores(FreeFormGap(), benchmark, answers(benchmark, remembers))["mcnemar"]
    assert found.verdict == "contaminated" and found.statistic == -1.0
    assert found.p_value == pytest.approx(mcnemar_p(12, 0, "drop"))
    assert found.accuracies == {
        "original, exact match": Count(k=12, n=12),
        "perturbed, exact match": Count(k=0, n=12),
    }
    assert found.details["read_by"] == "exact match"
    assert any("no judge is configured (evaluate.judge)" in text for text in found.warnings)


def test_missing_replies_are_dropped_and_empty_ones_counted(benchmark: PairedBenchmark) -> None:
    def reply(item: Item, side: str) -> str | None:
        return {"animal 0": None, "animal 1": "  "}.get(item.answer_text, sees(item, side))

    found = scores(FreeFormGap(), benchmark, answers(benchmark, reply))["mcnemar"]
    assert (found.n, found.n_dropped) == (11, 1)
    assert found.unparsed == {"original, exact match": 1, "perturbed, exact match": 0}
    assert found.verdict == "inconclusive", "1 of 11 and 0 of 12 differ by more than 5 points"


def test_pairs_with_options_are_left_to_other_detectors(
    world: Any, benchmark: PairedBenchmark
) -> None:
    mixed = PairedBenchmark("m", (*benchmark.pairs, *world.benchmark.pairs), benchmark.images)
    found = scores(FreeFormGap(), mixed, answers(mixed, sees))["mcnemar"]
    assert (found.n, found.n_dropped) == (12, 40)
    for score in scores(FreeFormGap(), world.benchmark, answers(world.benchmark, sees)).values():
        assert (score.verdict, score.reason) == ("not_applicable", "no free-form pairs")
        assert not any("judge" in text for text in score.warnings)


def test_found_pairs_get_a_verdict_only_with_a_clean_model(benchmark: PairedBenchmark) -> None:
    found = PairedBenchmark("f", benchmark.pairs, benchmark.images, exchangeable=False)
    clean = answers(found, sees, "clean")
    rules = scores(FreeFormGap(), found, answers(found, remembers), clean)
    assert [rules[name].verdict for name in ("sign", "mcnemar")] == ["not_applicable"] * 2
    assert rules["relative"].verdict == "contaminated"
    assert rules["relative"].reference_fingerprint == clean.fingerprint


# ------------------------------------------------------------------------------------ the judge


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ('{"choice": "A"}', "A"),
        ('```json\n{"choice": "tie"}\n```', "tie"),
        ('{"choice": "C"}', "unread"),
        ('{"choice": "A", "why": "x"}', "unread"),
        ("B", "unread"),
        ("", "unread"),
    ],
)
def test_judge_replies_are_parsed(text: str, choice: str) -> None:
    assert read_choice(text) == choice


class Script:
    """A chat model made of a rule; it counts what it is asked."""

    def __init__(self, rule: Callable[[str], str]) -> None:
        self.name, self.settings, self.rule, self.asked = "rule", {"t": 0}, rule, 0

    def ask(self, requests: Any, images: ImageStore) -> Any:
        from flipbench.models.chat.messages import ChatReply

        self.asked += len(requests)
        return [ChatReply(self.rule(request.text), {"cost_usd": 0.5}) for request in requests]


def judged(script: Script, tasks: Any, run: Run) -> Callable[..., JudgedReply]:
    judge = AnswerJudge(script, ImageStore(Path("nowhere")))
    recorded = recorded_judge(judge, run.read(Judgement))  # read at the first look-up
    run_stage(judge, tasks, run, options=QUIET)
    return recorded


SAYS = {
    # what the judge says with the own answer first, and with it last
    ("A", "B"): JudgedReply(1.0),
    ("B", "A"): JudgedReply(0.0),
    ("A", "A"): JudgedReply(0.5),
    ("B", "B"): JudgedReply(0.5),
    ("tie", "tie"): JudgedReply(0.5),
    ("A", "tie"): JudgedReply(0.5),
    ("A", "what?"): JudgedReply(None, unread=True),
    ("what?", "what?"): JudgedReply(None, unread=True),
}


@pytest.mark.parametrize(("replies", "agreement"), SAYS.items())
def test_an_answer_scores_if_it_wins_in_both_orders(
    replies: tuple[str, str], agreement: JudgedReply, tmp_path: Path
) -> None:
    def rule(text: str) -> str:
        choice = replies[0] if "\nA:\n> own" in text else replies[1]
        return f'{{"choice": "{choice}"}}' if choice != "what?" else choice

    with Run(tmp_path) as run:
        script = Script(rule)
        tasks = JudgeTask.both_orders("Q?", "reply", "own", "other")
        read = judged(script, tasks, run)
        assert read("Q?", "reply", "own", "other") == agreement
        assert read("Q?", "never judged", "own", "other") == JudgedReply(None)
        judged(script, tasks, run)
        assert script.asked == 2, "a stored judgement is not asked for again"


def test_own_other_and_tied_answers_of_the_worked_example(make_item: Any, tmp_path: Path) -> None:
    """Three replies that agree with their own caption, one with the other, and a tie: .70."""
    verdicts = ["own", "own", "own", "other", "neither"]

    def rule(text: str) -> str:
        lines = dict(line.split(": ", 1) for line in text.replace(":\n> ", ": ").splitlines())
        picks = [letter for letter in "AB" if lines[letter].split()[0] in lines["Reply"].split()]
        return f'{{"choice": "{picks[0] if picks else "tie"}"}}'

    pairs = []
    for i in range(5):
        one, two = (
            Item.model_validate(
                make_item(str(i), None, None, picture=f"{i}{t}").model_dump()
                | {"id": "", "answer_text": f"{t} caption {i}"}
            )
            for t in ("own", "other")
        )
        pairs.append(Pair(one, two))
    benchmark = PairedBenchmark("captions", tuple(pairs), ImageStore(Path("nowhere")))
    model = answers(benchmark, lambda item, side: f"it is {verdicts[int(item.name)]} here")
    script, detector = Script(rule), FreeFormGap()
    with Run(tmp_path) as run:
        read = judged(script, detector.to_judge(benchmark, model), run)
    assert script.asked == 10, "the same reply to both versions is judged once"
    found = scores(FreeFormGap(judge=read), benchmark, model)["mcnemar"]
    right = found.accuracies
    assert right["original, judged"] == Count(k=7, n=10), "halves: .70 of 5"
    assert right["perturbed, judged"] == Count(k=3, n=10)
    assert found.statistic == pytest.approx(-0.4) and found.details["read_by"] == "judge"
    assert not any("exact match" in name or "no judge" in name for name in found.warnings)


def test_exact_replies_skip_the_judge_and_unread_verdicts_are_missing(
    benchmark: PairedBenchmark, tmp_path: Path
) -> None:
    def reply(item: Item, side: str) -> str:
        return "hm" if item.answer_text in ("animal 3", "plant 3") else sees(item, side)

    model, script = answers(benchmark, reply), Script(lambda text: "I cannot say")
    with Run(tmp_path) as run:
        read = judged(script, FreeFormGap().to_judge(benchmark, model), run)
    assert script.asked == 2
    found = scores(FreeFormGap(judge=read), benchmark, model)["mcnemar"]
    assert (found.n, found.n_dropped) == (11, 1)
    assert found.unparsed == {"original, judged": 1, "perturbed, judged": 1}
    unjudged = scores(FreeFormGap(judge=lambda *_: JudgedReply(None)), benchmark, model)["mcnemar"]
    assert unjudged.n == 11 and unjudged.unparsed["original, judged"] == 0


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenAIServer]:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with OpenAIServer() as server:
        yield server


def test_a_server_judges_and_its_cost_is_recorded(server: OpenAIServer, tmp_path: Path) -> None:
    server.reply = lambda body: '{"choice": "A"}'
    spec = ChatSpec(
        model="tiny-vlm", base_url=server.base_url, price_in=1.0, price_out=1.0, max_retries=0
    )
    judge = AnswerJudge(ChatAPI(spec), ImageStore(tmp_path / "images"))
    tasks = JudgeTask.both_orders("Q?", "r", "own", "other")
    with Run(tmp_path / "run") as run:
        assert run_stage(judge, tasks, run, options=QUIET).n_done == 2
        kept = list(run.read(Judgement))
    assert {j.choice for j in kept} == {"A"} and all(j.usage["cost_usd"] > 0 for j in kept)
    sent = server.chats()[0]
    assert "Question:\n> Q?\nReply:\n> r\nA:\n> " in str(sent["messages"][-1]["content"]).replace(
        "\\n", "\n"
    )
    assert sent["response_format"]["type"] == "json_schema"

"""The detectors that go by likelihood: models made of rules, and what each must refuse."""

from collections.abc import Callable
from typing import Any

import pytest

from flipbench.core.randomness import generator
from flipbench.core.records import Probe, Response, Score
from flipbench.evaluate.detectors.likelihood.codec import CoDeC, CoDeCAnswers, CoDeCTexts
from flipbench.evaluate.detectors.likelihood.loss import AnswerLoss
from flipbench.evaluate.detectors.likelihood.min_k import MinK, MinKAnswers
from flipbench.evaluate.detectors.likelihood.order_trend import OrderTrendDetector
from flipbench.evaluate.detectors.likelihood.shared_likelihood import SharedLikelihood, shards_of
from flipbench.evaluate.detectors.registry import DETECTORS
from flipbench.evaluate.scoring.conditions import Settings
from flipbench.models.engine import Answers
from flipbench.models.vlm.huggingface import HuggingFaceVLM
from flipbench.prompting.prompts import PromptSettings
from tests.fixtures.flipped import rendered_pairs

ASKING = PromptSettings()
RULES = {
    "shared_likelihood": ["sharded", "permutation", "relative"],
    "order_trend": ["paper", "controlled"],
    "codec_text": ["half", "relative"],
    "codec": ["half", "relative"],
    "codec_answer": ["half", "relative"],
    "loss": ["half", "relative"],
    "min_k": ["min_k", "min_k_plus_plus"],
    "min_k_answer": ["min_k", "min_k_plus_plus"],
}
NAMES = list(RULES)
SHARES = ["codec_text", "codec", "codec_answer", "loss", "min_k", "min_k_answer"]
N_TOKENS = 8
Policy = Callable[[Probe], float]


def noise(probe: Probe, name: str = "noise") -> float:
    return float(generator(0, probe.id, name).normal())


def scripted(detector: Any, benchmark: Any, policy: Policy, name: str = "model") -> Answers:
    """Answer every probe with policy(probe) nats for each of eight tokens, the start for none."""
    found = {}
    for probe in detector.probes(benchmark, ASKING):
        if probe.id in found:
            continue  # a random order may be the release order: the first label stays
        value, n = (0.0, 1) if is_start(probe) else (policy(probe), N_TOKENS)
        found[probe.id] = Response(
            probe_id=probe.id,
            model_fingerprint=name,
            model=name,
            log_likelihood=n * value,
            n_tokens=n,
            token_log_probs=(value,) * n,
            token_means=(-1.0,) * n,
            token_deviations=(0.5,) * n,
        )
    return Answers(name, f"fingerprint of {name}", found)


def is_start(probe: Probe) -> bool:
    """Return whether a probe is what precedes an item's text."""
    return probe.variant.startswith("start")


def by_rule(detector: Any, world: Any, *models: Answers) -> dict[str, Score]:
    return {s.rule: s for s in detector.score(world.benchmark, ASKING, *models)}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("silent", [True, False])
def test_a_model_without_log_probs_is_not_applicable(name: str, silent: bool, world: Any) -> None:
    detector = DETECTORS[name]
    probes = [] if silent else detector.probes(world.benchmark, ASKING)
    replies = {
        p.id: Response(probe_id=p.id, model_fingerprint="x", model="x", text="A") for p in probes
    }
    clean = scripted(detector, world.benchmark, noise, "clean")
    for score in by_rule(detector, world, Answers("chat", "x", replies), clean).values():
        assert (score.verdict, score.p_value, score.n) == ("not_applicable", None, 0)
        assert any("token_logprobs" in w and "chat" in w for w in score.warnings)


@pytest.mark.parametrize("name", NAMES)
def test_missing_and_infinite_likelihoods_are_dropped_and_counted(name: str, world: Any) -> None:
    detector = DETECTORS[name]
    whole = scripted(detector, world.benchmark, noise)
    lost = {
        p.id
        for p in detector.probes(world.benchmark, ASKING)
        if world_id(p, world) < 4 and p.variant != "start, alone"
    }
    infinite = {i: r.model_copy(update={"log_likelihood": float("-inf")}) for i, r in
                whole.responses.items() if i in lost}  # fmt: skip
    absent = {i: r for i, r in whole.responses.items() if i not in lost}
    for responses in (absent, whole.responses | infinite):
        for score in by_rule(detector, world, Answers("m", "f", responses), whole).values():
            assert (score.n, score.n_dropped) == (36, 4)
            assert any("4 of 40 items" in w for w in score.warnings)


def world_id(probe: Probe, world: Any) -> int:
    """Return the place of the (first) item of a probe in the benchmark."""
    pairs = world.benchmark.pairs
    return next(
        i for i, p in enumerate(pairs) if probe.item_id.startswith((p.original.id, p.perturbed.id))
    )


def test_a_model_that_knows_the_release_order_is_flagged(world: Any) -> None:
    def knows(probe: Probe) -> float:
        return noise(probe) + 3 * (probe.variant == "order-0")

    detector = SharedLikelihood(n_shards=10, n_orders=5)
    clean = scripted(detector, world.benchmark, noise, "clean")
    found = by_rule(detector, world, scripted(detector, world.benchmark, knows), clean)
    assert [s.verdict for s in found.values()] == ["contaminated"] * 3
    assert found["permutation"].p_value == 1 / 10_000 and found["sharded"].p_value < 1e-3
    assert found["sharded"].interval.low > 0 and found["sharded"].details["ddof"] == 1
    assert found["sharded"].details["p_ddof0"] < found["sharded"].details["p_ddof1"]
    unseen = by_rule(detector, world, clean)
    assert [unseen[r].verdict for r in ("sharded", "permutation")] == ["not_detected"] * 2


def test_release_order_and_grouped_files_are_noted(world: Any, make_world: Any) -> None:
    pairs = sorted(world.benchmark.pairs, key=lambda p: p.original.category)
    grouped = make_world.of(pairs)
    detector = SharedLikelihood(n_orders=1)
    score = by_rule(detector, grouped, scripted(detector, grouped.benchmark, noise))["sharded"]
    assert any("grouped by category" in w for w in score.warnings)
    plain = by_rule(detector, world, scripted(detector, world.benchmark, noise))["sharded"]
    assert not any("grouped" in w for w in plain.warnings)


def test_a_trend_the_reference_shares_is_an_artifact(
    world: Any,
) -> None:
    detector = OrderTrendDetector()

    def falls(probe: Probe) -> float:
        return -float(world_id(probe, world)) + noise(probe)

    model = scripted(detector, world.benchmark, falls)
    clean = scripted(detector, world.benchmark, noise, "clean")
    same = scripted(detector, world.benchmark, falls, "baseline")
    found = by_rule(detector, world, model, clean)
    assert [s.verdict for s in found.values()] == ["contaminated"] * 2
    assert found["paper"].statistic < -0.9
    unseen = by_rule(detector, world, clean, same)
    assert [s.verdict for s in unseen.values()] == ["not_detected"] * 2
    external_alarms = by_rule(detector, world, model, same)["controlled"]
    assert external_alarms.verdict == "inconclusive"
    assert external_alarms.reason == "the reference shows the trend too"
    assert any("false alarm suspected" in w for w in external_alarms.warnings)
    alone = by_rule(detector, world, model)
    assert (alone["controlled"].verdict, alone["controlled"].reason) == (
        "inconclusive", "no reference",
    )  # fmt: skip
    assert alone["controlled"].lacks_reference and alone["paper"].verdict == "contaminated"


@pytest.mark.parametrize("detector", [CoDeCTexts(), CoDeC(), CoDeCAnswers()])
def test_context_hurts_a_memoriser_and_helps_others(detector: CoDeC, world: Any) -> None:

    def disturbed(probe: Probe) -> float:
        return -0.1 - 2 * (probe.variant == "in context")

    def helped(probe: Probe) -> float:
        return -2.0 + (probe.variant == "in context")

    clean = scripted(detector, world.benchmark, helped, "clean")
    found = by_rule(detector, world, scripted(detector, world.benchmark, disturbed), clean)
    assert [s.verdict for s in found.values()] == ["contaminated"] * 2
    assert (found["half"].statistic, found["relative"].statistic) == (1.0, 1.0)
    unseen = by_rule(detector, world, clean, clean)
    assert [s.verdict for s in unseen.values()] == ["not_detected"] * 2
    assert (unseen["half"].statistic, unseen["relative"].statistic) == (0.0, 0.0)


def test_the_context_contains_only_other_items(world: Any) -> None:
    for detector in (CoDeCTexts(), CoDeC(), CoDeCAnswers()):
        probes = detector.probes(world.benchmark, ASKING)
        own = {item.id: item.question for item in world.benchmark.originals}
        behind = [p for p in probes if p.variant == "in context"]
        assert len(behind) == 80 and len({p.id for p in behind}) == 80
        for probe in behind:
            whole = probe.continuation if detector.scored == "text" else probe.prompt
            context = whole if detector.scored == "item" else whole.rsplit("\n\n", 1)[0]
            assert context.count("Answer: ") == 3
            assert own[probe.item_id] + "\n" not in context


def test_a_share_of_all_items_is_not_known_exactly(world: Any) -> None:
    """All 40 originals win: the interval is about Wilson's of 40/40, [91 %, 100 %]."""
    detector = AnswerLoss()
    policies = {"all win": lambda p: -1.0 * (p.variant != "original"), "all tie": lambda _: -1.0}
    models = [scripted(detector, world.benchmark, policy, n) for n, policy in policies.items()]
    found = by_rule(detector, world, *models)
    assert found["half"].statistic == 1.0 and found["relative"].statistic == 0.5
    assert 0.85 < found["half"].interval.low < 0.95 and found["half"].interval.high == 1.0
    assert found["relative"].interval.low < 0.5 < found["relative"].interval.high
    tied = by_rule(detector, world, models[1])["half"]
    assert tied.interval.low < 0.48 and tied.interval.high > 0.52


def test_a_text_of_few_tokens_has_no_min_k(world: Any) -> None:
    detector = MinKAnswers()
    whole = scripted(detector, world.benchmark, noise)
    short: dict[str, Any] = {"n_tokens": 2}
    short |= {key: (-1.0, -1.0) for key in ("token_log_probs", "token_means", "token_deviations")}
    few = {p.id for p in detector.probes(world.benchmark, ASKING) if world_id(p, world) < 30}
    cut = {i: r.model_copy(update=short) if i in few else r for i, r in whole.responses.items()}
    score = by_rule(detector, world, Answers("m", "f", cut), whole)["min_k"]
    assert (score.n, score.n_dropped) == (10, 30)
    assert any("30 of 40 items are left out" in w for w in score.warnings)
    assert not any("retry" in w for w in score.warnings)
    cut = {i: r.model_copy(update=short) for i, r in whole.responses.items()}
    score = by_rule(detector, world, Answers("m", "f", cut), whole)["min_k"]
    assert (score.verdict, score.n) == ("not_applicable", 0)
    assert any("fewer than 8 tokens" in w for w in score.warnings)


def test_without_token_log_probs_only_the_loss_applies(world: Any) -> None:
    detector = MinK()
    loss = scripted(AnswerLoss(), world.benchmark, noise)
    whole = scripted(detector, world.benchmark, noise)
    none: dict[str, Any] = {"token_log_probs": (), "token_means": (), "token_deviations": ()}
    sums = {i: r.model_copy(update=none) for i, r in whole.responses.items()}
    found = by_rule(detector, world, Answers("server", "s", sums), whole)
    sums = {i: r.model_copy(update=none) for i, r in loss.responses.items()}
    half = by_rule(AnswerLoss(), world, Answers("server", "s", sums), loss)["half"]
    assert (half.verdict, half.n) == ("not_detected", 40)
    for rule in ("min_k", "min_k_plus_plus"):
        assert found[rule].verdict == "not_applicable"
        assert any("by token" in w for w in found[rule].warnings)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHARES)
def test_the_false_alarm_rate_stays_at_its_level(name: str, make_world: Any) -> None:
    """Under noise alone, rule 'relative' flags about alpha of models, hardly more."""
    world = make_world.make(n=30)
    detector = DETECTORS[name]
    detector = type(detector)(settings=Settings(n_bootstrap=20, n_permutations=199))
    p_values = []
    for number in range(60):
        one, two = (
            scripted(detector, world.benchmark, lambda p, n=f"{number}{s}": noise(p, n), s)
            for s in ("model", "clean")
        )
        score = list(by_rule(detector, world, one, two).values())[-1]
        p_values.append(score.p_value)
    assert sum(p <= 0.05 for p in p_values) <= 8  # P[Binomial(60, 0.05) > 8] < 0.005
    assert 0.35 < sum(p_values) / 60 < 0.75  # a step function: its mean lies above 1/2


def test_long_questions_about_images_have_their_scores(
    tiny_vlm: Any, shapes_items: Any, shapes_store: Any
) -> None:
    vlm: HuggingFaceVLM = tiny_vlm("llava")
    long = "Look at the picture and tell me this. " * 40
    asked = [
        type(item).model_validate(
            item.model_dump() | {"id": "", "question": f"{long}{item.question}"}
        )
        for item in shapes_items[:2]
    ]
    benchmark = rendered_pairs(asked, shapes_store)
    for detector, rule in ((MinK(), "min_k_plus_plus"), (DETECTORS["max_renyi"], "question")):
        replies = vlm.ask(detector.probes(benchmark, ASKING), shapes_store)
        assert max(reply.n_tokens or 0 for reply in replies) >= 400
        answers = Answers(vlm.name, vlm.fingerprint, {r.probe_id: r for r in replies})
        scores = {s.rule: s for s in detector.score(benchmark, ASKING, answers, answers)}
        assert (scores[rule].n, scores[rule].n_dropped) == (2, 0)
        none = {"token_log_probs": (), "token_means": (), "token_deviations": ()}
        last = replies[-1].model_copy(update=none)
        bare = {**answers.responses, last.probe_id: last}
        some = Answers(vlm.name, vlm.fingerprint, bare)
        scores = {s.rule: s for s in detector.score(benchmark, ASKING, some, answers)}
        assert (scores[rule].n, scores[rule].n_dropped) == (1, 1)
        assert any("reference_ratio needs only" in w for w in scores[rule].warnings)
        assert not any("retry" in w for w in scores[rule].warnings)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_real_checkpoint_answers_the_probes(
    name: str, tiny_vlm: Any, shapes_items: Any, shapes_store: Any
) -> None:
    benchmark = rendered_pairs(shapes_items[:8], shapes_store)
    vlm: HuggingFaceVLM = tiny_vlm("llava")
    detector = DETECTORS[name]
    if name == "shared_likelihood":
        detector = SharedLikelihood(n_shards=4, n_orders=2)
    probes = list({p.id: p for p in detector.probes(benchmark, ASKING)}.values())
    replies = {r.probe_id: r for r in vlm.ask(probes, shapes_store)}
    answers = Answers(vlm.name, vlm.fingerprint, replies)
    for score in detector.score(benchmark, ASKING, answers, answers):
        if name == "min_k_answer":  # the answers of this world are short
            assert (score.verdict, score.n) == ("not_applicable", 0)
            assert any("8 of 8 items are left out" in w for w in score.warnings)
            continue
        assert score.n == 8 and score.n_dropped == 0
        assert score.verdict in ("contaminated", "not_detected", "inconclusive")
        assert score.statistic is not None and score.p_value is not None


def test_a_shard_has_at_least_four_items_where_possible(world: Any, make_world: Any) -> None:
    for n, sizes in ((3, [3]), (5, [3, 2]), (8, [4, 4]), (40, [4] * 10), (500, [10] * 50)):
        items = make_world.make(n=n).benchmark.originals
        shards = shards_of(items, 50)
        assert [len(shard) for shard in shards] == sizes
        assert [item.id for shard in shards for item in shard] == [item.id for item in items]
    probes = SharedLikelihood(n_orders=3).probes(world.benchmark, ASKING)
    assert len(probes) == 10 * 4
    for start in range(0, 40, 4):  # the same lines in another order
        assert (
            len({tuple(sorted(p.continuation.split("\n"))) for p in probes[start : start + 4]}) == 1
        )

"""A simulated benchmark, and models made of rules that answer its probes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import pytest

from flipbench.core.images import ImageStore
from flipbench.core.paired import Pair, PairedBenchmark
from flipbench.core.randomness import generator
from flipbench.core.records import ImageRef, Item, Probe, Response, Score, Source
from flipbench.evaluate.protocol.detector import Detector
from flipbench.models.engine import Answers
from flipbench.prompting.prompts import PromptSettings
from flipbench.shapes.benchmark import shapes_vqa
from tests.fixtures.flipped import rendered_pairs

Policy = Callable[[Probe], int]
ASKING = PromptSettings()


def image(name: str) -> ImageRef:
    digest = sha256(name.encode()).hexdigest()
    return ImageRef(sha256=digest, format="png", width=8, height=8)


def item(
    name: str,
    options: Sequence[str] | None,
    answer: int | None,
    *,
    picture: str = "",
    category: str = "",
    group: str = "",
    benchmark: str = "simulated",
) -> Item:
    return Item(
        benchmark=benchmark,
        name=name,
        images=(image(picture or name),),
        question=f"Question {name}?",
        options=None if options is None else tuple(options),
        answer=answer,
        answer_text="free" if options is None or answer is None else options[answer],
        category=category,
        group=group,
        source=Source(dataset=benchmark),
    )


def pair(original: Item, new_answer: int) -> Pair:
    assert original.options is not None
    changed = original.model_dump() | {
        "id": "",
        "images": (image(f"perturbed {original.name}"),),
        "answer": new_answer,
        "answer_text": original.options[new_answer],
    }
    return Pair(original, Item.model_validate(changed))


@dataclass(frozen=True)
class World:
    """A benchmark whose right answers are distinctive strings, and what is true of each image."""

    benchmark: PairedBenchmark

    @classmethod
    def make(cls, n: int = 40, k: int = 4) -> "World":
        pairs = []
        for number in range(n):
            gold = number % k
            options = [f"wrong {number}-{slot}" for slot in range(k)]
            options[gold] = f"thing {number}"
            original = item(str(number), options, gold, category="odd" if number % 2 else "even")
            pairs.append(pair(original, (gold + 1 + number % (k - 1)) % k))
        return cls.of(pairs)

    @classmethod
    def of(cls, pairs: Sequence[Pair]) -> "World":
        return cls(PairedBenchmark("simulated", tuple(pairs), ImageStore(Path("nowhere"))))

    @property
    def truth(self) -> dict[str, str]:
        every = [*self.benchmark.originals, *self.benchmark.perturbed]
        return {i.images[0].sha256: i.answer_text for i in every}

    def seer(self, skill: float = 1.0, name: str = "seer") -> Policy:
        """Sees what is there on a share of the images; guesses otherwise, and without one."""
        truth = self.truth

        def policy(probe: Probe) -> int:
            sha = probe.images[0].sha256 if probe.images else ""
            if sha and generator(0, sha, name).random() < skill:
                return probe.options.index(truth[sha])
            return int(generator(0, probe.id, name).integers(probe.n_options))

        return policy

    def memoriser(self) -> Policy:
        """Knows the right answer of every original item, whatever the image."""
        known = {i.id: i.answer_text for i in self.benchmark.originals}
        known |= {p.perturbed.id: p.original.answer_text for p in self.benchmark.pairs}
        return lambda probe: probe.options.index(known[probe.item_id])

    def string_memoriser(self) -> Policy:
        """Knows the set of all right answers' strings, and guesses among those it meets."""
        known = {i.answer_text for i in self.benchmark.originals}

        def policy(probe: Probe) -> int:
            met = [slot for slot, text in enumerate(probe.options) if text in known]
            return int(generator(0, probe.id, "strings").choice(met)) if met else 0

        return policy

    def ask(
        self,
        detector: Detector,
        policy: Policy,
        name: str = "model",
        skip: Callable[[Probe], bool] = lambda probe: False,
    ) -> Answers:
        probes = {p.id: p for p in detector.probes(self.benchmark, ASKING) if not skip(p)}
        return Answers(
            name,
            f"fingerprint of {name}",
            {
                p.id: Response(probe_id=p.id, model_fingerprint=name, model=name, choice=policy(p))
                for p in probes.values()
            },
        )

    def scores(
        self, detector: Detector, answers: Answers, reference: Answers | None = None
    ) -> dict[str, Score]:
        found = detector.score(self.benchmark, ASKING, answers, reference)
        assert all(s.benchmark_id == self.benchmark.id for s in found)
        return {score.rule: score for score in found}


@pytest.fixture
def world() -> World:
    return World.make()


@pytest.fixture
def make_world() -> type[World]:
    return World


@pytest.fixture
def make_item() -> Callable[..., Item]:
    return item


@pytest.fixture
def make_pair() -> Callable[..., Pair]:
    return pair


@pytest.fixture(scope="session")
def shapes_benchmark(tmp_path_factory: pytest.TempPathFactory) -> PairedBenchmark:
    """Return 30 pairs of the embedded world, with their pictures."""
    store = ImageStore(tmp_path_factory.mktemp("pairs") / "images")
    return rendered_pairs(shapes_vqa(store, 30), store)


@pytest.fixture
def replies() -> Callable[..., Answers]:
    """Return answers that a function from a probe to a text, a choice or greedy tokens gives."""

    def ask(
        detector: Detector,
        benchmark: PairedBenchmark,
        policy: Callable[[Probe], str | int | list[bool] | None],
        name: str = "model",
    ) -> Answers:
        names = {str: "text", int: "choice", list: "is_greedy"}
        found = {}
        for probe in detector.probes(benchmark, ASKING):
            answer = policy(probe)
            if answer is not None:
                fields = {names[type(answer)]: answer}
                found[probe.id] = Response(
                    probe_id=probe.id, model_fingerprint=name, model=name, **fields
                )
        return Answers(name, f"fingerprint of {name}", found)

    return ask

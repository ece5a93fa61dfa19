"""In which order probes are asked: what a batch can share stands together, padding stays small."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from flipbench.core.images import ImageStore
from flipbench.core.records import FIRST_REPLY, ImageRef, Probe, Response
from flipbench.core.run import Run
from flipbench.models.engine import answers_of, ask, batching_key
from flipbench.models.protocols import Capability, needs_of
from tests.fixtures.options import QUIET


def picture(number: int) -> ImageRef:
    return ImageRef(sha256=f"{number:064x}", format="png", width=8, height=8)


def probe(image: int | None, prompt: str, continuation: str = "") -> Probe:
    return Probe(
        item_id=f"{image}",
        variant="v",
        images=() if image is None else (picture(image),),
        prompt=prompt,
        ask="score" if continuation else "generate",
        continuation=continuation,
        max_new_tokens=0 if continuation else 8,
    )


def test_all_kinds_of_probe_about_one_image_stand_together() -> None:
    replies = ("", "yes", "no")
    probes = [
        probe(n, "word " * (4 + 90 * k), reply)
        for k in range(2)
        for n in range(6)
        for reply in replies
    ]
    Random(0).shuffle(probes)
    asked = [int(p.item_id) for p in sorted(probes, key=batching_key)]
    assert asked == [n for n in range(6) for _ in range(6)]


def test_long_texts_are_not_padded_into_batches_of_short_ones() -> None:
    probes = [probe(None, "", "word " * (300 if n % 2 else 10 + n % 3)) for n in range(64)]
    probes.sort(key=batching_key)
    for batch in (probes[:32], probes[32:]):
        lengths = [len(p.prompt) + len(p.continuation) for p in batch]
        assert max(lengths) < 2 * min(lengths)


class Echo:
    """Repeats the last line of a prompt in capitals, and refuses prompts with "broken"."""

    name, fingerprint = "echo", "weights of echo"
    can: frozenset[Capability] = frozenset({"generate", "text_only"})

    def __init__(self) -> None:
        self.prompts: list[str] = []

    def ask(self, probes: Sequence[Probe], images: ImageStore) -> list[Response | Exception]:
        self.prompts += [p.prompt for p in probes]
        return [self._answer(p) for p in probes]

    def _answer(self, asked: Probe) -> Response | Exception:
        if "broken" in asked.prompt:
            return ValueError("broken")
        text = asked.prompt.splitlines()[-1].upper()
        names: dict[str, Any] = {"model": self.name, "model_fingerprint": self.fingerprint}
        return Response(probe_id=asked.id, text=text, **names)


def follow(first: Probe) -> Probe:
    prompt = f"Again?\n<{FIRST_REPLY}>"
    return Probe(**{**first.__dict__, "id": "", "prompt": prompt, "follows": first.id})


def test_a_probe_that_follows_another_quotes_its_reply(tmp_path: Path) -> None:
    firsts = [probe(None, "one"), probe(None, "two"), probe(None, "broken")]
    asked = [*(follow(first) for first in firsts), *firsts]
    run, model = Run(tmp_path), Echo()
    report = ask(asked, model, run, run.images, QUIET)
    assert (report.n_done, report.n_failed) == (4, 2)
    assert "reply that it quotes is missing" in report.failures[-1].message
    answers = answers_of("echo", model.fingerprint, run)
    replies = [answers.to(p) for p in asked]
    assert [r and r.text for r in replies] == ["<ONE>", "<TWO>", None, "ONE", "TWO", None]
    assert sorted(model.prompts)[:2] == ["Again?\n<ONE>", "Again?\n<TWO>"]
    again = ask(asked, model, run, run.images, QUIET)
    assert (again.n_skipped, again.n_done, again.n_failed) == (4, 0, 2)


def test_sampling_and_statistics_are_capabilities() -> None:
    plain = probe(1, "one")
    sampled = plain.model_copy(update={"temperature": 0.8})
    counted = plain.model_copy(update={"token_statistics": True})
    assert needs_of(sampled) - needs_of(plain) == {"sample"}
    assert needs_of(counted) - needs_of(plain) == {"reply_logprobs"}

"""Speed of all detectors through the engine, compared with plain ``generate`` for each one.

    flipbench filter configs/shapes.yaml
    python benchmarks/detector_suite.py runs/shapes [--pairs 12] [--repeats 2] [--low bfloat16]

Baseline: one detector after another, one probe at a time, as in usual kits: image and text through
the processor, ``generate`` for answers (up to 16 tokens for a letter), one forward pass for the
likelihood of a given text. The engine queries the union of all probes, each once, in batches, and
reads what they have in common once; "nothing shared" does without the latter. All methods alternate
in one process. The table gives seconds (median; CPU time without a GPU, since other work on the
machine hardly changes it), the speed-up over the baseline of the same repeat (median and range),
and how many letters and replies equal the baseline's. Tokens are those that the language model
reads, padding included; beside them is the least number that any engine must read for the same
questions, each asked once. Below is how much sharing changes, and with ``--low`` a lower precision.

``--image-tokens 576`` uses a model of LLaVA's class with random weights and that many tokens per
image, like LLaVA-1.5; the shipped ones have 16.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlavaForConditionalGeneration

from flipbench.api import load_pairs
from flipbench.core.images import ImageStore
from flipbench.core.rates import Rate
from flipbench.core.records import Probe, Response
from flipbench.evaluate.detectors.registry import DETECTORS
from flipbench.models.engine import batching_key
from flipbench.models.vlm.huggingface import HuggingFaceVLM
from flipbench.models.vlm.token_trees import prefix_lengths, token_trees
from flipbench.prompting.parsing import parse_choice
from flipbench.prompting.prompts import LETTERS, PromptSettings
from flipbench.reporting.formats import rate

PATCH = 14
Answer = Response | Exception | None


def with_image_tokens(n: int, folder: Path) -> Path:
    """Save an untrained LLaVA like the shipped one, with ``n`` tokens per image."""
    side = round(n**0.5)
    shipped = HuggingFaceVLM("shapes:llava")
    config = copy.deepcopy(shipped.model.config)
    config.vision_config.image_size, config.vision_config.patch_size = side * PATCH, PATCH
    config.image_seq_length = side * side
    config.text_config.max_position_embeddings = 4096
    processor = shipped.processor
    processor.patch_size = PATCH
    processor.image_processor.size = {"shortest_edge": side * PATCH}
    processor.image_processor.crop_size = {"height": side * PATCH, "width": side * PATCH}
    LlavaForConditionalGeneration(config).save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


@torch.inference_mode()
def plain(vlm: HuggingFaceVLM, probe: Probe, images: ImageStore) -> tuple[int, str]:
    """Query a single probe; return the chosen option and the text."""
    (task,) = vlm._tasks([probe])
    inputs = vlm._inputs([task], images)
    if probe.ask in ("score", "score_text"):
        targets = torch.tensor(task.request.targets)
        log_p = vlm.model(**inputs).logits[0, -len(targets) :].log_softmax(-1)
        log_p.gather(1, targets.to(log_p.device)[:, None]).sum().item()
        return -1, ""
    n = 16 if probe.ask == "choose" else probe.max_new_tokens
    ids = vlm.model.generate(**inputs, max_new_tokens=n, do_sample=False)
    text = vlm.tokenizer.decode(ids[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    if probe.ask == "generate":
        return -1, text
    return parse_choice(text, probe.options, probe.labels or LETTERS), ""


def main() -> None:
    """Time all methods and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("benchmark", type=Path)
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--model", default="shapes:llava")
    parser.add_argument("--image-tokens", type=int)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--low", choices=("bfloat16", "float16"), help="also in low precision")
    parser.add_argument("--peak", type=float, help="the chip's peak TFLOP/s, to print our share")
    parser.add_argument("--repeats", type=int, default=2)
    args = parser.parse_args()
    clock = time.perf_counter if torch.cuda.is_available() else time.process_time
    benchmark = load_pairs(args.benchmark)
    with tempfile.TemporaryDirectory() as folder:
        benchmark = replace(benchmark, pairs=benchmark.pairs[: args.pairs])
        path = args.model
        if args.image_tokens:
            path = str(with_image_tokens(args.image_tokens, Path(folder) / "model"))
        vlm = HuggingFaceVLM(path, dtype=args.dtype)
        unshared = copy.copy(vlm)  # the same weights in memory
        unshared._prefiller = None
        probes: list[Probe] = []
        for detector in DETECTORS.values():
            own = {p.id: p for p in detector.probes(benchmark, PromptSettings())}
            # no kit has hidden states; samples differ, and a second question needs the first reply
            probes += [
                p for p in own.values() if not (p.ask == "embed" or p.temperature or p.follows)
            ]
        distinct = sorted({probe.id: probe for probe in probes}.values(), key=batching_key)
        store = benchmark.images

        def engine(model: HuggingFaceVLM, probes: Sequence[Probe]) -> dict[str, Answer]:
            by_id: dict[str, Answer] = {}
            for start in range(0, len(probes), args.batch_size):
                batch = probes[start : start + args.batch_size]
                answers = model.ask(batch, store)
                by_id |= {p.id: a for p, a in zip(batch, answers, strict=True)}
            return by_id

        methods: dict[str, Callable[[], dict[str, Answer]]] = {
            "the engine": lambda: engine(vlm, distinct),
            "the engine, nothing shared": lambda: engine(unshared, distinct),
        }
        if args.low:
            low = HuggingFaceVLM(path, dtype=args.low)
            methods[f"the engine, {args.low}"] = lambda: engine(low, distinct)
        seconds: dict[str, list[float]] = {"baseline": [], **{name: [] for name in methods}}
        n_tokens: dict[str, int] = {}
        expected: dict[str, tuple[int, str]] = {}
        same: dict[str, str] = {}
        given: dict[str, dict[str, Answer]] = {}
        with FlopCounterMode(display=False) as counted:  # and warm up
            exact = engine(vlm, distinct)
        for _ in range(args.repeats):
            with counting(unshared) as count:
                start = clock()
                expected |= {probe.id: plain(unshared, probe, store) for probe in probes}
                seconds["baseline"].append(clock() - start)
            n_tokens["baseline"] = count[0]
            for name, answer_all in methods.items():
                model = low if args.low and name.endswith(args.low) else vlm
                with counting(model) as count:
                    start = clock()
                    answers = answer_all()
                    seconds[name].append(clock() - start)
                n_tokens[name] = count[0]
                same[name], given[name] = agreement(distinct, expected, answers), answers
        least = least_tokens(vlm, distinct, exact, store)
    print(
        f"{path if not args.image_tokens else 'LLaVA, random weights'}, {args.pairs} pairs,", end=""
    )
    print(f" {len(probes):,} probes of {len(DETECTORS)} detectors, {len(distinct):,} distinct\n")
    print("| method | seconds | speed-up | tokens | least / tokens, % | same answers |")
    print("|---|---:|---:|---:|---:|---:|")
    for name, took in seconds.items():
        ratios = [a / b for a, b in zip(seconds["baseline"], took, strict=True)]
        print(
            f"| {name} | {statistics.median(took):.1f} | {statistics.median(ratios):.1f}"
            f" ({min(ratios):.1f}–{max(ratios):.1f}) | {n_tokens[name]:,}"
            f" | {100 * least / n_tokens[name]:.1f} | {same.get(name, '')} |"
        )
    print(f"\nleast tokens: {least:,}; the baseline's / the engine's: ", end="")
    print(f"{n_tokens['baseline'] / n_tokens['the engine']:.2f}")
    for name, reference in (
        ("the engine", "the engine, nothing shared"),
        (f"the engine, {args.low}", "the engine"),
    ):
        if name in given:
            print(f"{name}, against {reference}: ", end="")
            print(changes(distinct, given[reference], given[name]))
    reached = counted.get_total_flops() / statistics.median(seconds["the engine"]) / 1e12
    share = f", {reached / args.peak:.1%} of {args.peak:g}" if args.peak else ""
    print(f"the engine: {reached:.3g} TFLOP/s in products and attention{share}")


@contextlib.contextmanager
def counting(vlm: HuggingFaceVLM) -> Iterator[list[int]]:
    """Count the tokens that the language model reads, padding included; nothing is kept before."""
    if vlm._prefiller:
        vlm._prefiller.forget()
    count = [0]

    def add(_: object, args: object, inputs: dict[str, torch.Tensor]) -> None:
        rows, width = inputs["inputs_embeds"].shape[:2]
        count[0] += rows * width

    handle = vlm.model.get_decoder().register_forward_pre_hook(add, with_kwargs=True)
    try:
        yield count
    finally:
        handle.remove()


def least_tokens(
    vlm: HuggingFaceVLM, probes: Sequence[Probe], answers: dict[str, Answer], images: ImageStore
) -> int:
    """Return how many tokens any exact engine must read, so as to answer the probes once each.

    Each distinct beginning of a prompt with its reply is read once, also if only the text before
    different pictures is the same; the last token of a reply need not be read. Tokens of replies
    are those of their texts.
    """
    token = vlm.model.config.image_token_id
    sequences, places = {}, dict[str, int]()
    for row, task in enumerate(vlm._tasks(probes)):
        probe, request = task.probe, task.request
        ids, answer = [*request.prompt, *request.suffix], answers[probe.id]
        if request.n_new and isinstance(answer, Response):
            reply = vlm.conversation.reply_ids([answer.text])[0] if answer.text else []
            ids += reply[: request.n_new - 1]
        if probe.images:
            expanded = vlm._encode([task], images)["input_ids"][0].tolist()
            n_head, n_kept = prefix_lengths(expanded, request.prompt, token)
            numbers = [places.setdefault(image.sha256, -1 - len(places)) for image in probe.images]
            seen, before = list[int](), 0
            for i in expanded[:n_kept]:  # an image token stands for its picture
                before += i == token and (not seen or seen[-1] >= 0)
                seen.append(numbers[before - 1] if i == token else i)
            ids = seen + ids[n_head:]
        sequences[row] = ids
    return sum(len(tree.tokens) for tree in token_trees(sequences, 2**62))


def changes(probes: Sequence[Probe], exact: dict[str, Answer], answers: dict[str, Answer]) -> str:
    """Return the shares of changed letters and replies, and the largest difference in nats."""
    parts, largest = [], 0.0
    for probe in probes:
        a, b = exact[probe.id], answers[probe.id]
        if isinstance(a, Response) and isinstance(b, Response):
            for name in ("option_log_probs", "token_log_probs"):
                values = zip(getattr(a, name), getattr(b, name), strict=True)
                largest = max([largest, *(abs(x - y) for x, y in values)])
    for ask, what in (("choose", "letters"), ("generate", "replies")):
        pairs = [(exact[p.id], answers[p.id]) for p in probes if p.ask == ask]
        n = sum(
            not (isinstance(a, Response) and isinstance(b, Response))
            or (a.choice, a.text) != (b.choice, b.text)
            for a, b in pairs
        )
        parts.append(f"{rate(Rate.exact(n, len(pairs)))} of {what} changed")
    return ", ".join([*parts, f"log-probabilities by at most {largest:.2g}"])


def agreement(
    probes: Sequence[Probe], expected: dict[str, tuple[int, str]], answers: dict[str, Answer]
) -> str:
    """Return how many letters and replies equal the baseline's; failures count as different."""
    n_same = {"choose": 0, "generate": 0}
    for probe in probes:
        answer, (choice, text) = answers[probe.id], expected[probe.id]
        if probe.ask in n_same and isinstance(answer, Response):
            equal = answer.choice == choice if probe.ask == "choose" else answer.text == text
            n_same[probe.ask] += equal
    counts = [f"{n}/{sum(p.ask == ask for p in probes)}" for ask, n in n_same.items()]
    return ", ".join(counts)


if __name__ == "__main__":
    main()

"""What servers that misbehave do to the clients that ask them.

    python -m benchmarks.robustness.servers [--seed 0] [--n 240] [--client model] [--retries 1]

A server answers each request with a fault drawn at random; one request in ten gets a good reply.
The client is the one of captions and judges ("chat"), or a model under test behind a server
("model"), which is asked to write, to choose a letter, and for the likelihood of a text. With
retries, only the first attempt meets the fault: those that another attempt may mend must end in the
good answer. "Lost" is a fault taken for an answer, a good reply refused, any other error, the key
in a message, and what takes longer than twice the time-out for each attempt; on a machine that is
busy, ``--patience`` allows more.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.robustness.faults import FAULTS, KEY, LARGE, RETRIED, TEXT, TIMEOUT, FaultServer
from flipbench.config.chat import ChatSpec
from flipbench.config.served_model import ServedModelConfig
from flipbench.core.errors import FlipbenchError
from flipbench.core.images import ImageStore
from flipbench.core.records import Probe
from flipbench.models.chat.api import ChatAPI
from flipbench.models.chat.messages import ChatReply, ChatRequest
from flipbench.models.vlm.served import APIVLM

Ask = Callable[[int], Any]
"""Returns "good" for the good answer to a request, by number, or what came back."""
IMAGES = ImageStore(Path("nowhere"))
KINDS = ("generate", "choose", "score")


def chat(settings: dict[str, Any]) -> Ask:
    api = ChatAPI(ChatSpec(**settings))
    api.answered = True

    def ask(number: int) -> Any:
        (reply,) = api.ask([ChatRequest("Describe.", f"number {number}.")], IMAGES)
        return "good" if isinstance(reply, ChatReply) and reply.text == TEXT else reply

    assert ask(-1) == "good"  # imports what it needs
    return ask


def model(settings: dict[str, Any]) -> Ask:
    vlm = APIVLM(ServedModelConfig(**settings))
    missing = {"generate", "choose", "token_logprobs"} - vlm.can
    assert not missing, missing
    good: dict[str, Any] = {}

    def ask(number: int, kind: str = "") -> Any:
        kind = kind or KINDS[number % len(KINDS)]
        fields: dict[str, Any] = {"item_id": "i", "variant": "original", "ask": kind}
        if kind == "score":
            fields |= {"continuation": "yes"}
        else:
            fields |= {"options": ("a", "b", "c", "d"), "n_options": 4}
        (reply,) = vlm.ask([Probe(prompt=f"number {number}.", **fields)], IMAGES)
        if isinstance(reply, Exception):
            return reply
        fields = reply.model_dump(exclude={"id", "probe_id"})
        expected = good.setdefault(kind, fields)
        if not fields["option_log_probs"]:  # unknown if the server leaves out a letter
            expected = expected | {"option_log_probs": ()}
        return "good" if fields == expected else reply

    for kind in KINDS:
        assert ask(-1, kind) == "good"
    return ask


def outcome(ask: Ask, number: int, fault: str, retries: int = 0, patience: float = 2.0) -> str:
    start = time.monotonic()
    try:
        reply = ask(number)
    except Exception as error:
        print(f"{fault}: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr)
        return "lost"
    seconds = time.monotonic() - start
    in_time = seconds < patience * TIMEOUT * (1 + retries) + 2 * retries
    mended = fault == "good" or (retries and fault in RETRIED)
    may_be_good = fault == "JSON of an odd form" or (retries and fault in LARGE)
    if reply == "good":
        ended = "answered" if mended or may_be_good else "lost"
    else:
        is_clean = isinstance(reply, FlipbenchError) and KEY not in str(reply)
        ended = "failed" if is_clean and not mended else "lost"
    if ended == "lost" or not in_time:
        print(f"{fault}: {seconds:.1f} s, {reply!r}", file=sys.stderr)
        return "lost"
    return ended


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--n", type=int, default=240)
    parser.add_argument("--client", choices=("chat", "model"), default="chat")
    parser.add_argument("--retries", type=int, default=0)
    parser.add_argument("--patience", type=float, default=2.0)
    args = parser.parse_args()
    logging.disable()
    rng = np.random.default_rng(args.seed)
    faults = {
        number: "good" if number % 10 == 0 else str(rng.choice(FAULTS)) for number in range(args.n)
    }
    os.environ |= {"FLIPBENCH_TEST_KEY": KEY, "NO_PROXY": "127.0.0.1"}
    server = FaultServer(faults, args.seed, n_faulty=1 if args.retries else 10**9)
    settings: dict[str, Any] = {"model": "m", "base_url": server.base_url, "timeout": TIMEOUT}
    settings |= {"max_retries": args.retries, "api_key_env": "FLIPBENCH_TEST_KEY"}
    ask = (chat if args.client == "chat" else model)(settings)
    counts: dict[str, Counter[str]] = {fault: Counter() for fault in ("good", *FAULTS)}
    for number, fault in faults.items():
        counts[fault][outcome(ask, number, fault, args.retries, args.patience)] += 1
    print("| reply | requests | answered | failed | lost |\n|---|---:|---:|---:|---:|")
    for fault, found in (counts | {"all": sum(counts.values(), Counter())}).items():
        cells = [found.total(), *(found[key] for key in ("answered", "failed", "lost"))]
        print(f"| {fault} | {' | '.join(map(str, cells))} |")
    return int(any(found["lost"] for found in counts.values()))


if __name__ == "__main__":
    sys.exit(main())

"""Other people's files, servers and clients against flipbench, by class of attack.

    python -m benchmarks.robustness.attacks [--only CLASS] [--each N] [--out FILE]
    python -m benchmarks.robustness.attacks --write docs/results/attacks.jsonl

Each attack runs in a forked process of its own, with a time limit and, where sizes are attacked, a
limit on memory. What it did is one of `HARMS`, or nothing: it survived. ``--trust`` adds that flag
to the commands of artefacts that name code, and so shows which of them are live. ``--write`` puts
the table of a file of results into docs/reliability.md.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import yaml

from benchmarks.robustness.commands import Command, Ended, call, gist, warm

HARMS = ("lost", "leaked", "hung", "traceback", "executed")
SECONDS = 20.0
"""Time of an attack, the writing of its files included."""
MEMORY = 2 << 30
"""Bytes that an attack on sizes may take, beside what the program takes when it starts."""
PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
_SAID = re.compile(r"^HARM (\w+): (.*)$", re.MULTILINE)

Harm = tuple[str, str]
"""One of `HARMS`, and what was seen."""


@dataclass(frozen=True)
class Attack:
    """An attack of a class.

    Attributes
    ----------
    group, name : str
        The class, and what is tried.
    act : callable
        Called in the new process, in an empty folder; returns the command line to run there, or
        None if it has done everything. It calls `harm` for what it sees itself.
    look : callable, optional
        Yields harms that the folder and the output show afterwards.
    seconds : float
        The time limit.
    memory : int
        Bytes that the command may take; 0 for no limit.
    """

    group: str
    name: str
    act: Callable[[Path], Sequence[str] | None]
    look: Callable[[Path, Ended], Iterable[Harm]] = lambda folder, ended: ()
    seconds: float = SECONDS
    memory: int = 0


def harm(kind: str, what: object) -> None:
    """Report a harm from the process of an attack."""
    assert kind in HARMS
    sys.stdout.flush()
    os.write(1, f"\nHARM {kind}: {ascii(str(what))[:300]}\n".encode())


def run_attack(attack: Attack, folder: Path) -> list[Harm]:
    """Return the harms of an attack, empty if it survived."""
    folder.mkdir(parents=True)

    def process() -> NoReturn:
        os.environ["HOME"] = str(folder)
        words = attack.act(folder)
        if words and attack.memory:
            limit_memory(attack.memory)
        status = call(words) if words else 0
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)

    command = Command(process, folder)
    ended = command.wait(attack.seconds)
    if ended is None:
        os.killpg(command.pid, signal.SIGKILL)
        command.wait(10)
        return [("hung", f"runs for {attack.seconds:g} s")]
    harms = [(said[1], said[2]) for said in _SAID.finditer(ended.text)]
    if ended.defect:
        harms.append(("traceback", f"{ended.defect}: {gist(ended.text)}"))
    return harms + list(attack.look(folder, ended))


def limit_memory(n_bytes: int) -> None:
    """Let this process take ``n_bytes`` more."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + n_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def template(folder: Path) -> None:
    """Make a small run, `pairs`, that attacks copy; import what commands need."""
    folder.mkdir(parents=True)
    config: dict[str, Any] = {"run": "pairs", "benchmark": {"format": "shapes", "n_items": 4}}
    config |= {"filter": {"judges": ["shapes"]}, "models": {"tiny": {"path": "shapes:llava"}}}
    config |= {"evaluate": {"detectors": ["perturbation_gap"], "batch_size": 4}}
    (folder / "pairs.yaml").write_text(yaml.safe_dump(config))
    for stage in ("generate", "filter", "evaluate"):
        ended = warm((stage, "pairs.yaml", "-q"), folder)
        assert ended.status == 0, ended.text
    export = ("export", "pairs.yaml", "out", "--format", "recipe")
    ended = warm(export, folder)
    assert ended.status == 0, ended.text


def all_attacks(base: Path, *, trust: bool = False) -> Iterator[Attack]:
    """Yield the attacks of all classes; ``base`` holds the run of `template`."""
    from benchmarks.robustness import (
        attack_code,
        attack_files,
        attack_judges,
        attack_page,
        attack_servers,
        attack_sizes,
        attack_texts,
    )

    yield from attack_code.attacks(base, trust=trust)
    yield from attack_files.attacks(base)
    yield from attack_sizes.attacks()
    yield from attack_servers.replies()
    yield from attack_texts.texts(base)
    yield from attack_servers.redirects()
    yield from attack_page.attacks(base)
    yield from attack_judges.attacks()
    yield from attack_texts.streams()


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the counts by class as Markdown; an attack that did two harms counts in both."""
    lines = [f"| class | tried | survived | {' | '.join(HARMS)} |"]
    lines.append("|---|" + "---:|" * (2 + len(HARMS)))
    for group in [*dict.fromkeys(row["class"] for row in rows), "all"]:
        tried = [row for row in rows if group in (row["class"], "all")]
        cells = [f"{len(tried)}", f"{sum(not row['harms'] for row in tried)}/{len(tried)}"]
        for kind in HARMS:
            n = sum(any(harm[0] == kind for harm in row["harms"]) for row in tried)
            cells.append(f"{n}/{len(tried)}" if n else "0")
        lines.append(f"| {group} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    """Run the attacks and print the table; return 1 if one did harm."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="classes whose name contains this")
    parser.add_argument("--name", default="", help="attacks whose name contains this")
    parser.add_argument("--each", type=int, help="so many attacks of each class, the first ones")
    parser.add_argument("--trust", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("runs/robustness/attacks.jsonl"))
    parser.add_argument("--write", type=Path)
    args = parser.parse_args()
    if args.write:
        from docs.results.demo_tables import with_tables

        rows = [json.loads(line) for line in args.write.open()]
        text = with_tables(PAGE.read_text(), {"attacks": table(rows)}, args.write.name)
        PAGE.write_text(text)
        return 0
    rows = []
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text("")
    with tempfile.TemporaryDirectory(prefix="attacks-") as temporary:
        base = Path(temporary).resolve()
        os.environ |= {"XDG_STATE_HOME": str(base / "state"), "HF_HUB_OFFLINE": "1"}
        os.environ |= {"NO_PROXY": "*", "ATTACK_KEY": "sk-q7Zp3fKx91LmvTab5f2c9e77"}
        template(base / "template")
        for number, attack in enumerate(all_attacks(base / "template", trust=args.trust)):
            if args.only not in attack.group or args.name not in attack.name:
                continue
            if args.each and sum(row["class"] == attack.group for row in rows) >= args.each:
                continue
            folder = base / f"{number}"
            harms = run_attack(attack, folder)
            shutil.rmtree(folder, ignore_errors=True)
            rows.append({"class": attack.group, "attack": attack.name, "harms": harms})
            with args.out.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
            for kind, what in harms:
                shown = f"{attack.group}: {attack.name}: {kind}: {what}"
                print(shown, file=sys.stderr, flush=True)
    print(table(rows))
    return int(any(row["harms"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())

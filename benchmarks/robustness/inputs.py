"""What the command line does with bad inputs.

    python -m benchmarks.robustness.inputs [--inputs 400] [--seed 0] [--out FILE]

Configurations, benchmarks, pictures, checkpoints, predictions and requests to the review page are
damaged: cut, emptied, altered, repeated, replaced by a folder or by another type. Each command must
end well, or with exit status 1 or 2 and at most a few lines that name what is bad: a file, a key,
or an item. Requests to the review page must get a reply that is no server error. Everything else
(tracebacks, long or nameless messages, more than a minute) is a defect.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml
from PIL import Image

from benchmarks.robustness.bad_files import ODD, damaged, parts, replaced
from benchmarks.robustness.commands import Command, gist, warm
from benchmarks.robustness.served import open_page

LONGEST = 60.0
MOST_LINES = 12
CONFIG: dict[str, Any] = {
    "run": "run",
    "seed": 1,
    "benchmark": {"format": "vlmeval", "path": "bench.tsv"},
    "generate": {"batch_size": 4},
    "filter": {"judges": [], "policy": {"rules": []}},
    "models": {"tiny-llava": {"path": "model"}},
    "contaminate": {"epochs": 1, "strategies": {"LoRA": {"train": "lora", "learning_rate": 0.1}}},
    "evaluate": {"detectors": ["perturbation_gap"], "batch_size": 4},
}


@dataclass(frozen=True)
class Kind:
    """A kind of input: the file to damage, the command that reads it, and names for it."""

    name: str
    path: str
    command: tuple[str, ...]
    names: tuple[str, ...]


KINDS = (
    Kind("configuration", "c.yaml", ("import", "c.yaml", "-q"), ("c.yaml", ": ", "'")),
    Kind("benchmark", "bench.tsv", ("import", "c.yaml", "-q"), ("bench", "row", "line")),
    Kind(
        "benchmark",
        "bench.jsonl",
        ("import", "c.yaml", "-q", "benchmark={format: jsonl, path: bench.jsonl}"),
        ("bench",),
    ),
    Kind("picture", "one.png", ("import", "c.yaml", "-q"), ("one.png", "bench")),
    Kind("predictions", "a.csv", ("gap", "a.csv", "b.csv"), ("a.csv", "b.csv")),
    Kind("predictions", "a.json", ("gap", "a.json", "b.csv"), ("a.json", "b.csv")),
    Kind("predictions", "a.xlsx", ("gap", "a.xlsx", "b.csv"), ("a.xlsx", "b.csv")),
    Kind(
        "checkpoint",
        "model/*",
        ("detect", "--model", "model", "--benchmark", "pairs", "--detectors", "perturbation_gap")
        + ("--out", "out", "-q"),
        ("model",),
    ),
    Kind(
        "paired benchmark",
        "pairs/benchmark/*",
        ("detect", "--model", "shapes:llava", "--benchmark", "pairs", "--out", "out", "-q")
        + ("--detectors", "perturbation_gap"),
        ("pairs",),
    ),
)


def template(folder: Path) -> None:
    """Write whole inputs of every kind."""
    import pandas as pd

    from flipbench.models.vlm.checkpoints import resolve_path

    folder.mkdir(parents=True)
    (folder / "c.yaml").write_text(yaml.safe_dump(CONFIG))
    Image.new("RGB", (64, 64), "red").save(folder / "one.png")
    rows = [
        {"index": i, "question": f"Which of {i}?", "A": "red", "B": "blue", "answer": "AB"[i % 2]}
        | {"image_path": "one.png"}
        for i in range(12)
    ]
    frame = pd.DataFrame(rows)
    frame.to_csv(folder / "bench.tsv", index=False, sep="\t")
    items = [
        {"name": str(i), "images": ["one.png"], "question": "Which?", "options": ["a", "b"]}
        | {"answer": "AB"[i % 2]}
        for i in range(12)
    ]
    (folder / "bench.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    told = frame.drop(columns="image_path").assign(prediction="A")
    told.to_csv(folder / "a.csv", index=False)
    flipped = frame["answer"].map({"A": "B", "B": "A"})
    told.assign(answer=flipped).to_csv(folder / "b.csv", index=False)
    told.to_json(folder / "a.json", orient="records")
    told.to_excel(folder / "a.xlsx", index=False)
    shutil.copytree(resolve_path("shapes:llava"), folder / "model")
    pairs = {"run": "pairs", "benchmark": {"format": "shapes", "n_items": 4}}
    (folder / "pairs.yaml").write_text(yaml.safe_dump(pairs | {"filter": {"judges": ["shapes"]}}))
    for stage in ("generate", "filter"):
        assert warm((stage, "pairs.yaml", "-q"), folder).status == 0


def damage(path: Path, rng: random.Random) -> str:
    """Damage a file in one of many ways; return which."""
    how = rng.choice(("bytes", "bytes", "bytes", "type", "type", "empty", "folder", "gone", "text"))
    whole = path.read_bytes()
    if how == "type" and path.suffix in (".yaml", ".json", ".jsonl"):
        head, *rest = whole.splitlines() if path.suffix == ".jsonl" else [whole]
        value = yaml.safe_load(head) if path.suffix == ".yaml" else json.loads(head)
        odd = replaced(value, rng.choice(list(parts(value))), rng.choice(ODD))
        path.write_bytes(b"\n".join([json.dumps(odd).encode(), *rest]))
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "folder":
        path.unlink()
        path.mkdir()
    elif how == "gone":
        path.unlink()
    elif how == "text":
        path.write_text("These are not the bytes you are looking for.\n" * 3)
    else:
        path.write_bytes(damaged(whole, rng))
    return how


def attempt(kind: Kind, base: Path, rng: random.Random) -> tuple[str, str]:
    """Return "ended well", "refused" or "defect" for one bad input, and what is to be said."""
    folder = base / "attempt"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(base / "template", folder)
    paths = sorted(p for p in folder.glob(kind.path) if p.is_file())
    path = rng.choice(paths)
    how = damage(path, rng)
    command = Command(kind.command, folder)
    ended = command.wait(LONGEST)
    what = f"{kind.name}, {path.relative_to(folder)} ({how})"
    if ended is None:
        command.stop(signal.SIGKILL)
        command.wait(10)
        return "defect", f"{what}: hangs"
    if ended.defect:
        return "defect", f"{what}: {ended.defect}: {gist(ended.text)}"
    if ended.status == 0:
        return "ended well", ""
    lines = ended.text.strip().splitlines()
    text = ended.text
    if len(lines) > MOST_LINES or len(text) > 4000:
        return "defect", f"{what}: {len(lines)} lines, {len(text)} characters: {text[:600]}"
    if not any(name in text for name in (*kind.names, path.name)):
        return "defect", f"{what}: names nothing: {text[:600]}"
    return "refused", ""


GOOD: dict[str, Any] = {"reviewer": "Ada", "key": ["", ""], "decision": "keep", "seconds": 2.5}
PATHS = "/api/verdicts /api/answers /api/undo /api/import /api/queue /api/pairs/0 /images/x".split()
PATHS += ["/page/x", "/export/x", "/"]
TEXTS = ("", "0", "-1", "9" * 5000, "../../etc/passwd", "%2e%2e/x", "\u202e", "a" * 100_000, "%00")


def requests(base: Path, seed: int, n: int) -> tuple[Counter[str], list[str]]:
    """Send ``n`` bad requests to a blind review page, and count the replies."""
    from flipbench.core.run import Run
    from flipbench.filters.review.tasks import edited_pairs

    rng = random.Random(seed)
    folder = base / "template"
    shutil.copytree(folder / "pairs", folder / "run")
    with Run(folder / "run") as run:
        good = GOOD | {"key": list(edited_pairs(run)[0].key)}
    page, port = open_page(folder, blind=True)
    counts: Counter[str] = Counter()
    problems = []
    for _ in range(n):
        path = rng.choice(PATHS)
        if path.endswith("x") or path.endswith("0"):
            path = path[:-1] + quote(rng.choice(TEXTS))
        if rng.random() < 0.3:
            path += f"?{rng.choice(('reviewer', 'show', 'category', 'judges', 'after'))}="
            path += quote(rng.choice(TEXTS))
        body = json.dumps(good).encode()
        if rng.random() < 0.5:
            odd = replaced(good, rng.choice(list(parts(good))), rng.choice(ODD))
            body = json.dumps(odd).encode()
        else:
            body = damaged(body, rng)
        method = rng.choice(("POST", "POST", "GET", "PUT"))
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        headers = {"Content-Type": "application/json", "Origin": f"http://127.0.0.1:{port}"}
        try:
            connection.request(method, path, body, headers)
            status = connection.getresponse().status
        except (OSError, http.client.HTTPException) as error:
            status = 599
            problems.append(str(error))
        connection.close()
        page.wait(0)
        counts["defect" if status >= 500 else "refused" if status >= 400 else "ended well"] += 1
        if status >= 500:
            problems.append(f"{status} {method} {path[:80]} {body[:200]!r}")
    page.stop(signal.SIGKILL)
    page.wait(5)
    if b"Traceback" in page.text:
        counts["defect"] += 1
        problems.append(gist(page.text.decode(errors="replace")))
    shutil.rmtree(folder / "run")
    return counts, problems


COLUMNS = ("ended well", "refused", "defect")


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the counts by kind as Markdown."""
    lines = ["| input | tried | ended well | refused | defects |", "|---|---:|---:|---:|---:|"]
    for name in [*dict.fromkeys(row["kind"] for row in rows), "all"]:
        counts: Counter[str] = Counter()
        for row in rows:
            if name in (row["kind"], "all"):
                counts.update(row["counts"])
        cells = [counts.total(), *(counts[column] for column in COLUMNS)]
        lines.append(f"| {name} | {' | '.join(f'{cell:,}' for cell in cells)} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--inputs", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/robustness/inputs.jsonl"))
    args = parser.parse_args()
    base = args.out.absolute().with_suffix("")
    shutil.rmtree(base, ignore_errors=True)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    rows = [json.loads(line) for line in args.out.open()] if args.out.exists() else []
    template(base / "template")
    for kind in KINDS:
        folder = Path(shutil.copytree(base / "template", base / "whole"))
        ended = warm(kind.command, folder)
        if ended.status:
            raise SystemExit(f"the whole {kind.path} is refused: {ended.text}")
        shutil.rmtree(folder)

    def keep(row: dict[str, Any]) -> None:
        rows.append(row)
        with args.out.open("a") as file:
            file.write(json.dumps(row) + "\n")

    if not any(row["kind"] == "request to the review page" for row in rows):
        counts, problems = requests(base, args.seed, args.inputs // 4)
        keep({"kind": "request to the review page", "counts": counts, "problems": problems})
        print(*problems, sep="\n", file=sys.stderr, flush=True)
    while sum(sum(row["counts"].values()) for row in rows) < args.inputs:
        kind = KINDS[len(rows) % len(KINDS)]
        outcome, problem = attempt(kind, base, random.Random(f"{args.seed} {len(rows)}"))
        keep({"kind": kind.name, "counts": {outcome: 1}, "problems": [problem] if problem else []})
        if problem:
            print(problem, file=sys.stderr, flush=True)
    shutil.rmtree(base)
    print(table(rows))
    return int(any(row["counts"].get("defect") for row in rows))


if __name__ == "__main__":
    sys.exit(main())

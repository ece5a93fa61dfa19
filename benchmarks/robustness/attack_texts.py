"""Texts that steer a terminal or a spreadsheet, and output that nobody reads."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from benchmarks.robustness.attacks import Attack, Ended, Harm, harm

GROUP = "texts that steer"
CLOSED = "closed streams"
STEERING = {
    "clears the screen": "\x1b[2J\x1b[H",
    "sets the title": "\x1b]0;OWNED\x07",
    "a link": "\x1b]8;;http://evil.example\x1b\\here\x1b]8;;\x1b\\",
    "the clipboard": "\x1b]52;c;ZXZpbA==\x07",
    "a device's report": "\x1b[6n\x1bP$q\x1b\\",
    "C1": "\x9b2J\x9d0;OWNED\x9c\x90q\x9c\x85",
    "backspaces": "good\b\b\b\bevil\x7f",
    "overwrites the line": "evil\rgood",
    "other controls": "\0\x01\x0e\x0f\x11\x13\x1c\x1f",
    "right to left": "\u202egnp.exe\u202c",
    "isolates": "\u2066a\u2067b\u2068c\u2069\u061c\u200e\u200f",
    "no width": "a\u200bb\u2060c\ufeffd\xade\u180e",
    "line ends of Unicode": "a\u2028b\u2029c",
    "tags": "a" + "".join(chr(0xE0000 + ord(c)) for c in "evil"),
    "fillers": "a\u3164\u115f\u1160\uffa0\u034f",
    "halves of a character": "a\ud800b\udfffc",
}
"""Texts that steer a terminal, or hide."""
FORMULAS = {
    "=": "=cmd|' /C calc'!A0",
    "+": "+1+cmd|' /C calc'!A0",
    "-": "-2+3+cmd|' /C calc'!A0",
    "@": "@SUM(1+1)*cmd|' /C calc'!A0",
    "full-width =": "\uff1dHYPERLINK(A1)",
    "full-width +": "\uff0b1+A1",
    "full-width -": "\uff0d1+A1",
    "full-width @": "\uff20SUM(A1)",
    "small =": "\ufe661+1",
    "after a blank": "  =1+1",
    "after a tab": "\t=1+1",
    "after a line end": "\r=1+1",
    "after a wide blank": "\u3000=1+1",
    "after no width": "\u200b=1+1",
    "after a quote": '"=1+1',
    "a separator": "a;=1+1",
}
"""Texts that a spreadsheet may run."""
MARKUP = {
    "a script": "<script>alert(1)</script>",
    "an event": "<img src=x onerror=alert(1)>",
    "the end of an attribute": "\" onmouseover=alert(1) x='",
    "the end of a script": "</script><script>alert(1)</script>",
    "a template": "{{ 7*7 }}{% raw %}",
}
"""Texts that a page may take for markup."""
TEXTS = STEERING | FORMULAS | MARKUP
_RAW = re.compile(
    "[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u180e\u200b\u200e\u200f"
    "\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\U000e0000-\U000e007f]|\r(?!\n)"
)
_FORMULA = re.compile(r"\s*[=@＝＠﹦﹫＋﹢－﹣]|\s*[+-](?![\d.,:;%±<>\[\]() –−+/-]*$)|[\t\r]")
_SUFFIXES = (".csv", ".md", ".html", ".tex", ".txt", ".log")


def texts(base: Path) -> Iterator[Attack]:
    """Yield every text in every place from which it can reach a terminal, a table or a page."""
    for place in PLACES:
        for name in _FEW if place in _LONG else TEXTS:
            act = partial(_written, base, place, name)
            yield Attack(GROUP, f"{place}: {name}", act, _steers, seconds=30)


def streams() -> Iterator[Attack]:
    """Yield commands in new processes whose streams are closed, full, or not read."""
    for words in COMMANDS:
        for redirection in REDIRECTIONS:
            act = partial(_redirected, words, redirection)
            yield Attack(CLOSED, f"{words} {redirection}", act, seconds=60)


def _steers(folder: Path, ended: Ended) -> Iterable[Harm]:
    """Look at the output, and at every table and page that was written."""
    written = {"the output": ended.text}
    for path in folder.rglob("*"):
        if path.suffix in _SUFFIXES and path.is_file() and "given" not in path.parts:
            with path.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
                text = file.read().removeprefix("\ufeff")  # by which Excel knows UTF-8
                written[str(path.relative_to(folder))] = text
        elif path.parent.name == "failures" or "failures" in path.name:
            if path.is_file():
                written[str(path.relative_to(folder))] = path.read_text(errors="surrogateescape")
    for name, text in written.items():
        if found := _RAW.search(text):
            around = text[max(0, found.start() - 30) : found.end() + 20]
            yield "leaked", f"{ascii(name)}: {ascii(around)}"
        if name.endswith(".csv"):
            for row in csv.reader(io.StringIO(text)):
                for cell in row:
                    if _FORMULA.match(cell):
                        yield "leaked", f"{ascii(name)}: the cell {ascii(cell[:60])}"
        if name.endswith(".html") and re.search(
            r"<script>alert|<img src=x|\" onmouseover=alert|{{ 7\*7 }}{% raw|>49<", text
        ):
            if "{{ 7*7 }}" not in text:  # as text, it is harmless
                yield "leaked", f"{ascii(name)}: markup"


def _written(base: Path, place: str, name: str, folder: Path) -> Sequence[str] | None:
    (folder / "given").mkdir()
    return PLACES[place](base, folder, TEXTS[name])


def _safe(text: str) -> str:
    """Return a text that a UTF-8 file can hold."""
    return text.encode("utf-8", "replace").decode()


def _rows(base: Path, folder: Path, text: str) -> Sequence[str]:
    """Rows of a benchmark, most of them refused, with the text in every cell."""
    rows = [
        {"index": f"{text}{number}", "image": "x.png", "question": text, "A": f"a{text}"}
        | {"B": "b", "answer": "A", "category": text}
        for number in range(5)
    ]
    rows[0] |= {"answer": f"Z{text}"}
    rows[1] |= {"image": f"{text}.png"}
    rows[2] |= {"question": ""}
    rows[3] |= {"image": f"not base64{text}" * 400}
    with (folder / "given" / "b.tsv").open("w", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0], f"odd {_safe(text)}"], delimiter="\t")
        writer.writeheader()
        writer.writerows({key: _safe(value) for key, value in row.items()} for row in rows)
    benchmark = {"format": "vlmeval", "path": "given/b.tsv"}
    (folder / "given" / "c.yaml").write_text(yaml.safe_dump({"run": "r", "benchmark": benchmark}))
    return ("import", "given/c.yaml", "-q")


def _names(base: Path, folder: Path, text: str) -> Sequence[str]:
    """Names of models, which stand in the report's tables and page."""
    shutil.copytree(base / "pairs", folder / "pairs")
    shutil.rmtree(folder / "pairs" / "report")
    config = yaml.safe_load((base / "pairs.yaml").read_text())
    config |= {"models": {_safe(text): {"path": "shapes:llava"}}}
    (folder / "given" / "c.yaml").write_text(yaml.safe_dump(config))
    return ("evaluate", "given/c.yaml", "-q")


def _keys(base: Path, folder: Path, text: str) -> Sequence[str]:
    """Keys and values of a configuration that are refused."""
    config = {"run": "r", f"generate{_safe(text)}": 1, "seed": _safe(text)}
    config |= {"benchmark": {"format": _safe(text), "path": _safe(text)}}
    (folder / "given" / "c.yaml").write_text(yaml.safe_dump(config, allow_unicode=True))
    return ("generate", "given/c.yaml", "-q")


def _arguments(base: Path, folder: Path, text: str) -> Sequence[str]:
    """Names of files on the command line."""
    name = text.replace("\0", "").replace("/", "") + ".csv"
    return ("gap", "./" + name, "./" + name)


def _predictions(base: Path, folder: Path, text: str) -> Sequence[str]:
    """Predictions whose ids, questions, categories and answers have the text."""
    for name, answers in (("a", "AABB"), ("b", "BBAA")):
        rows = [
            {"index": f"{number}", "question": f"Which {number}?{text}", "A": text, "B": "b"}
            | {"answer": letter, "prediction": "A", "category": text}
            for number, letter in enumerate(answers)
        ]
        rows.append(rows[0] | {"index": text, "answer": text, "prediction": text})
        with (folder / "given" / f"{name}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, [*rows[0]])
            writer.writeheader()
            writer.writerows({key: _safe(value) for key, value in row.items()} for row in rows)
    words = ("gap", "given/a.csv", "given/b.csv", "--out", "out")
    return (*words, "--model", text.replace("\0", ""), "--benchmark", text.replace("\0", ""))


def _server(base: Path, folder: Path, text: str) -> Sequence[str]:
    """Errors of a captioner's server, in its messages and its header."""
    return _from_server(base, folder, text, good=False)


def _captions(base: Path, folder: Path, text: str) -> Sequence[str]:
    """Captions that a server sends."""
    return _from_server(base, folder, text, good=True)


def _from_server(base: Path, folder: Path, text: str, *, good: bool) -> Sequence[str]:
    from benchmarks.robustness.attack_servers import Host, _Handler

    class Handler(_Handler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            reply: dict[str, Any] = {"error": {"message": text, "type": text, "code": text}}
            if good:
                choice = {"index": 0, "message": {"role": "assistant", "content": text}}
                reply = {"choices": [choice | {"finish_reason": "stop"}], "model": text}
            body = json.dumps(reply).encode()
            self.send_response(200 if good else 400)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST

    host = Host()
    host.RequestHandlerClass = Handler
    chat = {"model": "m", "base_url": f"{host.url}/v1", "max_retries": 0, "timeout": 5}
    captioner = {"kind": "api", "chat": chat | {"api_key_env": "ATTACK_KEY"}}
    config = {"run": "r", "benchmark": {"format": "shapes", "n_items": 2}}
    config |= {"generate": {"captioner": captioner, "editor": {"kind": "shapes"}}}
    (folder / "given" / "c.yaml").write_text(yaml.safe_dump(config))
    return ("generate", "given/c.yaml", "-q")


def _checkpoint(base: Path, folder: Path, text: str) -> Sequence[str]:
    """A checkpoint whose configuration has the text."""
    from flipbench.models.vlm.checkpoints import resolve_path

    shutil.copytree(resolve_path("shapes:llava"), folder / "given" / "model")
    path = folder / "given" / "model" / "config.json"
    about = json.loads(path.read_text())
    path.write_text(json.dumps(about | {"model_type": text, "architectures": [text]}))
    words = ("detect", "--model", "given/model", "--benchmark", str(base / "pairs"), "-q")
    return (*words, "--out", "out", "--detectors", "perturbation_gap")


def _card(base: Path, folder: Path, text: str) -> Sequence[str]:
    """A checkpoint's card, which doctor prints."""
    from flipbench.models.vlm.checkpoints import resolve_path

    shutil.copytree(resolve_path("shapes:llava"), folder / "given" / "model")
    card = dict.fromkeys(("strategy", "benchmark", "base_model", "plan_id", "name"), text)
    (folder / "given" / "model" / "flipbench_card.json").write_text(json.dumps(card))
    return ("doctor", "given/model")


def _artefact(base: Path, folder: Path, text: str) -> Sequence[str]:
    """Code that an artefact names, as it is shown to be read."""
    theirs = folder / "given" / "theirs"
    theirs.mkdir()
    (theirs / "environment.json").write_text("{}")
    part = {"kind": "python", "target": f"os:{_safe(text)}", "arguments": {_safe(text): 1}}
    config = {"run": "r", "benchmark": {"format": "shapes", "n_items": 2}}
    config |= {"generate": {"editor": part}}
    (theirs / "config.yaml").write_text(yaml.safe_dump(config))
    return ("generate", "given/theirs/config.yaml", "-q")


def _verdicts(base: Path, folder: Path, text: str) -> None:
    """Verdicts of people whose names and notes have the text: imported, then exported."""
    from benchmarks.robustness.commands import call

    shutil.copytree(base / "pairs", folder / "pairs")
    call(("review", "pairs", "--export", "given.csv"))
    (folder / "given.csv").rename(folder / "given" / "v.csv")
    with (folder / "given" / "v.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        row |= {key: _safe(text) for key in ("reviewer", "reason", "note") if key in row}
        row |= {"decision": "reject"}
    with (folder / "given" / "w.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    call(("review", "pairs", "--import", "given/w.csv"))
    call(("review", "pairs", "--export", "back.csv"))
    call(("review", "pairs", "--agreement"))


PLACES: dict[str, Callable[[Path, Path, str], Sequence[str] | None]] = {
    "rows": _rows,
    "names of models": _names,
    "configuration": _keys,
    "names of files": _arguments,
    "predictions": _predictions,
    "a server's errors": _server,
    "a server's captions": _captions,
    "checkpoint": _checkpoint,
    "card": _card,
    "code to be trusted": _artefact,
    "verdicts": _verdicts,
}
"""Where a text comes from."""

_LONG = ("names of models", "checkpoint", "card")
_FEW = ("clears the screen", "C1", "right to left", "no width", "=", "full-width =", "a script")
"""Texts for the places whose commands take seconds."""

COMMANDS = {
    "--version": 0,
    "detectors": 0,
    "power --changed 20 --pairs 100": 0,
    "nope": 2,
    "import none.yaml": 2,
}
"""Commands, and their statuses."""
REDIRECTIONS = (
    ">&-",
    "2>&-",
    "<&-",
    ">&- 2>&- <&-",
    "2>&1 | head -n 1",
    "2>&1 | true",
    "2>&1 | (exec <&-; sleep 1)",
    ">/dev/full",
    "2>/dev/full",
)


def _redirected(words: str, redirection: str, folder: Path) -> None:
    import subprocess

    script = f"set -o pipefail; {sys.executable} -m flipbench.cli {words} {redirection}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, errors="replace")
    expected = 2 if redirection == ">/dev/full" else COMMANDS[words]
    said = done.stdout + done.stderr
    if "Traceback" in said or "Exception ignored" in said or "Error in sys" in said:
        harm("traceback", said[-250:])
    elif done.returncode != expected:
        harm("lost", f"status {done.returncode}, not {expected}: {said[-200:]}")

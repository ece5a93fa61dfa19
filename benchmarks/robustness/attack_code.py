"""Artefacts that name code, a program or a server: none of it may run without ``--trust``."""

from __future__ import annotations

import pickle
import shutil
import socket
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from benchmarks.robustness.attacks import Attack, Ended, Harm

GROUP = "artefacts that name code"
ARTEFACTS = {
    "run": ("environment.json",),
    "recipe": ("expected.jsonl",),
    "checkpoint": ("flipbench_card.json",),
    "exported benchmark": ("benchmark.json", "pairs.jsonl"),
}
"""Kinds of artefacts, and the files by which each is one."""


def payloads(folder: Path) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return configurations that name code, by name, with the command that would run it."""
    shell = f"touch {folder}/EXECUTED"
    popen = {"target": "subprocess:Popen", "arguments": {"args": shell, "shell": True}}
    system = {"target": "os:system", "arguments": {"command": shell}}
    module = {"kind": "python", "target": "evil:Part"}
    engine = {"kind": "vllm", "executable": f"{folder}/evil.sh"}
    lines = ["--x", f"$({shell})"]
    port = _free_port()
    chat = {"model": "m", "base_url": f"http://evil.localhost:{port}/v1"}
    chat |= {"api_key_env": "ATTACK_KEY"}
    llamafactory = {"backend": "llamafactory", "llamafactory": {"cli": f"{folder}/evil.sh"}}
    code = {"models": {"tiny": {"path": f"{folder}/model", "trust_remote_code": True}}}
    return {
        "editor, Popen": ("generate", {"generate": {"editor": {"kind": "python"} | popen}}),
        "captioner, os.system": (
            "generate",
            {"generate": {"captioner": {"kind": "python"} | system}},
        ),
        "editor, a module": ("generate", {"generate": {"editor": module}}),
        "judge, a module": ("filter", {"filter": {"judges": [module]}}),
        "judge, Popen": ("filter", {"filter": {"judges": [{"kind": "python"} | popen]}}),
        "model, os.system": ("evaluate", {"models": {"tiny": {"python": system}}}),
        "model, a module": ("evaluate", {"models": {"tiny": {"python": {"target": "evil:Part"}}}}),
        "detector": ("evaluate", {"evaluate": {"detectors": ["evil:Part"]}}),
        "detector's parameters": ("evaluate", {"evaluate": {"parameters": {"evil:Part": {}}}}),
        "engine.executable": (
            "evaluate",
            {"models": {"tiny": {"path": "shapes:llava", "engine": engine}}},
        ),
        "engine.arguments": (
            "evaluate",
            {"models": {"t": {"path": "x", "engine": {"kind": "vllm", "arguments": lines}}}},
        ),
        "slurm.setup": ("evaluate --slurm", {"executor": {"slurm": {"setup": [shell]}}}),
        "llamafactory.cli": ("contaminate", {"contaminate": llamafactory}),
        "trust_remote_code": ("evaluate", code),
        "a key for another server": ("evaluate", {"models": {"t": {"api": chat}}}),
    }


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


TEXTS = {
    "a YAML tag": "run: r\ntitle: !!python/object/apply:os.system ['touch {0}/EXECUTED']\n",
    "a YAML tag, new": "run: !!python/object/new:subprocess.Popen [['touch', '{0}/EXECUTED']]\n",
    "a base beside it": "extends: ../beside.yaml\nrun: r\n",
    "an absolute base": "extends: {0}/beside.yaml\nrun: r\n",
    "an alias": "run: r\nx: &x {{kind: python, target: 'os:system', arguments: {{command: 'touch"
    " {0}/EXECUTED'}}}}\ngenerate: {{editor: *x}}\n",
}
"""Configurations as text, of which the folder is to be filled in."""


def attacks(base: Path, *, trust: bool = False) -> Iterator[Attack]:
    """Yield the attacks: every payload in every artefact, run and only counted."""
    dry_runs = (False,) if trust else (False, True)
    for artefact in ARTEFACTS:
        for name in payloads(base):
            for dry in dry_runs:
                act = partial(_configured, base, artefact, name, trust=trust, dry=dry)
                yield _attack(f"{artefact}: {name}{', dry run' if dry else ''}", act)
        for name in TEXTS:
            for command in ("generate",):
                act = partial(_written, base, artefact, name, command, trust=trust)
                yield _attack(f"{artefact}: {name}, {command}", act)
    if trust:
        return
    for name in ("pytorch_model.bin", "adapter_model.bin", "model.pt", "training_args.bin"):
        yield _attack(f"checkpoint: {name} is a pickle", partial(_pickled, base, name))
    for name in ("config.json", "tokenizer_config.json", "processor_config.json"):
        yield _attack(f"checkpoint: auto_map in {name}", partial(_remote_code, base, name))
    for name in ("a.pkl", "a.pt", "a.npy", "a.joblib", "a.csv", "a.parquet", "a.json"):
        yield _attack(f"predictions: {name} is a pickle", partial(_predictions, name))


def _attack(name: str, act: Any) -> Attack:
    return Attack(GROUP, name, act, _executed)


def _executed(folder: Path, ended: Ended) -> Iterable[Harm]:
    if (folder / "EXECUTED").exists():
        yield "executed", "the marker file exists"


def _prepare(base: Path, folder: Path, artefact: str) -> Path:
    """Write an artefact with the records of the template's run, and the code to run."""
    theirs = folder / "theirs"
    shutil.copytree(base / "pairs", theirs)
    (theirs / "environment.json").unlink()
    for name in ARTEFACTS[artefact]:
        (theirs / name).write_text("{}" if name.endswith(".json") else "")
    for place in (folder, theirs):
        (place / "evil.py").write_text(
            f"from pathlib import Path\nPath({str(folder)!r}, 'EXECUTED').touch()\n"
            "class Part:\n    pass\n"
        )
    (folder / "evil.sh").write_text(f"#!/bin/sh\ntouch {folder}/EXECUTED\n")
    (folder / "evil.sh").chmod(0o755)
    return theirs


def _configured(
    base: Path, artefact: str, name: str, folder: Path, *, trust: bool, dry: bool
) -> Sequence[str]:
    theirs = _prepare(base, folder, artefact)
    if name == "trust_remote_code":
        _remote_code(base, "config.json", folder)
    command, part = payloads(folder)[name]
    config = yaml.safe_load((base / "pairs.yaml").read_text()) | part | {"run": str(theirs)}
    if command == "generate":  # a new seed, or the records count as made
        config |= {"seed": 7}
    (theirs / "config.yaml").write_text(yaml.safe_dump(config))
    where = theirs / "config.yaml"
    if artefact == "recipe" and command == "generate":
        command, where = "rebuild", theirs
    if trust:
        sys.path.insert(0, str(folder))
    flags = [*(["--dry-run"] if dry else []), *(["--trust"] if trust else [])]
    return (*command.split(), str(where), "-q", *flags)


def _written(
    base: Path, artefact: str, name: str, command: str, folder: Path, *, trust: bool
) -> Sequence[str]:
    theirs = _prepare(base, folder, artefact)
    system = {"target": "os:system", "arguments": {"command": f"touch {folder}/EXECUTED"}}
    beside = {"run": "r", "benchmark": {"format": "shapes", "n_items": 2}}
    beside |= {"generate": {"editor": {"kind": "python"} | system}}
    (folder / "beside.yaml").write_text(yaml.safe_dump(beside))
    (theirs / "config.yaml").write_text(TEXTS[name].format(folder))
    return (command, str(theirs / "config.yaml"), "-q", *(["--trust"] if trust else []))


class _Touch:
    """Unpickled, it leaves the marker."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def _model(folder: Path) -> Path:
    from flipbench.models.vlm.checkpoints import resolve_path

    model = folder / "model"
    if not model.exists():
        shutil.copytree(resolve_path("shapes:llava"), model)
    return model


def _detect(base: Path) -> Sequence[str]:
    words = ("detect", "--model", "model", "--benchmark", str(base / "pairs"), "--out", "out")
    return (*words, "-q", "--detectors", "perturbation_gap")


def _pickled(base: Path, name: str, folder: Path) -> Sequence[str]:
    model = _model(folder)
    if not name.startswith("training"):
        for path in model.glob("*.safetensors*"):
            path.unlink()
    (model / name).write_bytes(pickle.dumps(_Touch(folder / "EXECUTED")))
    return _detect(base)


def _remote_code(base: Path, name: str, folder: Path) -> Sequence[str]:
    import json

    model = _model(folder)
    path = model / name
    about = json.loads(path.read_text()) if path.exists() else {}
    classes = ("AutoConfig", "AutoModel", "AutoModelForImageTextToText", "AutoProcessor")
    about["auto_map"] = dict.fromkeys((*classes, "AutoTokenizer"), "evil.Part")
    if name == "tokenizer_config.json":
        about |= {"auto_map": {"AutoTokenizer": ["evil.Part", "evil.Part"]}}
        about |= {"tokenizer_class": "Part"}
    if name == "config.json":
        about |= {"model_type": "evil"}
    path.write_text(json.dumps(about))
    (model / "evil.py").write_text(
        f"from pathlib import Path\nPath({str(folder)!r}, 'EXECUTED').touch()\n"
        "class Part:\n    pass\n"
    )
    return _detect(base)


def _predictions(name: str, folder: Path) -> Sequence[str]:
    (folder / name).write_bytes(pickle.dumps(_Touch(folder / "EXECUTED")))
    return ("gap", name, name)

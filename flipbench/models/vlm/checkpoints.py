"""A checkpoint without its weights in memory: its path, hash and contamination card."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from flipbench.core.errors import DataError, PrerequisiteError

CARD = "flipbench_card.json"
ADAPTER = "adapter_config.json"
PACKAGED = "shapes:"


def resolve_path(path: str, index: str = "config.json") -> str:
    """Return a checkpoint's folder or hub id; ``shapes:llava`` is one shipped with flipbench.

    Packaged checkpoints are those that have the file ``index``.
    """
    if path.startswith(PACKAGED):
        packaged = Path(__file__).parents[2] / "shapes" / "checkpoints"
        folder = packaged / path[len(PACKAGED) :]
        if not (folder / index).exists():
            known = [PACKAGED + file.parent.name for file in sorted(packaged.glob(f"*/{index}"))]
            raise PrerequisiteError(
                f"{path}: no such packaged model"
                + (f"; choose {' or '.join(known)}" if known else " of this kind")
            )
        return str(folder)
    return path


def base_of(where: str, revision: str | None = None) -> tuple[str, dict[str, str]]:
    """Return the base checkpoint of a LoRA adapter's folder, or ``where`` if it is none.

    The second value is ``{"revision": ...}`` of that checkpoint, or ``{}``.
    """
    adapter = Path(where) / ADAPTER
    base = where
    if adapter.exists():
        config, card = json.loads(adapter.read_text()), check_card(Path(where))
        base = resolve_path(card.get("parent") or config["base_model_name_or_path"])
        revision = card.get("settings", {}).get("revision") or config.get("revision")
    return base, {"revision": revision} if revision else {}


def fingerprint(
    path: str, dtype: str, revision: str | None = None, quantization: str | None = None
) -> str:
    """Return a hash of weights, configuration, processor, precision and image backend.

    It covers the bytes of a folder's files, the name and commit of a hub id, or the files of an
    adapter and its base. Where the base of an adapter trained here lies does not matter.

    Raises
    ------
    PrerequisiteError
        If there is no such checkpoint.
    """
    from transformers.utils import is_torchvision_available

    backend = "torchvision" if is_torchvision_available() else "pil"
    precision = f"{dtype} {quantization}" if quantization else dtype
    base, at = base_of(path, revision)
    if base != path:
        content = f"beside {folder_hash(path)}{fingerprint(base, dtype, **at)}"
    elif Path(path).is_dir():
        content = folder_hash(path)
    else:
        content = f"{path}@{_commit(path, at)}"
    return hashlib.sha256(f"{content} {precision} {backend}".encode()).hexdigest()[:24]


def _commit(hub_id: str, at: dict[str, str]) -> str:
    from transformers.utils import cached_file

    try:
        config = Path(cached_file(hub_id, "config.json", **at))
    except (OSError, ValueError) as error:
        raise PrerequisiteError(
            f"{hub_id}: no such checkpoint ({first_line(error)}); give a folder or hub id"
        ) from error
    return config.parent.name  # .../snapshots/<commit>/config.json


def folder_hash(path: str) -> str:
    """Return a hash of a folder's safetensors, json and jinja files, without the card."""
    digest = hashlib.sha256()
    for file in sorted(Path(path).iterdir()):
        if file.suffix in (".safetensors", ".json", ".jinja") and file.name != CARD:
            about = file.stat()
            digest.update(file.name.encode() + b"\0")
            digest.update(_file_hash(str(file), about.st_mtime_ns, about.st_size).encode())
    return digest.hexdigest()


@lru_cache(maxsize=4096)
def _file_hash(path: str, _modified: int, _size: int) -> str:
    if path.endswith(ADAPTER):
        config = json.loads(Path(path).read_text())
        if "base_fingerprint" in config.get("flipbench", {}):  # the path of the base adds nothing
            del config["base_model_name_or_path"]
            return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_card(folder: Path) -> dict[str, Any]:
    """Return a checkpoint's contamination card, or ``{}`` if it has none.

    Raises
    ------
    DataError
        If the card is damaged or names an architecture other than that in ``config.json``.
    PrerequisiteError
        If the folder contains weights, but none as safetensors.
    """
    weights = [
        f.name for f in folder.iterdir() if f.suffix in (".bin", ".pt", ".pth", ".safetensors")
    ]
    if weights and not any(name.endswith(".safetensors") for name in weights):
        raise PrerequisiteError(
            f"{folder}: {weights[0]} is not in safetensors format, the only one supported; convert"
            " it with transformers (save_pretrained)"
        )
    if not (folder / CARD).exists():
        return {}
    try:
        card: dict[str, Any] = json.loads((folder / CARD).read_text())
    except ValueError as error:
        message = f"{folder / CARD}: not JSON ({error}); copy the checkpoint again"
        raise DataError(message) from error
    config = folder / "config.json"
    if config.exists():
        architectures = json.loads(config.read_text()).get("architectures")
        if card.get("architectures") != architectures:
            raise DataError(
                f"{folder}: the card names {card.get('architectures')}, but config.json names"
                f" {architectures}; these weights do not belong to this card"
            )
    return card


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, at most 200 characters."""
    return str(error).strip().split("\n")[0][:200]

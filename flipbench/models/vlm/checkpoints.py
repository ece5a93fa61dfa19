"""What a checkpoint is, before its weights are loaded: where it lies, its hash, its card."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from flipbench.core.errors import DataError, PrerequisiteError

CARD = "flipbench_card.json"
PACKAGED = "shapes:"


def resolve_path(path: str) -> str:
    """Return a checkpoint's folder or hub id; ``shapes:llava`` names one shipped with flipbench."""
    if path.startswith(PACKAGED):
        folder = Path(__file__).parents[2] / "shapes" / "checkpoints" / path[len(PACKAGED) :]
        if not (folder / "config.json").exists():
            raise PrerequisiteError(
                f"{path}: no such packaged model; there are shapes:llava and shapes:qwen2_vl"
            )
        return str(folder)
    return path


def base_of(where: str, revision: str | None = None) -> tuple[str, dict[str, str]]:
    """Return the checkpoint that a LoRA adapter's folder stands on, or ``where`` itself.

    The second part is ``{"revision": ...}`` of that checkpoint, or ``{}``.
    """
    adapter = Path(where) / "adapter_config.json"
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

    A folder is hashed by its files' bytes, a hub id by its name and the commit of ``revision``, an
    adapter by its own files and its base.

    Raises
    ------
    PrerequisiteError
        Where there is no such checkpoint.
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
    """Return a hash of a checkpoint folder: every safetensors and json file but the card."""
    digest = hashlib.sha256()
    files = [
        f for f in sorted(Path(path).iterdir()) if f.suffix in (".safetensors", ".json", ".jinja")
    ]
    for file in files:
        if file.name != CARD:
            digest.update(file.name.encode() + b"\0")
            digest.update(
                _file_hash(str(file), file.stat().st_mtime_ns, file.stat().st_size).encode()
            )
    return digest.hexdigest()


@lru_cache(maxsize=4096)
def _file_hash(path: str, _modified: int, _size: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_card(folder: Path) -> dict[str, Any]:
    """Return the contamination card beside a checkpoint, or ``{}``; it must fit the weights.

    Raises
    ------
    DataError
        Where the card is damaged or tells of another architecture than ``config.json``.
    PrerequisiteError
        Where the folder holds weights, but none as safetensors.
    """
    weights = [
        f.name for f in folder.iterdir() if f.suffix in (".bin", ".pt", ".pth", ".safetensors")
    ]
    if weights and not any(name.endswith(".safetensors") for name in weights):
        raise PrerequisiteError(
            f"{folder}: weights load as safetensors only, and there is only {weights[0]};"
            " convert it with transformers (save_pretrained)"
        )
    if not (folder / CARD).exists():
        return {}
    try:
        card: dict[str, Any] = json.loads((folder / CARD).read_text())
    except ValueError as error:
        raise DataError(f"{folder / CARD}: not JSON ({error}); copy the checkpoint anew") from error
    config = folder / "config.json"
    if config.exists():
        found = json.loads(config.read_text()).get("architectures")
        if card.get("architectures") != found:
            raise DataError(
                f"{folder}: the card says {card.get('architectures')}, but config.json says"
                f" {found}; these weights do not belong to this card"
            )
    return card


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, at most 200 characters."""
    return str(error).strip().split("\n")[0][:200]

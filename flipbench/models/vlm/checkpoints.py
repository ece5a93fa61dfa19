"""A checkpoint without its weights in memory: its path, hash, size and contamination card."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import socket
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit
from urllib.request import getproxies

from safetensors import SafetensorError, safe_open

from flipbench.config.local_models import ImagePadding
from flipbench.core.errors import DataError, PrerequisiteError

log = logging.getLogger(__name__)

CARD = "flipbench_card.json"
ADAPTER, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PACKAGED = "shapes:"
_END, _INDEX = ".safetensors", ".safetensors.index.json"
_FULL, _FULL_INDEX = f"model{_END}", f"model{_INDEX}"
_TEMPLATES = (
    "chat_template.jinja",
    "chat_template.json",
    "processor_config.json",
    "tokenizer_config.json",
)
_LONGEST = 400  # characters of another library's message
_HUB_SECONDS = 3.0
_MOST_LAYERS = 10_000  # the deepest models have a few hundred
_SINGLE_FILES = (_END, ".gguf", ".ckpt", ".bin", ".pt", ".pth", ".sft")


def resolve_path(path: str, index: str = "config.json") -> str:
    """Return a checkpoint's folder or hub id; ``shapes:llava`` is one shipped with flipbench.

    Packaged checkpoints are those that have the file ``index``.
    """
    if path.startswith(PACKAGED):
        packaged = Path(__file__).parents[2] / "shapes" / "checkpoints"
        folder = packaged / path[len(PACKAGED) :]
        if not (folder / index).exists():
            shipped = [PACKAGED + file.parent.name for file in sorted(packaged.glob(f"*/{index}"))]
            raise PrerequisiteError(
                f"{path}: no such packaged model"
                + (f"; choose {' or '.join(shipped)}" if shipped else " of this kind")
            )
        return str(folder)
    return path


def base_of(path: str, revision: str | None = None) -> tuple[str, dict[str, str]]:
    """Return the base checkpoint of a LoRA adapter's folder, or ``path`` if it is none.

    The second value is ``{"revision": ...}`` of that checkpoint, or ``{}``.
    """
    adapter = Path(path) / ADAPTER
    base = path
    if adapter.exists():
        config, card = read_object(adapter), check_card(Path(path))
        parent = card.get("parent") or config.get("base_model_name_or_path")
        if not isinstance(parent, str) or not parent:
            raise DataError(f"{adapter}: it names no base model; copy the checkpoint again")
        base = resolve_path(parent)
        revision = card.get("settings", {}).get("revision") or config.get("revision")
    return base, {"revision": revision} if revision else {}


def padding_of(
    path: str, image_padding: ImagePadding = "auto", revision: str | None = None
) -> Literal["square", "none"]:
    """Return how a checkpoint's pictures are padded before its processor reads them.

    ``auto`` is what a checkpoint trained here was trained with, ``square`` for LLaVA-1.5 (class
    LLaVA, CLIP's tower for 336 pixels), and otherwise ``none``.
    """
    if image_padding != "auto":
        return image_padding
    card = check_card(Path(path)) if Path(path).is_dir() else {}
    if trained_with := card.get("settings", {}).get("image_padding"):
        return "square" if trained_with == "square" else "none"
    config = _config(*base_of(path, revision))
    tower = config.get("vision_config") or {}
    is_llava = config.get("model_type") == "llava" and tower.get("image_size", 336) == 336
    return "square" if is_llava and "clip" in tower.get("model_type", "clip") else "none"


def _config(base: str, at: dict[str, str]) -> dict[str, Any]:
    file = Path(base) / "config.json" if Path(base).is_dir() else _hub_config(base, at)
    return read_object(file) if file.exists() else {}


def fingerprint(
    path: str,
    dtype: str,
    revision: str | None = None,
    quantization: str | None = None,
    image_padding: ImagePadding = "auto",
) -> str:
    """Return a hash of weights, configuration, processor, precision, padding and image backend.

    It covers the bytes of a folder's files, the name and commit of a hub id, or the files of an
    adapter and its base. Where the base of an adapter trained here lies does not matter.
    """
    from transformers.utils import is_torchvision_available

    backend = "torchvision" if is_torchvision_available() else "pil"
    precision = f"{dtype} {quantization}" if quantization else dtype
    base, at = base_of(path, revision)
    if (padding := padding_of(path, image_padding, revision)) != "none":
        precision += f" {padding}"
    if base != path:
        inner = fingerprint(base, dtype, image_padding=padding, **at)
        content = f"beside {folder_hash(path)}{inner}"
    elif Path(path).is_dir():
        content = folder_hash(path)
    else:
        content = (
            f"{path}@{_hub_config(path, at).parent.name}"  # .../snapshots/<commit>/config.json
        )
    return hashlib.sha256(f"{content} {precision} {backend}".encode()).hexdigest()[:24]


def _hub_config(hub_id: str, at: dict[str, str]) -> Path:
    from transformers.utils import cached_file

    try:
        return Path(cached_file(hub_id, "config.json", **at))
    except (OSError, ValueError) as error:
        raise PrerequisiteError(
            f"{hub_id}: no such checkpoint ({first_line(error)}); give a folder or hub id"
        ) from error


def folder_hash(path: str) -> str:
    """Return a hash of a folder's safetensors, json and jinja files, without the card."""
    digest = hashlib.sha256()
    for file in sorted(Path(path).iterdir()):
        if file.suffix in (".safetensors", ".json", ".jinja") and file.name != CARD:
            digest.update(file.name.encode() + b"\0")
            digest.update(file_hash(file).encode())
    return digest.hexdigest()


def file_hash(file: Path) -> str:
    """Return a file's hash; it is read again only after a change."""
    about = file.stat()
    return _file_hash(str(file), about.st_mtime_ns, about.st_size)


@lru_cache(maxsize=4096)
def _file_hash(path: str, _modified: int, _size: int) -> str:
    if path.endswith(ADAPTER):
        config = read_object(Path(path))
        if "base_fingerprint" in config.get("flipbench", {}):  # the path of the base adds nothing
            del config["base_model_name_or_path"]
            return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def n_weights(path: str, revision: str | None = None) -> dict[str, int] | None:
    """Return the number of weights in a checkpoint's folder ("") and in each of its subfolders.

    ``path`` is a folder or a hub id, which is read from the hub's cache, or else from the hub if it
    can be reached. An adapter's base is counted with it. None if the checkpoint is neither here,
    nor complete, nor on the hub; a damaged file is a `DataError`.
    """
    source = resolve_path(path)
    base, at = base_of(source, revision)
    counts = _in_folder(Path(base)) if Path(base).is_dir() else _of_hub_id(base, at.get("revision"))
    if counts is not None and base != source:
        counts = Counter(counts) + Counter(_in_folder(Path(source)))
    return dict(counts) if counts else None


def _in_folder(folder: Path) -> dict[str, int] | None:
    from huggingface_hub import parse_local_safetensors_file_metadata as read_header
    from huggingface_hub.errors import SafetensorsParsingError

    counts = Counter[str]()
    for part in (folder, *(path for path in sorted(folder.iterdir()) if path.is_dir())):
        files = set(_weight_files([path.name for path in part.iterdir()]))
        if not all(_shards_in(index) <= files for index in part.glob(f"*{_INDEX}")):
            return None
        for name in sorted(files):
            key = "" if part == folder else part.name
            try:
                counts[key] += sum(read_header(part / name).parameter_count.values())
            except (SafetensorsParsingError, OSError) as error:
                raise _damaged_weights(part / name, error) from error
    return counts


def _shards_in(index: Path) -> set[str]:
    """Return the names of the files that an index of weights refers to."""
    shards = read_object(index).get("weight_map")
    return set(shards.values()) if isinstance(shards, dict) else {"its weight_map"}


def _damaged_weights(path: Path, error: Exception) -> DataError:
    return DataError(f"{path}: damaged weights ({first_line(error)}); copy the checkpoint again")


def _of_hub_id(hub_id: str, revision: str | None) -> dict[str, int] | None:
    from huggingface_hub import HfApi, snapshot_download

    try:
        cached = _in_folder(
            Path(snapshot_download(hub_id, revision=revision, local_files_only=True))
        )
    except Exception as error:  # whatever the reason, it is not in the cache
        log.debug("%s is not in the cache: %s", hub_id, error)
        cached = None
    if cached:
        return cached
    check_hub()
    hub, counts = HfApi(), Counter[str]()
    try:
        for file in _weight_files(hub.list_repo_files(hub_id, revision=revision)):
            header = hub.parse_safetensors_file_metadata(hub_id, file, revision=revision)
            counts[file.rpartition("/")[0]] += sum(header.parameter_count.values())
    except Exception as error:  # whatever the reason, the hub gives no answer
        log.debug("the hub does not give the size of %s: %s", hub_id, error)
        return None
    return counts


def _weight_files(names: list[str]) -> Iterator[str]:
    """Yield the weights, without copies in another precision such as ``model.fp16.safetensors``."""
    for name in names:
        if name.endswith(_END) and name.count("/") <= 1 and not name.endswith(f".fp16{_END}"):
            yield name


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
    card = read_object(folder / CARD)
    for name, kind in (("parent", str), ("settings", dict), ("doses", dict)):
        if not isinstance(card.get(name, kind()), kind):
            raise DataError(f"{folder / CARD}: {name!r} is damaged; copy the checkpoint again")
    config = folder / "config.json"
    if config.exists():
        architectures = read_object(config).get("architectures")
        if card.get("architectures") != architectures:
            raise DataError(
                f"{folder}: the card names {card.get('architectures')}, but config.json names"
                f" {architectures}; these weights do not belong to this card"
            )
    return card


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; anything else is a `DataError`."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        message = f"{path}: not JSON ({first_line(error)}); copy the checkpoint again"
        raise DataError(message) from error
    if not isinstance(value, dict):
        raise DataError(
            f"{path}: not a JSON object but a {type(value).__name__}; copy the checkpoint again"
        )
    return value


def check_layers(config: dict[str, Any], source: object) -> None:
    """Refuse a configuration with more layers than any model has, before a library lists them."""
    for name, value in config.items():
        counts_layers = "layer" in name or name == "depth"
        if isinstance(value, dict):
            check_layers(value, source)
        elif counts_layers and isinstance(value, int) and value > _MOST_LAYERS:
            raise DataError(
                f"{source}: {name} is {value:,}, more than {_MOST_LAYERS:,}; copy the checkpoint"
                " again"
            )


def check_files(path: str) -> None:
    """Check that the files of a checkpoint's folder, and of its base, are there and whole.

    Weights are not read: a safetensors file says how long it must be. Of hub ids, only
    whether the hub can be reached, and that they are no adapters, is checked.

    Raises
    ------
    DataError, PrerequisiteError
        If a file is missing, cut or not of its format, a folder holds no checkpoint, or as
        `check_card`.
    """
    refuse_single_file(path)
    base, at = base_of(path)
    for place in dict.fromkeys((path, base)):
        folder = Path(place)
        if not folder.is_dir():
            check_hub()
            _refuse_adapter_on_hub(place, at)
            continue
        check_card(folder)
        _check_folder(folder)
    if base != path:
        _check_templates(Path(path), base, at)


@cache
def check_hub() -> None:
    """Switch to the cache alone if the hub cannot be reached; asked once per process.

    Otherwise its client tries each file again for half a minute, with a warning for each try.
    Behind a proxy, nothing is asked. Processes started from this one do the same.
    """
    from huggingface_hub import constants

    address = urlsplit(constants.ENDPOINT)
    port = address.port or (443 if address.scheme == "https" else 80)
    if constants.HF_HUB_OFFLINE or address.scheme in getproxies() or not address.hostname:
        return
    try:
        socket.create_connection((address.hostname, port), _HUB_SECONDS).close()
    except OSError as error:
        log.warning(
            "%s cannot be reached (%s); using what is in the cache only", address.hostname, error
        )
        constants.HF_HUB_OFFLINE = True
        os.environ["HF_HUB_OFFLINE"] = "1"
        if "datasets" in sys.modules:
            sys.modules["datasets"].config.HF_HUB_OFFLINE = True


def _refuse_adapter_on_hub(hub_id: str, at: dict[str, str]) -> None:
    """Refuse a hub id with an adapter, which transformers would load, unchecked, onto its base."""
    if _hub_file(hub_id, ADAPTER, at):
        raise PrerequisiteError(
            f"{hub_id}: it has an adapter ({ADAPTER}), and adapters are read from folders only;"
            f" download it ('hf download {hub_id} --local-dir FOLDER') and give the folder"
        )


def refuse_single_file(path: str) -> None:
    """Refuse one file of weights, which says nothing of the model that it is for."""
    if Path(path).is_file() or path.lower().endswith(_SINGLE_FILES) and not Path(path).is_dir():
        raise PrerequisiteError(
            f"{path}: single files of weights (GGUF, fp8, original layouts) are not supported; give"
            " a folder written by save_pretrained, or a hub id, with configuration and safetensors"
            " weights"
        )


def _check_templates(adapter: Path, base: str, at: dict[str, str]) -> None:
    """Refuse a chat template beside an adapter that its base, whose template is used, lacks."""
    base_templates = {text for _, text in _templates(base, at)}
    if not base_templates and not Path(base).is_dir():
        return  # the hub cannot be reached, and nothing of the base is here
    architectures = _config(base, at).get("architectures")
    if check_card(adapter).get("architectures", architectures) != architectures:
        return  # the wrong base altogether, which loading it says
    for file, text in _templates(str(adapter), {}):
        if text not in base_templates:
            raise DataError(
                f"{adapter / file}: another chat template than that of its base {base}, and"
                " which of the two it was trained with is not known; remove the one beside the"
                " adapter to ask with the base's, or put it in the base's place"
            )


def _templates(source: str, at: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the chat templates of a checkpoint, each with its file's name."""
    for name in _TEMPLATES:
        path = Path(source) / name if Path(source).is_dir() else _hub_file(source, name, at)
        if path is None or not path.exists():
            continue
        if path.suffix == ".jinja":
            yield name, path.read_text(errors="replace").strip()
            continue
        template = read_object(path).get("chat_template")
        several = template if isinstance(template, list) else [{"template": template}]
        texts = [entry.get("template") for entry in several if isinstance(entry, dict)]
        yield from ((name, text.strip()) for text in texts if isinstance(text, str))


def _hub_file(hub_id: str, name: str, at: dict[str, str]) -> Path | None:
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(hub_id, name, revision=at.get("revision")))
    except (OSError, ValueError) as error:  # none, or no such checkpoint, which loading it says
        log.debug("%s of %s is not known: %s", name, hub_id, error)
        return None


def _check_folder(folder: Path) -> None:
    if not any((folder / name).exists() for name in ("config.json", ADAPTER)):
        raise PrerequisiteError(
            f"{folder}: cannot load a vision-language model (no config.json); give a folder or hub"
            " id with config.json, a processor and safetensors weights"
        )
    for path in sorted({*folder.glob("*config.json"), *folder.glob("tokenizer.json")}):
        content = read_object(path)
        if path.name == "config.json":
            check_layers(content, path)
    weights = {path.name for path in folder.glob("*.safetensors")}
    _check_candidates(folder, weights)
    for path in folder.glob(f"*{_INDEX}"):
        if lost := sorted(_shards_in(path) - weights):
            raise DataError(f"{folder}: {lost[0]} is missing; copy the checkpoint again")
    if not weights:
        raise DataError(f"{folder}: there are no safetensors weights; copy the checkpoint again")
    for name in sorted(weights):
        try:
            with safe_open(folder / name, framework="numpy"):
                pass
        except (SafetensorError, OSError) as error:
            raise _damaged_weights(folder / name, error) from error


def _check_candidates(folder: Path, weights: set[str]) -> None:
    """Refuse a folder of which two different models could be loaded."""
    index = folder / _FULL_INDEX
    shards = _shards_in(index) if index.exists() else set()
    adapter = [name for name in (ADAPTER, ADAPTER_WEIGHTS) if (folder / name).exists()]
    full = [_FULL] if _FULL in weights else [_FULL_INDEX] if shards else []
    if adapter and full:
        raise DataError(
            f"{folder}: both full weights ({full[0]}) and an adapter ({adapter[0]}), and which of"
            " the two is meant is not known; move one of them to a folder of its own"
        )
    if _FULL in weights and shards and _FULL not in shards:
        raise DataError(
            f"{folder}: both {_FULL} and the shards of {_FULL_INDEX}, and which of the two is meant"
            " is not known; move one of them to a folder of its own"
        )


def first_line(error: Exception) -> str:
    r"""Return the first line of an error's message; a heading with what it introduces.

    The middle of a long one is left out, since the reason is at its beginning or its end.

    >>> first_line(ValueError("cannot load x:\n\tno such tensor\n..."))
    'cannot load x: no such tensor'
    """
    lines = str(error).strip().splitlines() or [type(error).__name__]
    text = lines[0].strip()
    if text.endswith(":") and (further := [line for line in map(str.strip, lines[1:]) if line]):
        text = f"{text} {further[0]}"
    return text if len(text) <= _LONGEST else f"{text[:199]} … {text[-198:]}"

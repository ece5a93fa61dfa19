"""How many weights a checkpoint holds, from the headers of its files: nothing is loaded."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from flipbench.models.vlm.checkpoints import base_of, resolve_path
from flipbench.models.vlm.hub import check_hub

log = logging.getLogger(__name__)
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Of a weight, by precision."""
_END, _INDEX = ".safetensors", ".safetensors.index.json"


def n_weights(path: str, revision: str | None = None) -> dict[str, int] | None:
    """Return the number of weights in a checkpoint's folder and in each of its subfolders.

    ``path`` is a folder or a hub id, which is read from the hub's cache, or else from the hub if it
    can be reached. The key of the folder itself is ``""``; an adapter's base is counted with it.

    Returns
    -------
    dict of str to int, or None
        None if the checkpoint is neither here, nor complete, nor on the hub.
    """
    where = resolve_path(path)
    base, at = base_of(where, revision)
    counts = _in_folder(Path(base)) if Path(base).is_dir() else _of_hub_id(base, at.get("revision"))
    if counts is not None and base != where:
        counts = Counter(counts) + Counter(_in_folder(Path(where)))
    return dict(counts) if counts else None


def _in_folder(folder: Path) -> dict[str, int] | None:
    from huggingface_hub import parse_local_safetensors_file_metadata as read_header

    counts = Counter[str]()
    for part in (folder, *(path for path in sorted(folder.iterdir()) if path.is_dir())):
        files = set(_weight_files([path.name for path in part.iterdir()]))
        for index in part.glob(f"*{_INDEX}"):
            if not set(json.loads(index.read_text())["weight_map"].values()) <= files:
                return None
        for name in sorted(files):
            key = "" if part == folder else part.name
            counts[key] += sum(read_header(part / name).parameter_count.values())
    return counts


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

"""Load a diffusers pipeline, put it where it runs, and say what it is."""

from __future__ import annotations

import hashlib
import inspect
import json
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from flipbench.config.local_models import Dtype
from flipbench.core.errors import ConfigError, PrerequisiteError, nearest, need
from flipbench.core.records import JsonDict, Value
from flipbench.models.vlm.checkpoints import folder_hash

from .sizes import SizeRule, SizeSpec

OFFLOADS = ("none", "text", "model")


class PipelineSpec(Value):
    """Which pipeline draws, at which sizes, and how it is run."""

    pipeline: str = Field(description="folder or hub id")
    revision: str | None = None
    sizes: SizeSpec = SizeSpec()
    batch_size: int = Field(default=1, ge=1, description="1 is the exact mode")
    dtype: Dtype = "bfloat16"
    device: str = "auto"
    offload: Literal["none", "text", "model"] = "none"
    compile: bool = False

    def options(self) -> dict[str, Any]:
        """Return these settings as arguments of an editor."""
        return self.model_dump(include=set(PipelineSpec.model_fields)) | {
            "sizes": SizeRule(**self.sizes.model_dump())
        }


def diffusers() -> Any:
    """Return the package, or say how to install it."""
    return need("diffusers", "diffusion")


def find_pipeline(path: str, revision: str | None = None) -> tuple[Path, JsonDict]:
    """Return a pipeline's folder, fetched from the hub if ``path`` is no folder, and its index.

    Raises
    ------
    PrerequisiteError
        Where there is no pipeline.
    """
    folder = Path(path)
    if not folder.is_dir():
        try:
            download = diffusers().DiffusionPipeline.download
            folder = Path(download(path, revision=revision, use_safetensors=True))
        except (OSError, ValueError) as error:
            raise PrerequisiteError(
                f"{path}: neither a folder nor a pipeline of the hub that can be fetched"
                f" ({first_line(error)})"
            ) from error
    try:
        index = json.loads((folder / "model_index.json").read_text())
        index["_class_name"] = str(index["_class_name"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PrerequisiteError(
            f"{path}: no diffusers pipeline there (it would have a model_index.json with its"
            " class); give the folder that save_pretrained wrote, or a hub id"
        ) from error
    for part in parts_of(index):
        if not (folder / part).is_dir():
            raise PrerequisiteError(
                f"{path}: its model_index.json names {part!r}, which is not there; get it again"
            )
    return folder, index


def parts_of(index: JsonDict) -> list[str]:
    """Return the names of a pipeline's parts, each a folder."""
    return sorted(name for name, what in index.items() if isinstance(what, list) and what[0])


def load_pipeline(folder: Path, class_name: str, dtype: str, **components: Any) -> Any:
    """Load a pipeline of the class ``class_name`` from safetensors.

    Raises
    ------
    ConfigError
        Where diffusers has no such pipeline.
    PrerequisiteError
        Where the folder holds no such pipeline, or its weights are not safetensors.
    """
    return _load(find_class(class_name), folder, dtype, class_name, **components)


def load_part(folder: Path, class_name: str, dtype: str) -> Any:
    """Load one model, such as a ControlNet, from safetensors."""
    return _load(getattr(diffusers(), class_name), folder, dtype, class_name)


def find_part(path: str, revision: str | None = None) -> Path:
    """Return one model's folder, fetched from the hub if ``path`` is no folder.

    Raises
    ------
    PrerequisiteError
        Where there is no such folder and no such repository.
    """
    if Path(path).is_dir():
        if not (Path(path) / "config.json").exists():
            raise PrerequisiteError(f"{path}: no model there (it would have a config.json)")
        return Path(path)
    from huggingface_hub import snapshot_download

    try:
        return Path(
            snapshot_download(path, revision=revision, allow_patterns=["*.json", "*.safetensors"])
        )
    except (OSError, ValueError) as error:
        raise PrerequisiteError(
            f"{path}: neither a folder nor a model of the hub that can be fetched"
            f" ({first_line(error)})"
        ) from error


def find_class(name: str) -> Any:
    """Return the pipeline class of diffusers that is called ``name``."""
    package = diffusers()
    known = [n for n in dir(package) if n.endswith("Pipeline")]
    if name not in known:
        raise ConfigError(f"diffusers {package.__version__} has no {name!r}{nearest(name, known)}")
    return getattr(package, name)


def call_arguments(cls: Any) -> dict[str, Any]:
    """Return the arguments of a pipeline class's call and their defaults."""
    signature = inspect.signature(cls.__call__)
    named = (p for p in signature.parameters.values() if p.kind == p.POSITIONAL_OR_KEYWORD)
    return {p.name: p.default for p in named if p.name != "self"}


def size_factor(pipeline: Any) -> int:
    """Return what both sides of a picture must be a multiple of."""
    processor = getattr(pipeline, "image_processor", None)
    if processor is not None:
        return int(processor.config.vae_scale_factor)
    return int(getattr(pipeline, "vae_scale_factor", 8)) * 2


def place(pipeline: Any, device: str, offload: str) -> None:
    """Put a pipeline on ``device``, as a whole or part by part while it runs."""
    if offload == "model":
        pipeline.enable_model_cpu_offload(device=device)
    else:
        pipeline.to(device)


def resolve_device(device: str, offload: str) -> str:
    """Return ``cuda`` where ``auto`` finds a GPU, else ``cpu``; other names as they are.

    Raises
    ------
    ConfigError
        Where ``offload`` is unknown, or there is no GPU to free.
    """
    import torch

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if offload not in OFFLOADS:
        raise ConfigError(f"offload: {offload!r} is none of {OFFLOADS}")
    if offload != "none" and torch.device(device).type == "cpu":
        raise ConfigError(f"offload: {offload!r} frees GPU memory, and there is no GPU; use 'none'")
    return device


def fingerprint(folder: Path, index: JsonDict) -> str:
    """Return a hash of a pipeline's index and of the weights and configurations of its parts."""
    digest = hashlib.sha256(json.dumps(index, sort_keys=True).encode())
    for part in parts_of(index):
        if (folder / part).is_dir():
            digest.update(f"{part} {folder_hash(str(folder / part))}\0".encode())
    return digest.hexdigest()[:24]


def part_fingerprint(folder: Path) -> str:
    """Return a hash of one model's weights and configuration."""
    return folder_hash(str(folder))[:24]


def first_line(error: Exception) -> str:
    """Return an error's first line, shortened."""
    return (str(error).strip().split("\n")[0] or type(error).__name__)[:200]


def _load(cls: Any, where: str | Path, dtype: str, what: str, **options: Any) -> Any:
    import torch

    try:
        return cls.from_pretrained(
            where, dtype=getattr(torch, dtype), use_safetensors=True, **options
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise PrerequisiteError(
            f"{where}: cannot load a {what} from there ({first_line(error)}); give a folder or hub"
            " id with its configuration and safetensors weights"
        ) from error

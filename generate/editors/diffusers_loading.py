"""Find, load, place and fingerprint diffusers pipelines."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from flipbench.config.local_models import Dtype
from flipbench.core.errors import ConfigError, PrerequisiteError, nearest, need
from flipbench.core.records import JsonDict, Value
from flipbench.models.estimates import BYTES
from flipbench.models.vlm.checkpoints import (
    file_hash,
    first_line,
    folder_hash,
    n_weights,
    refuse_single_file,
    resolve_path,
)

from .sizes import SizeRule

LORA_FILE = "pytorch_lora_weights.safetensors"


class LoRA(Value):
    """LoRA weights for the transformer of a diffusers pipeline."""

    path: str = Field(
        description="a file, owner/repository/file on the hub, or a folder or hub id with"
        f" {LORA_FILE}"
    )
    revision: str | None = Field(default=None, description="commit of a hub id")
    weight: float = Field(default=1.0, description="factor of what it adds to the weights")


class FirstBlockCache(Value):
    """Reuse the other blocks' output of the last step if the first block's hardly changes."""

    kind: Literal["first-block"] = "first-block"
    threshold: float = Field(
        default=0.05, gt=0, description="relative change of the first block's output"
    )


class TaylorSeerCache(Value):
    """Predict the attention's output of some steps from that of the steps before.

    References
    ----------
    Liu et al., arXiv 2503.06923, as implemented in diffusers.
    """

    kind: Literal["taylorseer"] = "taylorseer"
    interval: int = Field(default=2, ge=2, description="every how many steps it is computed")
    warmup: int = Field(default=3, ge=2, description="first steps, all of them computed")
    order: int = Field(default=1, ge=0, le=3, description="order of the Taylor series")
    lite: bool = Field(
        default=False, description="predict the transformer's whole output, not each attention's"
    )


class PipelineSpec(Value):
    """Settings shared by all editors that run a diffusers pipeline."""

    pipeline: str = Field(description="folder or hub id")
    revision: str | None = Field(default=None, description="commit of a hub id")
    sizes: SizeRule = SizeRule()
    loras: tuple[LoRA, ...] = Field(
        default=(), description="LoRA weights to add to the transformer, each with its weight"
    )
    cache: FirstBlockCache | TaylorSeerCache | None = Field(
        default=None,
        description="reuse what was computed in earlier steps; first-block is refused with a"
        " ControlNet",
    )
    attention: str | None = Field(
        default=None,
        description="attention back end of diffusers, such as flash or sage; torch's own if not"
        " given",
    )
    quantize: Literal["int8", "int8-dynamic", "int4", "float8"] | None = Field(
        default=None, description="weights of the transformer, by torchao"
    )
    batch_size: int = Field(
        default=1, ge=1, description="1 makes results independent of other items"
    )
    dtype: Dtype = "bfloat16"
    device: str = Field(default="auto", description="auto: the first GPU if there is one")
    offload: Literal["none", "text", "model"] = Field(
        default="none",
        description="what to keep in main memory while not in use: nothing, Flux's text encoders,"
        " or every model; each level saves GPU memory and costs time",
    )
    compile: bool = Field(
        default=False,
        description="compile the transformer's repeated blocks; the first images take minutes",
    )

    def memory(self) -> int | None:
        """Return the bytes of the weights on the device at a time; None if they are not known."""
        parts = self.n_weights()
        if parts is None:
            return None
        sizes = [BYTES[self.dtype] * n for n in parts.values()]
        return max(sizes) if self.offload == "model" else sum(sizes)

    def n_weights(self) -> dict[str, int] | None:
        """Return the number of weights of each part; None if they are not known."""
        parts = n_weights(resolve_path(self.pipeline, "model_index.json"), self.revision)
        if parts is None:
            return None
        return {part: n for part, n in parts.items() if part}  # beside them, a copy in one file


def diffusers() -> Any:
    """Return the package diffusers, or raise with instructions to install it.

    It shows no bars of loading; those of downloads are the hub's.
    """
    package = need("diffusers", "diffusion")
    package.utils.logging.disable_progress_bar()
    return package


def find_pipeline(path: str, revision: str | None = None) -> tuple[Path, JsonDict]:
    """Return a pipeline's folder, downloaded if ``path`` is a hub id, and its index.

    Raises
    ------
    PrerequisiteError
        If there is no such pipeline.
    """
    refuse_single_file(path)
    folder = Path(resolve_path(path, "model_index.json"))
    if not folder.is_dir():
        try:
            download = diffusers().DiffusionPipeline.download
            folder = Path(download(path, revision=revision, use_safetensors=True))
        except (OSError, ValueError) as error:
            raise PrerequisiteError(
                f"{path}: neither a folder nor a pipeline that can be downloaded from the hub"
                f" ({first_line(error)})"
            ) from error
    try:
        index = json.loads((folder / "model_index.json").read_text())
        index["_class_name"] = str(index["_class_name"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PrerequisiteError(
            f"{path}: not a diffusers pipeline (no model_index.json with a class name);"
            " give a folder written by save_pretrained, or a hub id"
        ) from error
    for part in parts_of(index):
        if not (folder / part).is_dir():
            raise PrerequisiteError(
                f"{path}: model_index.json names {part!r}, which is missing; download it again"
            )
    return folder, index


def parts_of(index: JsonDict) -> list[str]:
    """Return the names of a pipeline's component folders."""
    return sorted(name for name, kind in index.items() if isinstance(kind, list) and kind[0])


def find_part(path: str, revision: str | None = None) -> Path:
    """Return a single model's folder, or its weights if they are one file.

    ``path`` is a folder, a hub id, or either with the name of a file at its end
    (``owner/repository/weights.safetensors``); what is on the hub is downloaded.

    Raises
    ------
    PrerequisiteError
        If there is no such folder, file or repository.
    """
    if path.endswith(".safetensors"):
        return find_file(path, revision)
    refuse_single_file(path)
    if Path(path).is_dir():
        if not (Path(path) / "config.json").exists():
            raise PrerequisiteError(f"{path}: not a model (no config.json)")
        return Path(path)
    from huggingface_hub import snapshot_download

    try:
        return Path(
            snapshot_download(path, revision=revision, allow_patterns=["*.json", "*.safetensors"])
        )
    except (OSError, ValueError) as error:
        raise PrerequisiteError(
            f"{path}: neither a folder nor a model that can be downloaded from the hub"
            f" ({first_line(error)})"
        ) from error


def find_file(path: str, revision: str | None = None) -> Path:
    """Return a file of safetensors, downloaded if ``path`` is a hub id and a file's name.

    Raises
    ------
    PrerequisiteError
        If there is no such file.
    """
    if Path(path).is_file():
        return Path(path)
    from huggingface_hub import hf_hub_download

    owner, name, file = (*path.split("/", 2), "", "")[:3]
    try:
        return Path(hf_hub_download(f"{owner}/{name}", file, revision=revision))
    except (OSError, ValueError) as error:
        raise PrerequisiteError(
            f"{path}: neither a file nor one that can be downloaded from the hub"
            f" ({first_line(error)})"
        ) from error


def part_hash(path: Path) -> str:
    """Return a hash of a single model: a folder's files, or one file."""
    if path.is_dir():
        return folder_hash(str(path))
    return file_hash(path)


def with_controlnet(
    parts: dict[str, int] | None, controlnet: str | None, revision: str | None
) -> dict[str, int] | None:
    """Add a ControlNet's number of weights to those of a pipeline's parts; None if not known."""
    if parts is None or controlnet is None:
        return parts
    single_file = controlnet.endswith(".safetensors")
    counts = None if single_file else n_weights(controlnet, revision)
    return None if counts is None else parts | {"controlnet": sum(counts.values())}


def find_class(name: str) -> Any:
    """Return the diffusers pipeline class ``name``."""
    package = diffusers()
    names = [n for n in dir(package) if n.endswith("Pipeline")]
    if name not in names:
        raise ConfigError(f"diffusers {package.__version__} has no {name!r}{nearest(name, names)}")
    return getattr(package, name)


def call_arguments(cls: Any) -> dict[str, Any]:
    """Return the arguments of a pipeline's ``__call__`` and their defaults."""
    signature = inspect.signature(cls.__call__)
    parameters = signature.parameters.values()
    positional = (p for p in parameters if p.kind == p.POSITIONAL_OR_KEYWORD)
    return {p.name: p.default for p in positional if p.name != "self"}


def size_factor(pipeline: Any) -> int:
    """Return the number that both sides of an image must be a multiple of."""
    processor = getattr(pipeline, "image_processor", None)
    if processor is not None:
        return int(processor.config.vae_scale_factor)
    return int(getattr(pipeline, "vae_scale_factor", 8)) * 2


def place(pipeline: Any, spec: PipelineSpec, device: str) -> Any:
    """Return a pipeline on ``device``, all at once or, offloaded, model by model as it runs."""
    pipeline.set_progress_bar_config(disable=True)
    if spec.offload == "model":
        pipeline.enable_model_cpu_offload(device=device)
    else:
        pipeline.to(device)
    if spec.compile:
        pipeline.transformer.compile_repeated_blocks(dynamic=True)
    return pipeline


@contextmanager
def seeded(seed: int, device: str) -> Iterator[None]:
    """Seed torch's global generators for a while, then restore them.

    Some pipelines draw from them although they are given a generator: Qwen-Image's, when they
    encode a masked image.
    """
    import torch

    cuda = torch.device(device).type == "cuda"
    with torch.random.fork_rng([torch.cuda.current_device()] if cuda else []):
        torch.manual_seed(seed)
        yield


def resolve_device(device: str, offload: str) -> str:
    """Resolve ``auto`` to ``cuda`` if there is a GPU, else to ``cpu``.

    Raises
    ------
    ConfigError
        If ``offload`` needs a GPU and there is none.
    """
    import torch

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if offload != "none" and torch.device(device).type == "cpu":
        raise ConfigError(f"offload: {offload!r} frees GPU memory, but there is no GPU; use 'none'")
    return device


def fingerprint(folder: Path, index: JsonDict) -> str:
    """Return a hash of a pipeline's index and of the weights and configurations of its parts."""
    digest = hashlib.sha256(json.dumps(index, sort_keys=True).encode())
    for part in parts_of(index):
        if (folder / part).is_dir():
            digest.update(f"{part} {folder_hash(str(folder / part))}\0".encode())
    return digest.hexdigest()[:24]

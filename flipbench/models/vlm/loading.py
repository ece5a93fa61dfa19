"""Load a checkpoint's weights: full models, adapters on their base, or in 4 bits."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import (
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    AutoConfig,
    AutoModelForImageTextToText,
    BitsAndBytesConfig,
    PreTrainedConfig,
)

from flipbench.config.local_models import ModelConfig, Quantization
from flipbench.core.errors import FlipbenchError, PrerequisiteError, need
from flipbench.models.loading_report import load_pretrained
from flipbench.models.protocols import Capability
from flipbench.models.vlm.adapters import Placement, attach_adapter
from flipbench.models.vlm.checkpoints import (
    base_of,
    check_files,
    check_layers,
    first_line,
    resolve_path,
)
from flipbench.models.vlm.families import family_of

log = logging.getLogger(__name__)


def usable_device(name: str) -> str:
    """Return a device of this machine; for ``auto`` a GPU if there is one, else the CPU."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise PrerequisiteError(
            f"device {name}: not on this machine ({first_line(error)}); choose auto, cpu, or cuda"
            " with a GPU and a build of torch for it"
        ) from error
    return name


def load_model(
    path: str,
    dtype: str,
    revision: str | None = None,
    *,
    merge: bool = True,
    quantization: Quantization | None = None,
    config: Any = None,
    **options: Any,
) -> Any:
    """Load a checkpoint's weights.

    Parameters
    ----------
    merge : bool
        Whether to merge an adapter into its base, for further training. Otherwise its matrices
        stay separate, as in training: merging rounds them to the base's precision.
    quantization : {"4bit"}, optional
        Load the language model in 4 bits; see `four_bits`.
    config : PreTrainedConfig, optional
        The base's `architecture`, if it is loaded already.
    **options
        For ``from_pretrained``.

    Raises
    ------
    DataError, PrerequisiteError
        If a tensor is missing, has no place or another shape; if bitsandbytes is missing or cannot
        be used here; or as `attach_adapter`.
    """
    base, at = base_of(path, revision)
    if quantization:
        need("bitsandbytes", "qlora")
        options["quantization_config"] = four_bits(base, dtype, **at, **options)
    options |= {"config": config} if config else {}
    try:
        model = load_pretrained(
            AutoModelForImageTextToText, base, "model", dtype=getattr(torch, dtype), **at, **options
        )
    except RuntimeError as error:
        if not quantization:
            raise
        raise PrerequisiteError(
            f"{path}: bitsandbytes cannot load 4-bit weights here ({error}); it needs a version"
            " that fits torch and usually a CUDA GPU"
        ) from error
    if base == path:
        return model
    adapted, _ = attach_adapter(model, path)
    # peft has inserted the adapter's matrices into this model
    merges = merge and not quantization
    return adapted.merge_and_unload() if merges else adapted.get_base_model()


def check_weights(model: ModelConfig) -> Placement | None:
    """Check that a checkpoint's tensors have their places, by their names and shapes alone.

    Those of a model on the hub, and of one whose weights are quantised already, are only checked
    when it is loaded; an adapter of such a model is checked here. Returns an adapter's placement,
    None for a full model; raises as `load_model`.
    """
    path = resolve_path(model.path)
    check_files(path)
    base, at = base_of(path, model.revision)
    trust = {"trust_remote_code": model.trust_remote_code}
    try:
        config = architecture(base, **at, **trust)
        if Path(base).is_dir() and not hasattr(config, "quantization_config"):
            options = {"device_map": "meta", "config": config, **trust}
            skeleton = load_pretrained(AutoModelForImageTextToText, base, "model", **options)
        elif base != path:
            with torch.device("meta"):
                skeleton = AutoModelForImageTextToText.from_config(config, **trust)
        return None if base == path else attach_adapter(skeleton, path, only_shapes=True)[1]
    except FlipbenchError:
        raise
    except Exception as error:  # not every class can be built without weights: loading it decides
        log.debug("%s cannot be checked without loading it: %s", path, error)
        return None


def four_bits(path: str, dtype: str, **options: Any) -> Any:
    """Return the configuration that loads a language model's linear layers in 4 bits.

    NF4 with double quantisation, computing in ``dtype``, as in QLoRA (Dettmers et al., 2023,
    section 3). Vision tower, projector and head are not quantised.
    """
    config = AutoConfig.from_pretrained(path, **options)
    with torch.device("meta"):
        skeleton = AutoModelForImageTextToText.from_config(config)
    language = {id(module) for module in skeleton.get_decoder().modules()}
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=getattr(torch, dtype),
        llm_int8_skip_modules=[
            name
            for name, module in skeleton.named_modules()
            if isinstance(module, torch.nn.Linear) and id(module) not in language
        ],
    )


def architecture(path: str, **options: Any) -> Any:
    """Return the configuration of a checkpoint that reads images, without reading its weights."""
    check_layers(PreTrainedConfig.get_config_dict(path, **options)[0], path)
    config = AutoConfig.from_pretrained(path, **options)
    own_code = "AutoModelForImageTextToText" in getattr(config, "auto_map", {})
    if type(config) not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING and not own_code:
        raise PrerequisiteError(
            f"{path}: type {config.model_type!r} is not an image-text-to-text model of"
            " transformers; give a vision-language model"
        )
    return config


def capabilities(path: str, revision: str | None = None, **options: Any) -> frozenset[Capability]:
    """Return a checkpoint's capabilities, from its configuration alone."""
    base, at = base_of(resolve_path(path), revision)
    try:
        return family_of(architecture(base, **at, **options)).can
    except (OSError, ValueError, KeyError, TypeError, StrictDataclassError) as error:
        raise PrerequisiteError(
            f"{path}: its configuration cannot be read ({first_line(error)}); copy the checkpoint"
            " again, or set trust_remote_code if it needs code that you trust"
        ) from error

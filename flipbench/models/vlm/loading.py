"""Load a checkpoint's weights: adapters on their base, in 4 bits, or as they are."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from transformers import (
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    AutoConfig,
    AutoModelForImageTextToText,
    BitsAndBytesConfig,
)

from flipbench.config.raters import Quantization
from flipbench.core.errors import DataError, PrerequisiteError, need
from flipbench.models.plugins import keep_protocol
from flipbench.models.protocols import VLM, Capability
from flipbench.models.vlm.checkpoints import base_of, check_card, resolve_path
from flipbench.models.vlm.families import family_of


def as_vlm(model: str | Path | VLM, name: str | None = None, **options: Any) -> VLM:
    """Return a model that can be asked: one that is there already, or a checkpoint's.

    Parameters
    ----------
    model : str, path or VLM
        Folder, hub id, ``shapes:llava``, or an object that keeps the protocol.
    name : str, optional
        What tables call a checkpoint.
    **options
        How a checkpoint is loaded; see `HuggingFaceVLM`.

    Raises
    ------
    ConfigError
        Where the object lacks an attribute of the protocol.
    PrerequisiteError, DataError
        As `HuggingFaceVLM`.
    """
    if isinstance(model, str | Path):
        from flipbench.models.vlm.huggingface import HuggingFaceVLM

        return HuggingFaceVLM(str(model), name, **options)
    vlm: VLM = keep_protocol(model, VLM, "model")
    return vlm


def load_model(
    where: str,
    dtype: str,
    revision: str | None = None,
    *,
    merge: bool = True,
    quantization: Quantization | None = None,
    **options: Any,
) -> Any:
    """Load a checkpoint's weights.

    Parameters
    ----------
    merge : bool
        Whether an adapter is added to its base's weights, to train on; otherwise its matrices stay
        apart, which is what was trained: in low precision a sum is rounded to its base's precision.
    quantization : {"4bit"}, optional
        Keep the language model's matrices in 4 bits; see `four_bits`.
    **options
        For ``from_pretrained``.

    Raises
    ------
    DataError
        Where an adapter's contamination card tells of another architecture than its base's.
    PrerequisiteError
        Where bitsandbytes is missing, or cannot be used here; where an adapter is of another sort
        than matrices beside others (prompt tuning), or cannot be merged.
    """
    base, at = base_of(where, revision)
    if quantization:
        need("bitsandbytes", "qlora")
        options["quantization_config"] = four_bits(base, dtype, **at, **options)
    try:
        model = AutoModelForImageTextToText.from_pretrained(
            base, dtype=getattr(torch, dtype), use_safetensors=True, **at, **options
        )
    except RuntimeError as error:
        if not quantization:
            raise
        raise PrerequisiteError(
            f"{where}: bitsandbytes cannot load 4-bit weights here ({error}); it wants a version"
            " that fits torch and, but for trials, a CUDA GPU"
        ) from error
    return model if base == where else _with_adapter(model, where, merge and not quantization)


def _with_adapter(model: Any, where: str, merge: bool) -> Any:
    peft = need("peft", "train")
    found = list(model.config.architectures or [type(model).__name__])
    if (told := check_card(Path(where)).get("architectures", found)) != found:
        raise DataError(
            f"{where}: an adapter for {told}, but its base {model.name_or_path} is {found}; peft"
            " would leave out what does not fit, so put the right base there"
        )
    with warnings.catch_warnings():
        # our mark of a contaminated adapter, which peft takes for a later version's setting
        warnings.filterwarnings("ignore", r"Unexpected keyword arguments \['flipbench'\]")
        adapted = peft.PeftModel.from_pretrained(model, where)
    if adapted.active_peft_config.is_prompt_learning:
        raise PrerequisiteError(
            f"{where}: an adapter of type {adapted.active_peft_config.peft_type.value} puts tokens"
            " of its own in front of a prompt, which flipbench does not know how to ask; LoRA and"
            " its like can be asked"
        )
    # the model itself: peft has put the adapter's matrices beside its own
    return adapted.merge_and_unload() if merge else adapted.get_base_model()


def four_bits(where: str, dtype: str, **options: Any) -> Any:
    """Return the setting that keeps a language model's matrices in 4 bits.

    NF4 with double quantisation, computing in ``dtype``, as in QLoRA (Dettmers et al., 2023,
    section 3). Vision tower, projector and the head stay as they are.
    """
    config = AutoConfig.from_pretrained(where, **options)
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


def architecture(where: str, **options: Any) -> Any:
    """Return a checkpoint's configuration, before anything large is read.

    Raises
    ------
    PrerequisiteError
        Where it is that of a model that reads no images.
    """
    config = AutoConfig.from_pretrained(where, **options)
    own_code = "AutoModelForImageTextToText" in getattr(config, "auto_map", {})
    if type(config) not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING and not own_code:
        raise PrerequisiteError(
            f"{where}: a model of type {config.model_type!r} does not read images and write text,"
            " as far as transformers knows; give a vision-language model"
        )
    return config


def capabilities(path: str, revision: str | None = None, **options: Any) -> frozenset[Capability]:
    """Return what a checkpoint can be asked for, from its configuration alone.

    Raises
    ------
    PrerequisiteError
        As `architecture`.
    """
    base, at = base_of(resolve_path(path), revision)
    return family_of(architecture(base, **at, **options)).can

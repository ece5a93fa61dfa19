"""Load a model's processor, with or without torchvision."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transformers import (
    AutoConfig,
    AutoProcessor,
    InternVLProcessor,
    LlavaOnevisionProcessor,
    ProcessorMixin,
    Qwen2_5_VLProcessor,
    Qwen2VLProcessor,
    SmolVLMProcessor,
)
from transformers.utils import is_torchvision_available

from flipbench.config.local_models import ImagePadding
from flipbench.models.vlm.checkpoints import base_of, padding_of
from flipbench.models.vlm.cropping import pad_to_square


def _image_only(base: Any, video_processor: str) -> Any:
    """Return ``base`` without its video processor, the only part that needs torchvision.

    The class keeps its upstream name, and a saved folder still describes a ``video_processor``, so
    that stock transformers (with torchvision) loads it too.
    """

    def get_attributes(cls: Any) -> list[str]:
        return [name for name in super(adapted, cls).get_attributes() if name != "video_processor"]

    def arguments(cls: Any, *args: Any, **kwargs: Any) -> list[Any]:
        return [*super(adapted, cls)._get_arguments_from_pretrained(*args, **kwargs), None]

    def save_pretrained(self: Any, save_directory: str | Path, **kwargs: Any) -> Any:
        saved = ProcessorMixin.save_pretrained(self, save_directory, **kwargs)
        path = Path(save_directory) / "processor_config.json"
        config = json.loads(path.read_text())
        video = dict(config["image_processor"], video_processor_type=video_processor)
        video.pop("image_processor_type", None)
        path.write_text(json.dumps(config | {"video_processor": video}, indent=2, sort_keys=True))
        return saved

    body = {
        "get_attributes": classmethod(get_attributes),
        "_get_arguments_from_pretrained": classmethod(arguments),
        "apply_chat_template": ProcessorMixin.apply_chat_template,  # SmolVLM's needs videos
        "save_pretrained": save_pretrained,
        "__module__": base.__module__,
    }
    adapted: Any = type(base.__name__, (base,), body)
    return adapted


IMAGE_ONLY: dict[str, Any] = {
    "internvl": _image_only(InternVLProcessor, "InternVLVideoProcessor"),
    "llava_onevision": _image_only(LlavaOnevisionProcessor, "LlavaOnevisionVideoProcessor"),
    "qwen2_vl": _image_only(Qwen2VLProcessor, "Qwen2VLVideoProcessor"),
    "qwen2_5_vl": _image_only(Qwen2_5_VLProcessor, "Qwen2VLVideoProcessor"),
    "smolvlm": _image_only(SmolVLMProcessor, "SmolVLMVideoProcessor"),
}


def load_processor(
    path: str | Path,
    *,
    revision: str | None = None,
    image_padding: ImagePadding = "auto",
    **kwargs: Any,
) -> Any:
    """Load the processor of a checkpoint, or of an adapter's base, with its padding (`padding_of`).

    Without torchvision the families in ``IMAGE_ONLY`` get a processor without video support.
    Pixels of the PIL and torchvision backends differ slightly (Qwen2-VL: mean 5e-3), so the
    backend is part of a model's fingerprint.

    Raises
    ------
    ConfigError
        As `flipbench.models.vlm.cropping.pad_to_square`.
    """
    base, at = base_of(str(path), revision)
    processor = _load(base, **at, **kwargs)
    if padding_of(str(path), image_padding, revision) == "square":
        pad_to_square(processor)
    return processor


def _load(path: str | Path, **kwargs: Any) -> Any:
    if not is_torchvision_available():
        model_type = AutoConfig.from_pretrained(path, **kwargs).model_type
        if model_type in IMAGE_ONLY:
            return IMAGE_ONLY[model_type].from_pretrained(path, **kwargs)
    return AutoProcessor.from_pretrained(path, **kwargs)

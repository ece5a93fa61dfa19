"""Load a model's processor, with or without torchvision; padding instead of cropping pictures."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import transformers
from PIL import Image
from transformers import (
    AutoProcessor,
    InternVLProcessor,
    LlavaOnevisionProcessor,
    PreTrainedConfig,
    ProcessorMixin,
    Qwen2_5_VLProcessor,
    Qwen2VLProcessor,
    SmolVLMProcessor,
)
from transformers.utils import is_torchvision_available

from flipbench.config.local_models import ImagePadding
from flipbench.core.errors import ConfigError, PrerequisiteError
from flipbench.models.vlm.chat_templates import try_template
from flipbench.models.vlm.checkpoints import base_of, first_line, padding_of

_WORTH_A_WARNING = 0.001  # share of the pixels


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
    """
    base, at = base_of(str(path), revision)
    try:
        processor = _load(base, **at, **kwargs)
    except (OSError, ValueError, KeyError, TypeError) as error:
        if "trust_remote_code" in str(error):
            raise
        raise PrerequisiteError(
            f"{path}: cannot load its processor ({first_line(error)}); a checkpoint's folder needs"
            " its preprocessor_config.json and tokenizer, too"
        ) from error
    _fill_defaults(processor)
    try_template(processor, str(path))
    if padding_of(str(path), image_padding, revision) == "square":
        pad_to_square(processor)
    return processor


def _fill_defaults(processor: Any) -> None:
    """Take a missing chat template from the tokenizer; any token will do for padding."""
    tokenizer = getattr(processor, "tokenizer", None)
    if tokenizer is None:
        return
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    if not getattr(processor, "chat_template", None):
        processor.chat_template = getattr(tokenizer, "chat_template", None)


def _load(path: str | Path, **kwargs: Any) -> Any:
    if not is_torchvision_available():
        config, _ = PreTrainedConfig.get_config_dict(path, **kwargs)  # as it is in the file
        if (model_type := config.get("model_type")) in IMAGE_ONLY:
            return IMAGE_ONLY[model_type].from_pretrained(path, **kwargs)
    return AutoProcessor.from_pretrained(path, **kwargs)


def pad_to_square(processor: Any) -> None:
    """Make a CLIP processor pad pictures to a square before it resizes them, as LLaVA's makers do.

    The border has the processor's mean colour. It is transformers' own `LlavaImageProcessor` that
    pads, so a checkpoint saved with this processor pads everywhere. One that does not crop is
    refused.

    References
    ----------
    Liu et al., arXiv 2310.03744; ``expand2square`` in ``llava/mm_utils.py`` of their code. The
    published processor of llava-hf crops the centre instead.
    """
    images = processor.image_processor
    if hasattr(images, "pad_to_square"):
        images.do_pad = True
        return
    if not crops(images):
        raise ConfigError(
            f"image_padding: square needs a CLIP processor that crops, but {type(images).__name__}"
            " prepares pictures in another way; set image_padding: none for this model"
        )
    settings = images.to_dict()
    name = settings.pop("image_processor_type").replace("CLIP", "Llava")
    backend = "Pil" if type(images).__name__.endswith("Pil") else ""
    processor.image_processor = getattr(transformers, name + backend)(**settings, do_pad=True)


def padded(picture: Image.Image, images: Any) -> Image.Image:
    """Return a picture as an image processor pads it; as it is, if it does not."""
    if not (hasattr(images, "pad_to_square") and images.do_pad):
        return picture
    (width, height), side = picture.size, max(picture.size)
    square = Image.new("RGB", (side, side), tuple(int(mean * 255) for mean in images.image_mean))
    square.paste(picture.convert("RGB"), ((side - width) // 2, (side - height) // 2))
    return square


def crops(images: Any) -> bool:
    """Return whether an image processor is CLIP's and crops pictures that are not square."""
    is_clip = type(images).__name__.removesuffix("Pil") == "CLIPImageProcessor"
    return is_clip and bool(images.do_center_crop and images.to_dict()["size"]["shortest_edge"])


def lost_share(images: Any, width: int, height: int) -> float:
    """Return the share of a picture's pixels that an image processor's centre crop cuts off.

    >>> from transformers import CLIPImageProcessorPil
    >>> round(lost_share(CLIPImageProcessorPil(), 1920, 1080), 3)
    0.437
    """
    settings = images.to_dict() if hasattr(images, "to_dict") else {}
    crop, size = settings.get("crop_size"), dict(settings.get("size") or {})
    pads = settings.get("do_pad") and hasattr(images, "pad_to_square")
    if not settings.get("do_center_crop") or not crop or pads:
        return 0.0
    if settings.get("do_resize") and size.get("shortest_edge"):
        scale = size["shortest_edge"] / min(width, height)
        width, height = int(width * scale), int(height * scale)
    elif settings.get("do_resize") and size.get("height"):
        width, height = size["width"], size["height"]
    visible = min(width, crop["width"]) * min(height, crop["height"])
    return 1 - float(visible) / (width * height)


def crop_warning(processor: Any, name: str, sizes: Iterable[tuple[int, int]]) -> str:
    """Return a warning with the share of pixels that a model does not see, or ""."""
    images, pictures = processor.image_processor, list(sizes)
    lost = [lost_share(images, *size) for size in pictures]
    areas = [width * height for width, height in pictures]
    share = sum(x * area for x, area in zip(lost, areas, strict=True)) / max(1, sum(areas))
    if share < _WORTH_A_WARNING:
        return ""
    remedy = "set image_padding: square to show it all" if crops(images) else "pad them yourself"
    return (
        f"{name}: its processor ({type(images).__name__}) crops {sum(x > 0 for x in lost):,} of"
        f" {len(lost):,} pictures to their centre: {share:.1%} of all pixels are not seen, up to"
        f" {max(lost):.1%} of a picture; {remedy}"
    )

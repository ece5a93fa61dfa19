"""Load a model's processor, with or without torchvision."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transformers import (
    AutoConfig,
    AutoProcessor,
    ProcessorMixin,
    Qwen2_5_VLProcessor,
    Qwen2VLProcessor,
)
from transformers.utils import is_torchvision_available


def _image_only(base: type) -> type:
    """Return ``base`` without its video processor, the only part that needs torchvision.

    The class keeps its upstream name, and a saved folder describes a video processor all the
    same, so that stock transformers (with torchvision) loads it too.
    """

    def __init__(  # noqa: N807
        self: Any,
        image_processor: Any = None,
        tokenizer: Any = None,
        chat_template: Any = None,
        **_: Any,
    ) -> None:
        self.image_token, self.video_token = "<|image_pad|>", "<|video_pad|>"
        self.image_token_id = tokenizer.convert_tokens_to_ids(self.image_token)
        self.video_token_id = tokenizer.convert_tokens_to_ids(self.video_token)
        ProcessorMixin.__init__(self, image_processor, tokenizer, chat_template=chat_template)

    def save_pretrained(self: Any, save_directory: str | Path, **kwargs: Any) -> Any:
        saved = ProcessorMixin.save_pretrained(self, save_directory, **kwargs)
        path = Path(save_directory) / "processor_config.json"
        config = json.loads(path.read_text())
        video = dict(config["image_processor"], video_processor_type="Qwen2VLVideoProcessor")
        video.pop("image_processor_type", None)
        path.write_text(json.dumps(config | {"video_processor": video}, indent=2, sort_keys=True))
        return saved

    body = {"__init__": __init__, "save_pretrained": save_pretrained, "__module__": base.__module__}
    return type(base.__name__, (base,), body)


IMAGE_ONLY: dict[str, Any] = {
    "qwen2_vl": _image_only(Qwen2VLProcessor),
    "qwen2_5_vl": _image_only(Qwen2_5_VLProcessor),
}


def load_processor(path: str | Path, **kwargs: Any) -> Any:
    """Load the processor of a checkpoint folder or hub id.

    Without torchvision the Qwen-VL families get an image-only processor; every other family
    loads as it is. Pixels of the PIL and torchvision backends differ slightly (Qwen2-VL: mean
    5e-3), so ``processor_backend`` of the result is recorded with every response.
    """
    if not is_torchvision_available():
        model_type = AutoConfig.from_pretrained(path, **kwargs).model_type
        if model_type in IMAGE_ONLY:
            return IMAGE_ONLY[model_type].from_pretrained(path, **kwargs)
    return AutoProcessor.from_pretrained(path, **kwargs)

"""Encoders: pictures to vectors, by a model of transformers or OpenCLIP, or by perceptual hash."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from flipbench.core.errors import ConfigError, DataError, need
from flipbench.core.image_similarity import perceptual_hash
from flipbench.core.records import content_id
from flipbench.models.vlm.checkpoints import fingerprint, resolve_path

if TYPE_CHECKING:
    import torch

PRESETS = {
    "siglip-b16": "google/siglip-base-patch16-224",
    "siglip-so400m": "google/siglip-so400m-patch14-384",
}
"""The encoders of arXiv 2606.10066, as transformers has them."""
PHASH = "phash"
_OPEN_CLIP = "open_clip:"
_DRAFT = 256  # pixels; eight times the 32 of the hash, so that reading at a fraction changes little


class ImageEncoder(Protocol):
    """Turns pictures into vectors.

    Attributes
    ----------
    fingerprint : str
        Hash of everything that a vector depends on besides the picture.
    dtype : str
        ``float32``, compared by cosine; or ``uint8``: codes of 8 bits per number, compared by the
        share of differing bits.
    draft : int, optional
        The edge, in pixels, down to which a JPEG may be reduced while it is read.
    """

    name: str
    fingerprint: str
    dimension: int
    dtype: str
    draft: int | None

    def prepare(self, image: Image.Image, /) -> Any:
        """Return what `embed` takes of one RGB picture; called in several threads at once."""

    def embed(self, prepared: Sequence[Any], /) -> NDArray[Any]:
        """Return one vector for each prepared picture, shape (n, dimension), of any length."""


def load_encoder(
    name: str, *, device: str = "auto", dtype: str = "float32", revision: str | None = None
) -> ImageEncoder:
    """Return an encoder by name.

    Parameters
    ----------
    name : str
        ``siglip-b16``, ``siglip-so400m`` or ``phash``; ``open_clip:MODEL/WEIGHTS``, such as
        ``open_clip:ViT-B-16-SigLIP/webli``; or the folder or hub id of a vision model of
        transformers.
    device : str
        ``auto`` is a GPU if there is one.
    dtype : str
        Precision of the model; vectors are always float32.
    revision : str, optional
        Commit or tag on the hub.

    Raises
    ------
    ConfigError
        If an OpenCLIP name is incomplete or unknown.
    PrerequisiteError, DataError
        If the checkpoint or a package is missing, or it cannot encode images.
    """
    if name == PHASH:
        return PerceptualHash()
    from flipbench.models.vlm.loading import usable_device  # seconds, which the hash does not need

    device = usable_device(device)
    if name.startswith(_OPEN_CLIP):
        return OpenCLIPEncoder(name, device=device, dtype=dtype)
    return TransformersEncoder(name, device=device, dtype=dtype, revision=revision)


class PerceptualHash:
    """64-bit perceptual hash, as 8 bytes; needs no model.

    References
    ----------
    Grey 32 x 32 pixels, cosine transform, the 8 x 8 lowest frequencies, bits above the median
    without the first: the image overlap of Xu, Wu and Ryu, arXiv 2606.10066. The distance is the
    share of the 64 bits that differ.
    """

    name = PHASH
    fingerprint = "phash-64/1"
    dimension = 8
    dtype = "uint8"
    draft: int | None = _DRAFT

    def prepare(self, image: Image.Image) -> NDArray[Any]:
        """Return the hash."""
        return np.packbits(perceptual_hash(image, with_mean=False).ravel())

    def embed(self, prepared: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """Return the hashes, shape (n, 8) of uint8."""
        return np.stack(prepared)


class TransformersEncoder:
    """A vision model of transformers.

    A vector is, in this order: the image features of a model with two towers (CLIP after its
    projection; SigLIP has none and pools by attention); ``image_embeds``; ``pooler_output`` (for
    DINOv2 the normalised first token), if the checkpoint has the pooler's weights; or the first
    token of the last layer.

    Raises
    ------
    PrerequisiteError
        If there is no such checkpoint.
    DataError
        If it is not of a vision model, or lacks weights.

    References
    ----------
    Xu, Wu and Ryu, arXiv 2606.10066, take the same SigLIP weights (``webli``) from OpenCLIP, whose
    preprocessing differs slightly; ``open_clip:ViT-B-16-SigLIP/webli`` is its own.
    """

    draft: int | None = None
    dtype = "float32"

    def __init__(
        self, name: str, *, device: str = "cpu", dtype: str = "float32", revision: str | None = None
    ) -> None:
        import torch
        from transformers import AutoImageProcessor, AutoModel

        path = resolve_path(PRESETS.get(name, name))
        at = {"revision": revision} if revision else {}
        self.name = name
        self.fingerprint = content_id(fingerprint(path, dtype, revision), "vision/1")
        self._device, self._dtype = device, getattr(torch, dtype)
        try:
            self._processor = AutoImageProcessor.from_pretrained(path, **at)
            model, loading = AutoModel.from_pretrained(
                path, dtype=self._dtype, use_safetensors=True, output_loading_info=True, **at
            )
        except (OSError, ValueError, KeyError) as error:
            reason = str(error).strip().split("\n")[0]
            raise DataError(
                f"{name}: not a vision model that transformers can load ({reason}); give a folder"
                " or hub id with a processor and safetensors weights"
            ) from error
        missing_keys = sorted(loading["missing_keys"])
        self._has_pooler = not any("pooler" in key for key in missing_keys)
        if random_keys := [key for key in missing_keys if "pooler" not in key]:
            raise DataError(
                f"{name}: the checkpoint lacks {len(random_keys)} weights of"
                f" {type(model).__name__}, such as {random_keys[0]}; they would be random"
            )
        self._model = model.eval().to(device)
        probe = self.prepare(Image.new("RGB", (64, 64), "grey"))
        self.dimension = self.embed([probe]).shape[1]

    def prepare(self, image: Image.Image) -> torch.Tensor:
        """Return the pixel values, resized and normalised as the checkpoint's processor does."""
        pixels = self._processor(images=image, return_tensors="pt")["pixel_values"][0]
        return pixels.to(self._dtype)  # type: ignore[no-any-return]

    def embed(self, prepared: Sequence[torch.Tensor]) -> NDArray[Any]:
        """Return the vectors, shape (n, dimension) of float32."""
        import torch

        encode = getattr(self._model, "get_image_features", self._model)
        with torch.inference_mode():
            output = encode(pixel_values=_stacked(prepared, self._device))
            return self._vectors(output).float().cpu().numpy()  # type: ignore[no-any-return]

    def _vectors(self, output: Any) -> Any:
        import torch

        if isinstance(output, torch.Tensor):
            return output
        if (projected := getattr(output, "image_embeds", None)) is not None:
            return projected
        pooled = getattr(output, "pooler_output", None)
        if pooled is not None and self._has_pooler:
            return pooled.flatten(1)
        hidden = getattr(output, "last_hidden_state", None)
        if hidden is None or hidden.ndim != 3:
            raise DataError(
                f"{self.name}: {type(self._model).__name__} returns no vector for a picture;"
                " choose a vision encoder such as SigLIP, CLIP or DINOv2"
            )
        return hidden[:, 0]


class OpenCLIPEncoder:
    """A model of OpenCLIP: ``open_clip:MODEL/WEIGHTS``; a vector is its ``encode_image``.

    ``open_clip:ViT-B-16-SigLIP/webli`` is that of arXiv 2606.10066.

    Raises
    ------
    ConfigError
        If the name is incomplete, or OpenCLIP has no such model or weights.
    PrerequisiteError
        If the package open_clip_torch is missing.
    """

    draft: int | None = None
    dtype = "float32"

    def __init__(self, name: str, *, device: str = "cpu", dtype: str = "float32") -> None:
        import torch

        open_clip = need("open_clip", "corpus")
        model_name, _, weights = name.removeprefix(_OPEN_CLIP).partition("/")
        if not weights:
            raise ConfigError(f"{name}: name the weights, such as open_clip:ViT-B-16-SigLIP/webli")
        try:
            model, _, self._transform = open_clip.create_model_and_transforms(
                model_name, pretrained=weights
            )
        except (RuntimeError, OSError, ValueError) as error:
            raise ConfigError(f"{name}: OpenCLIP cannot load it ({error})") from error
        self.name = name
        self._device, self._dtype = device, getattr(torch, dtype)
        self._model = model.eval().to(device, self._dtype)
        transform = re.sub(r" at 0x[0-9a-f]+", "", str(self._transform))  # of its functions
        self.fingerprint = content_id(name, _weights_hash(model), dtype, transform)
        probe = self.prepare(Image.new("RGB", (64, 64), "grey"))
        self.dimension = self.embed([probe]).shape[1]

    def prepare(self, image: Image.Image) -> torch.Tensor:
        """Return the pixel values."""
        pixels: torch.Tensor = self._transform(image)
        return pixels.to(self._dtype)

    def embed(self, prepared: Sequence[torch.Tensor]) -> NDArray[Any]:
        """Return the vectors, shape (n, dimension) of float32."""
        import torch

        with torch.inference_mode():
            vectors = self._model.encode_image(_stacked(prepared, self._device))
            return vectors.float().cpu().numpy()  # type: ignore[no-any-return]


def _stacked(prepared: Sequence[torch.Tensor], device: str) -> torch.Tensor:
    import torch

    return torch.stack(list(prepared)).to(device, non_blocking=True)


def _weights_hash(model: torch.nn.Module) -> str:
    import torch

    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()

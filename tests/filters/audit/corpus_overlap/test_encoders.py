"""Encoders give the tensors that their classes document, and refuse what has no vector."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import AutoImageProcessor, AutoModel

from flipbench.core.errors import ConfigError, DataError, FlipbenchError, PrerequisiteError
from flipbench.core.images import decode
from flipbench.filters.audit.corpus_overlap.encoders import PRESETS, load_encoder
from tests.fixtures.photos import encoded, photo


@pytest.fixture(scope="module")
def images(files: list[bytes]) -> list[Image.Image]:
    return [Image.open(io.BytesIO(data)).convert("RGB") for data in files[:3]]


@pytest.mark.parametrize(("name", "dimension"), [("siglip", 16), ("clip", 12), ("dinov2", 16)])
def test_a_vector_is_the_models_image_feature(
    name: str, dimension: int, encoder_folders: dict[str, Path], images: list[Image.Image]
) -> None:
    folder = encoder_folders[name]
    encoder = load_encoder(str(folder), device="cpu")
    vectors = encoder.embed([encoder.prepare(image) for image in images])
    assert vectors.shape == (3, dimension) == (3, encoder.dimension)
    assert vectors.dtype == encoder.dtype == "float32"
    model, processor = AutoModel.from_pretrained(folder), AutoImageProcessor.from_pretrained(folder)
    pixels = processor(images=images, return_tensors="pt")["pixel_values"]
    with torch.inference_mode():
        if name == "dinov2":
            expected = model(pixel_values=pixels).pooler_output
        elif name == "clip":
            pooled = model.vision_model(pixel_values=pixels).pooler_output
            expected = model.visual_projection(pooled)
        else:
            expected = model.vision_model(pixel_values=pixels).pooler_output
    assert np.allclose(vectors, expected.numpy(), atol=1e-5)
    assert np.ptp(vectors, axis=0).max() > 1e-3, "different pictures have different vectors"


def test_the_fingerprint_tells_weights_and_precision_apart(
    encoder_folders: dict[str, Path],
) -> None:
    folder = str(encoder_folders["siglip"])
    first = load_encoder(folder, device="cpu").fingerprint
    assert load_encoder(folder, device="cpu").fingerprint == first
    assert load_encoder(folder, device="cpu", dtype="bfloat16").fingerprint != first
    assert load_encoder(str(encoder_folders["clip"]), device="cpu").fingerprint != first


def test_a_pooler_without_weights_is_not_used(
    encoder_folders: dict[str, Path], tmp_path: Path, images: list[Image.Image]
) -> None:
    from transformers import CLIPImageProcessorPil, ViTConfig, ViTModel

    config = ViTConfig(hidden_size=16, intermediate_size=32, num_hidden_layers=1,
                       num_attention_heads=2, image_size=32, patch_size=8)  # fmt: skip
    model = ViTModel(config, add_pooling_layer=False).eval()
    model.save_pretrained(tmp_path)
    CLIPImageProcessorPil(
        size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}
    ).save_pretrained(tmp_path)
    encoder = load_encoder(str(tmp_path), device="cpu")
    prepared = [encoder.prepare(image) for image in images]
    with torch.inference_mode():
        hidden = model(pixel_values=torch.stack(prepared)).last_hidden_state
    assert np.allclose(encoder.embed(prepared), hidden[:, 0].numpy(), atol=1e-5)


def test_missing_weights_and_other_models_are_refused(
    encoder_folders: dict[str, Path], tmp_path: Path
) -> None:
    for file in encoder_folders["dinov2"].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = load_file(tmp_path / "model.safetensors")
    lost = next(key for key in weights if "layer.1" in key)
    kept = {key: value for key, value in weights.items() if key != lost}
    save_file(kept, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(DataError, match="lacks 1 weights of Dinov2Model"):
        load_encoder(str(tmp_path), device="cpu")
    with pytest.raises(FlipbenchError, match="nowhere"):
        load_encoder(str(tmp_path / "nowhere"), device="cpu")
    config = json.loads((encoder_folders["clip"] / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "no_such"}))
    with pytest.raises(DataError, match="not a vision model"):
        load_encoder(str(tmp_path), device="cpu")


def test_presets_are_the_papers_siglip_models() -> None:
    assert sorted(PRESETS) == ["siglip-b16", "siglip-so400m"]


def test_phash_differs_in_few_bits_for_copies_and_in_half_for_others() -> None:
    encoder = load_encoder("phash")
    rng = np.random.default_rng(0)
    pictures = [photo(rng, 320, 240) for _ in range(20)]
    copies = [Image.open(io.BytesIO(encoded(p, "JPEG", quality=50))) for p in pictures]
    first, second = (
        encoder.embed([encoder.prepare(image) for image in images]) for images in (pictures, copies)
    )
    assert first.shape == (20, 8) and first.dtype == encoder.dtype == "uint8"
    distances = np.bitwise_count(first[:, None] ^ second[None]).sum(axis=2) / 64
    assert np.diag(distances).max() <= 4 / 64
    assert 0.4 < distances[~np.eye(20, dtype=bool)].mean() < 0.6


def test_a_jpeg_read_at_a_fraction_of_its_size_has_nearly_the_same_hash() -> None:
    encoder = load_encoder("phash")
    rng = np.random.default_rng(0)
    for _ in range(5):
        data = encoded(photo(rng, 1200, 900), "JPEG", quality=85)
        whole, small = (decode(data, "photo", draft=draft)[1] for draft in (None, encoder.draft))
        assert small.width < whole.width
        assert np.bitwise_count(encoder.prepare(whole) ^ encoder.prepare(small)).sum() <= 2


def test_the_hash_has_the_bits_above_the_median_without_the_mean() -> None:
    from scipy.fft import dctn

    encoder = load_encoder("phash")
    image = photo(np.random.default_rng(3), 200, 100)
    grey = np.asarray(image.convert("L").resize((32, 32), Image.Resampling.LANCZOS), float)
    low = dctn(grey)[:8, :8].ravel()
    assert np.unpackbits(encoder.prepare(image)).tolist() == [
        int(value > np.median(low[1:])) for value in low
    ]


class FakeCLIP(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = torch.nn.Linear(3, 5)

    def encode_image(self, pixels: torch.Tensor) -> torch.Tensor:
        projected: torch.Tensor = self.project(pixels.mean(dim=(2, 3)))
        return projected


def create(model_name: str, pretrained: str) -> tuple[Any, None, Any]:
    if model_name != "ViT-B-16-SigLIP" or pretrained != "webli":
        raise RuntimeError(f"no pretrained weights {pretrained} for {model_name}")
    torch.manual_seed(0)

    def transform(image: Image.Image) -> torch.Tensor:
        pixels = np.asarray(image.resize((8, 8)), np.float32) / 255
        return torch.from_numpy(pixels).permute(2, 0, 1)

    return FakeCLIP(), None, transform


def test_open_clip_models_are_named_by_model_and_weights(
    monkeypatch: pytest.MonkeyPatch, images: list[Image.Image]
) -> None:
    monkeypatch.setitem(
        sys.modules, "open_clip", SimpleNamespace(create_model_and_transforms=create)
    )
    encoder = load_encoder("open_clip:ViT-B-16-SigLIP/webli", device="cpu")
    assert encoder.dimension == 5
    assert encoder.fingerprint == load_encoder(encoder.name, device="cpu").fingerprint
    vectors = encoder.embed([encoder.prepare(image) for image in images])
    assert vectors.shape == (3, 5) and vectors.dtype == np.float32
    with pytest.raises(ConfigError, match="name the weights"):
        load_encoder("open_clip:ViT-B-16-SigLIP", device="cpu")
    with pytest.raises(ConfigError, match="no pretrained weights laion"):
        load_encoder("open_clip:ViT-B-16-SigLIP/laion", device="cpu")


def test_without_open_clip_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "open_clip", None)
    with pytest.raises(PrerequisiteError, match=r"flipbench\[corpus\]"):
        load_encoder("open_clip:ViT-B-16-SigLIP/webli", device="cpu")

"""Captions by a vision-language model on this machine."""

from __future__ import annotations

from pathlib import Path

from flipbench.generate.api_captioner import DEFAULT_PROMPT, APICaptioner
from flipbench.models.huggingface import HuggingFaceVLM
from flipbench.models.local_chat import LocalChat


class LocalCaptioner(APICaptioner):
    """Caption with any image-text-to-text model of transformers, and the prompts of the API.

    Parameters
    ----------
    vlm : HuggingFaceVLM
        The loaded model.
    prompt : str or path
        As for `APICaptioner`.
    max_tokens, temperature, seed : int, float, int
        As for `LocalChat`: nothing is sampled unless ``temperature`` is above 0.

    References
    ----------
    Park et al., ICLR 2026, arXiv 2511.03774, which tries Molmo-7B-D as the captioner. Differs from
    the paper in the model, which is yours to choose.
    """

    def __init__(
        self,
        vlm: HuggingFaceVLM,
        prompt: str | Path = DEFAULT_PROMPT,
        *,
        max_tokens: int = 800,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> None:
        chat = LocalChat(vlm, max_tokens=max_tokens, temperature=temperature, seed=seed)
        super().__init__(chat, prompt)

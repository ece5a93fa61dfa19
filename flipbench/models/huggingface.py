"""A Hugging Face vision-language model that answers probes, batched and left-padded."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForImageTextToText
from transformers.utils import cached_file, is_torchvision_available

from flipbench.errors import DataError, PrerequisiteError, need
from flipbench.images import ImageStore
from flipbench.models.processors import load_processor
from flipbench.models.protocols import Capability
from flipbench.parsing import parse_choice
from flipbench.prompts import LETTERS
from flipbench.records import Probe, Response

CARD = "flipbench_card.json"
_PACKAGED = "shapes:"


def resolve_path(path: str) -> str:
    """Return a checkpoint's folder or hub id; ``shapes:llava`` names one shipped with flipbench."""
    if path.startswith(_PACKAGED):
        folder = Path(__file__).parent.parent / "shapes" / "checkpoints" / path[len(_PACKAGED) :]
        if not (folder / "config.json").exists():
            raise PrerequisiteError(
                f"{path}: no such packaged model; there are shapes:llava and shapes:qwen2_vl"
            )
        return str(folder)
    return path


class HuggingFaceVLM:
    """Load a checkpoint (folder or hub id) of any image-text-to-text class of transformers.

    Parameters
    ----------
    path : str
        Folder, hub id, or ``shapes:llava`` / ``shapes:qwen2_vl``.
    name : str, optional
        What tables call it; the last part of ``path`` by default.
    dtype : str
        Precision of the weights in memory.
    device : str
        ``auto`` takes the first GPU if there is one.
    revision : str, optional
        Commit of a hub id.
    trust_remote_code : bool
        Run code that comes with the checkpoint. Off unless you say so.

    Raises
    ------
    PrerequisiteError
        Where there is no such checkpoint, or its weights are not safetensors.
    DataError
        Where a contamination card beside the weights tells of another architecture.
    """

    can: frozenset[Capability] = frozenset({"choose", "generate", "token_logprobs"})

    def __init__(
        self,
        path: str,
        name: str | None = None,
        *,
        dtype: str = "float32",
        device: str = "auto",
        revision: str | None = None,
        trust_remote_code: bool = False,
    ) -> None:
        where = resolve_path(path)
        self.name = name or Path(path.removeprefix(_PACKAGED)).name
        if Path(where).is_dir():
            check_card(Path(where))
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        try:
            base, at = base_of(where, revision)
            trust = {"trust_remote_code": trust_remote_code}
            self.processor = load_processor(base, **at, **trust)
            self.model = load_model(where, dtype, revision, **trust)
        except (OSError, ValueError) as error:
            advice = "give a folder or hub id with config.json, a processor and safetensors weights"
            if "trust_remote_code" in str(error):
                advice = "it brings code of its own: set trust_remote_code if you trust that code"
            raise PrerequisiteError(
                f"{path}: cannot load a vision-language model from there ({_first_line(error)});"
                f" {advice}"
            ) from error
        self.model.eval().to(device)
        self.tokenizer = getattr(self.processor, "tokenizer", self.processor)
        self.tokenizer.padding_side = "left"
        self.fingerprint = fingerprint(where, dtype, revision)

    def ask(self, probes: Sequence[Probe], images: ImageStore) -> list[Response]:
        """Answer a batch, in order. Probes that ask for different things are answered apart."""
        answers: dict[int, Response] = {}
        groups: dict[tuple[str, bool, int], list[int]] = {}
        for i, probe in enumerate(probes):
            key = (probe.ask, bool(probe.images), probe.max_new_tokens)
            groups.setdefault(key, []).append(i)
        for (ask, _, _), rows in groups.items():
            batch = [probes[i] for i in rows]
            answer = {"choose": self._choose, "generate": self._generate, "score": self._score}[ask]
            answers.update(zip(rows, answer(batch, images), strict=True))
        return [answers[i] for i in range(len(probes))]

    def render(self, prompt: str, n_images: int) -> str:
        """Return the text that the model reads, chat template and all."""
        return str(
            self.processor.apply_chat_template(
                _chat(prompt, n_images), add_generation_prompt=True, tokenize=False
            )
        )

    def completion(self, reply: str) -> str:
        """Return ``reply`` as the chat template writes it after a prompt, end mark included."""
        chat = _chat("?", 0)
        before = self.processor.apply_chat_template(
            chat, add_generation_prompt=True, tokenize=False
        )
        answer = {"role": "assistant", "content": [{"type": "text", "text": reply}]}
        whole = self.processor.apply_chat_template([*chat, answer], tokenize=False)
        if not whole.startswith(before):
            raise PrerequisiteError(
                f"{self.name}: its chat template rewrites the prompt when an answer follows;"
                " flipbench cannot tell where the answer begins"
            )
        return str(whole[len(before) :])

    @torch.inference_mode()
    def _choose(self, probes: Sequence[Probe], images: ImageStore) -> list[Response]:
        letters = self._letter_ids(max(p.n_options for p in probes))
        logits = self.model(**self._inputs(probes, images), logits_to_keep=1).logits[:, -1]
        log_probs_bk = logits.float().log_softmax(-1)[:, letters].cpu()
        out = []
        for probe, row in zip(probes, log_probs_bk, strict=True):
            options = row[: probe.n_options]
            if options.isnan().any():
                raise DataError(f"{self.name} answers NaN; load it with dtype: float32 or bfloat16")
            out.append(
                self._response(
                    probe,
                    choice=int(options.argmax()),
                    option_log_probs=tuple(float(x) for x in options),
                )
            )
        return out

    @torch.inference_mode()
    def _generate(self, probes: Sequence[Probe], images: ImageStore) -> list[Response]:
        inputs = self._inputs(probes, images)
        ids = self.model.generate(
            **inputs, max_new_tokens=probes[0].max_new_tokens, do_sample=False
        )
        texts = self.tokenizer.batch_decode(
            ids[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True
        )
        return [
            self._response(
                probe,
                text=text,
                choice=parse_choice(text, probe.options) if probe.options else -1,
            )
            for probe, text in zip(probes, texts, strict=True)
        ]

    @torch.inference_mode()
    def _score(self, probes: Sequence[Probe], images: ImageStore) -> list[Response]:
        """Sum the log-probabilities (nats) of each continuation's tokens after its prompt."""
        inputs = self._inputs(probes, images)
        tails = self.tokenizer([p.continuation for p in probes], add_special_tokens=False)[
            "input_ids"
        ]
        width = max(len(tail) for tail in tails)
        pad = self.tokenizer.pad_token_id or 0
        extra = torch.tensor([tail + [pad] * (width - len(tail)) for tail in tails])
        kept = torch.tensor([[1] * len(tail) + [0] * (width - len(tail)) for tail in tails])
        device = inputs["input_ids"].device
        inputs["input_ids"] = torch.cat([inputs["input_ids"], extra.to(device)], 1)
        inputs["attention_mask"] = torch.cat([inputs["attention_mask"], kept.to(device)], 1)
        if "mm_token_type_ids" in inputs:
            zeros = torch.zeros_like(extra).to(device)
            inputs["mm_token_type_ids"] = torch.cat([inputs["mm_token_type_ids"], zeros], 1)
        logits = self.model(**inputs, logits_to_keep=width + 1).logits[:, :-1]
        log_probs = logits.float().log_softmax(-1).cpu()
        tokens = log_probs.gather(2, extra[..., None])[..., 0] * kept
        return [
            self._response(probe, log_likelihood=float(row.sum()), n_tokens=len(tail))
            for probe, row, tail in zip(probes, tokens, tails, strict=True)
        ]

    def _inputs(self, probes: Sequence[Probe], images: ImageStore) -> dict[str, Any]:
        texts = [self.render(p.prompt, len(p.images)) for p in probes]
        pictures = [[images.open(ref) for ref in p.images] for p in probes]
        batch = self.processor(
            text=texts,
            images=pictures if probes[0].images else None,
            padding=True,
            return_tensors="pt",
            add_special_tokens=not has_first_token(texts[0], self.tokenizer),
        )
        return dict(batch.to(self.model.device))

    def _letter_ids(self, n_letters: int) -> list[int]:
        """Return the first token of each letter as an answer; they must differ."""
        texts = [self.completion(letter) for letter in LETTERS[:n_letters]]
        ids = [row[0] for row in self.tokenizer(texts, add_special_tokens=False)["input_ids"]]
        if len(set(ids)) != n_letters:
            raise PrerequisiteError(
                f"{self.name}: its tokenizer does not begin the letters with tokens of their own;"
                " set 'ask: generate' for this model"
            )
        return ids

    def _response(self, probe: Probe, **fields: Any) -> Response:
        return Response(
            probe_id=probe.id, model_fingerprint=self.fingerprint, model=self.name, **fields
        )


def has_first_token(rendered: str, tokenizer: Any) -> bool:
    """Return whether a rendered chat begins with the token that tokenizers put before a text."""
    return bool(tokenizer.bos_token) and rendered.startswith(tokenizer.bos_token)


def load_model(where: str, dtype: str, revision: str | None = None, **options: Any) -> Any:
    """Load a checkpoint's weights; a LoRA adapter is merged into its base in memory."""
    base, at = base_of(where, revision)
    model = AutoModelForImageTextToText.from_pretrained(
        base, dtype=getattr(torch, dtype), use_safetensors=True, **at, **options
    )
    if base == where:
        return model
    peft = need("peft", "train")
    return peft.PeftModel.from_pretrained(model, where).merge_and_unload()


def base_of(where: str, revision: str | None = None) -> tuple[str, dict[str, str]]:
    """Return the checkpoint that a LoRA adapter's folder stands on, or ``where`` itself.

    The second part is ``{"revision": ...}`` of that checkpoint, or ``{}``.
    """
    adapter = Path(where) / "adapter_config.json"
    base = where
    if adapter.exists():
        config, card = json.loads(adapter.read_text()), check_card(Path(where))
        base = resolve_path(card.get("parent") or config["base_model_name_or_path"])
        revision = card.get("settings", {}).get("revision") or config.get("revision")
    return base, {"revision": revision} if revision else {}


def _chat(prompt: str, n_images: int) -> list[dict[str, Any]]:
    """Return the one conversation that training and evaluation share: images first, then text."""
    parts: list[dict[str, str]] = [{"type": "image"}] * n_images + [
        {"type": "text", "text": prompt}
    ]
    return [{"role": "user", "content": parts}]


def fingerprint(path: str, dtype: str, revision: str | None = None) -> str:
    """Return a hash of weights, configuration, processor, precision and image backend.

    A folder is hashed by its files' bytes, a hub id by its name and the commit of ``revision``.

    Raises
    ------
    PrerequisiteError
        Where there is no such checkpoint.
    """
    backend = "torchvision" if is_torchvision_available() else "pil"
    base, at = base_of(path, revision)
    if base != path:
        content = folder_hash(path) + fingerprint(base, dtype, **at)
    elif Path(path).is_dir():
        content = folder_hash(path)
    else:
        content = f"{path}@{_commit(path, at)}"
    return hashlib.sha256(f"{content} {dtype} {backend}".encode()).hexdigest()[:24]


def _commit(hub_id: str, at: dict[str, str]) -> str:
    try:
        config = Path(cached_file(hub_id, "config.json", **at))
    except (OSError, ValueError) as error:
        raise PrerequisiteError(
            f"{hub_id}: no such checkpoint ({_first_line(error)}); give a folder or hub id"
        ) from error
    return config.parent.name  # .../snapshots/<commit>/config.json


def folder_hash(path: str) -> str:
    """Return a hash of a checkpoint folder: every safetensors and json file but the card."""
    digest = hashlib.sha256()
    files = [
        f for f in sorted(Path(path).iterdir()) if f.suffix in (".safetensors", ".json", ".jinja")
    ]
    for file in files:
        if file.name != CARD:
            digest.update(file.name.encode() + b"\0")
            digest.update(
                _file_hash(str(file), file.stat().st_mtime_ns, file.stat().st_size).encode()
            )
    return digest.hexdigest()


@lru_cache(maxsize=4096)
def _file_hash(path: str, _modified: int, _size: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_card(folder: Path) -> dict[str, Any]:
    """Return the contamination card beside a checkpoint, or ``{}``; it must fit the weights.

    Raises
    ------
    DataError
        Where the card is damaged or tells of another architecture than ``config.json``.
    PrerequisiteError
        Where the folder holds weights, but none as safetensors.
    """
    weights = [
        f.name for f in folder.iterdir() if f.suffix in (".bin", ".pt", ".pth", ".safetensors")
    ]
    if weights and not any(name.endswith(".safetensors") for name in weights):
        raise PrerequisiteError(
            f"{folder}: weights load as safetensors only, and there is only {weights[0]};"
            " convert it with transformers (save_pretrained)"
        )
    if not (folder / CARD).exists():
        return {}
    try:
        card: dict[str, Any] = json.loads((folder / CARD).read_text())
    except ValueError as error:
        raise DataError(f"{folder / CARD}: not JSON ({error}); copy the checkpoint anew") from error
    config = folder / "config.json"
    if config.exists():
        found = json.loads(config.read_text()).get("architectures")
        if card.get("architectures") != found:
            raise DataError(
                f"{folder}: the card says {card.get('architectures')}, but config.json says"
                f" {found}; these weights do not belong to this card"
            )
    return card


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:200]

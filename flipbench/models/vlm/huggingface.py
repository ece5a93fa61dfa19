"""A Hugging Face vision-language model that answers probes, batched and left-padded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from transformers import GenerationConfig, LogitsProcessorList

from flipbench.config.local_models import ImagePadding, ModelConfig, Quantization
from flipbench.core.errors import DataError, FlipbenchError, PrerequisiteError
from flipbench.core.images import ImageStore
from flipbench.core.records import Probe, Response
from flipbench.models.chat.log_probs import letter_fields
from flipbench.models.plugins import check_protocol
from flipbench.models.protocols import VLM, Capability, needs_of
from flipbench.models.vlm.checkpoints import (
    PACKAGED,
    base_of,
    check_files,
    fingerprint,
    first_line,
    resolve_path,
)
from flipbench.models.vlm.conversation import RAW, Conversation, append_replies
from flipbench.models.vlm.decoding import Decoding, n_before_end, plain_generation
from flipbench.models.vlm.families import EVERYTHING, family_of, is_encoder_decoder
from flipbench.models.vlm.loading import architecture, load_model, usable_device
from flipbench.models.vlm.prefill import Prefiller, PrefillRequest, can_share, left_padded
from flipbench.models.vlm.processors import load_processor
from flipbench.models.vlm.scoring import (
    TokenStatistics,
    pack_state,
    rows_at_once,
    statistics_of,
    token_statistics,
    windows,
)
from flipbench.models.vlm.token_trees import batched, by_length, forward_cost
from flipbench.prompting.parsing import parse_choice
from flipbench.prompting.prompts import LETTERS

ROWS_AT_ONCE = 64  # prompts in a forward pass, where each is a row of its own


class _Task(NamedTuple):
    """A probe, its rendered prompt (empty if raw text), and what is read to answer it."""

    probe: Probe
    text: str
    request: PrefillRequest

    @property
    def where(self) -> str:
        return f"{self.probe.variant} of item {self.probe.item_id}"


class HuggingFaceVLM:
    """Load a checkpoint (folder or hub id) of any image-text-to-text class of transformers.

    Adapters are not merged into their base.

    Parameters
    ----------
    path : str
        Folder, hub id, or ``shapes:llava`` / ``shapes:qwen2_vl``.
    name : str, optional
        Its name in tables; the last part of ``path`` by default.
    dtype : str
        Precision of the weights in memory; in ``float32`` responses do not depend on batches.
    device : str
        ``auto``: the first GPU if there is one.
    revision : str, optional
        Commit of a hub id.
    trust_remote_code : bool
        Whether to run code that comes with the checkpoint.
    quantization, image_padding : str, optional
        See `four_bits` in `flipbench.models.vlm.loading`, and `padding_of` in ``checkpoints``.
    cache_mib : int, optional
        Memory for the keys and values of common images and texts; default: 2048, or a quarter of a
        GPU's free memory.

    Raises
    ------
    PrerequisiteError
        If there is no such checkpoint, it reads no images, its processor does not fit, its
        weights are not safetensors, or a package for adapters or 4-bit weights is missing.
    DataError
        If a file or tensor is missing or damaged, two models could be meant, or the card names
        another architecture.
    """

    can: frozenset[Capability] = EVERYTHING

    def __init__(
        self,
        path: str,
        name: str | None = None,
        *,
        dtype: str = "float32",
        device: str = "auto",
        revision: str | None = None,
        trust_remote_code: bool = False,
        quantization: Quantization | None = None,
        image_padding: ImagePadding = "auto",
        cache_mib: int | None = None,
    ) -> None:
        source_path = resolve_path(path)
        self.name = name or Path(path.removeprefix(PACKAGED)).name
        check_files(source_path)
        device = usable_device(device)
        trust: dict[str, Any] = {"trust_remote_code": trust_remote_code}
        source: dict[str, Any] = {"revision": revision, "image_padding": image_padding}
        try:
            base, base_revision = base_of(source_path, revision)
            config = architecture(base, **base_revision, **trust)
            self.family = family_of(config)
            self.can = self.family.can
            processor = load_processor(source_path, **source, **trust)
            self.conversation = Conversation(processor, self.family, self.name)
            options: dict[str, Any] = {"quantization": quantization, "config": config, **trust}
            self.model = load_model(source_path, dtype, revision, merge=False, **options)
        except FlipbenchError:
            raise
        except Exception as error:  # what the libraries raise depends on the damage
            advice = "give a folder or hub id with config.json, a processor and safetensors weights"
            if "trust_remote_code" in str(error):
                advice = "it needs its own code: set trust_remote_code if you trust that code"
            if isinstance(error, ImportError):
                advice = "install the missing package"
            raise PrerequisiteError(
                f"{path}: cannot load a vision-language model ({first_line(error)}); {advice}"
            ) from error
        self.processor, self.tokenizer = self.conversation.processor, self.conversation.tokenizer
        self.conversation.check_images(self.model.config)
        self.model.eval().to(device)
        self.model.generation_config = plain_generation(self.model, self.tokenizer)
        self._pad = self.tokenizer.pad_token_id or 0
        self._prefiller: Prefiller | None = None
        if can_share(self.model):
            self._prefiller = Prefiller(self.model, self._pad, cache_mib)
        self.fingerprint = fingerprint(source_path, dtype, quantization=quantization, **source)

    @torch.inference_mode()
    def ask(self, probes: Sequence[Probe], images: ImageStore) -> list[Response | Exception]:
        """Answer a batch, in order.

        A probe that this family does not support gets an error, and so does one with more tokens
        than the model has positions.
        """
        answers: dict[int, Response | Exception] = {
            i: refusal for i, probe in enumerate(probes) if (refusal := self._refusal(probe))
        }
        supported = [i for i in range(len(probes)) if i not in answers]
        tasks = dict(zip(supported, self._tasks([probes[i] for i in supported]), strict=True))
        if self._prefiller:
            answers |= self._answer_sharing(self._prefiller, tasks, images)
        groups: dict[tuple[str, bool, bool], list[int]] = {}
        for i, task in tasks.items():
            if i not in answers:
                kind = task.probe.ask, bool(task.probe.images), task.probe.token_statistics
                groups.setdefault(kind, []).append(i)
        for rows in groups.values():
            for batch in self._batches({i: tasks[i].request for i in rows}):
                answers |= self._answer_rows({i: tasks[i] for i in batch}, images)
        return [answers[i] for i in range(len(probes))]

    def _refusal(self, probe: Probe) -> DataError | None:
        reason = self.family.refuses(len(probe.images))
        if not reason and (lacking := needs_of(probe) - self.can):
            reason = f"it supports {', '.join(sorted(self.can))}, not {', '.join(sorted(lacking))}"
        subject = f"{probe.variant} of item {probe.item_id}"
        return DataError(f"{subject}: {self.name} cannot answer it: {reason}") if reason else None

    def _tasks(self, probes: Sequence[Probe]) -> list[_Task]:
        texts = [
            "" if p.ask in RAW else self.conversation.render(p.prompt, len(p.images))
            for p in probes
        ]
        requests = self.conversation.prefill_requests(probes, texts)
        return [_Task(*parts) for parts in zip(probes, texts, requests, strict=True)]

    def _answer_sharing(
        self, prefiller: Prefiller, tasks: Mapping[int, _Task], images: ImageStore
    ) -> dict[int, Response | Exception]:
        """Answer what can be answered with common prefixes read once."""
        requests = {i: task.request for i, task in tasks.items()}
        answers: dict[int, Response | Exception] = {}

        def process(rows: Sequence[int]) -> dict[str, Any]:
            return self._encode([tasks[i] for i in rows], images)

        for result in prefiller.prefill(requests, process):
            statistics = statistics_of(result, requests, self.model.get_output_embeddings())
            for i, state_rows in result.rows.items():
                if tasks[i].probe.ask == "embed":
                    answers[i] = self._embedding(tasks[i], result.states[state_rows[0]])
                elif state_rows:
                    answers[i] = self._answer(tasks[i], statistics[i])
            for with_statistics in (False, True):
                rows = [
                    i for i in result.prefixes if tasks[i].probe.token_statistics is with_statistics
                ]
                for batch in batched(rows, ROWS_AT_ONCE):
                    inputs = prefiller.generation_inputs([result.prefixes[i] for i in batch])
                    answers |= self._generate({i: tasks[i] for i in batch}, inputs)
        return answers

    def _batches(self, requests: Mapping[int, PrefillRequest]) -> Iterator[Sequence[int]]:
        """Yield the rows of forward passes: of similar length, and with memory for their logits."""
        rows = list(requests)
        lengths = [len(requests[i].prompt) + len(requests[i].suffix) for i in rows]
        vocabulary = self.model.config.get_text_config().vocab_size
        for positions in by_length(lengths, forward_cost(self.model.device.type)):
            width = max(len(requests[rows[i]].suffix) for i in positions) + 1
            n = min(ROWS_AT_ONCE, rows_at_once(width, vocabulary))
            yield from batched([rows[i] for i in positions], n)

    def _answer_rows(
        self, tasks: Mapping[int, _Task], images: ImageStore
    ) -> dict[int, Response | Exception]:
        """Answer probes of one kind in a forward pass in which each is a row."""
        inputs = self._inputs(list(tasks.values()), images)
        kind = next(iter(tasks.values())).probe.ask
        n_after = int(kind not in ("choose", "embed"))  # of what is read
        lengths = dict(zip(tasks, inputs["attention_mask"].sum(1).tolist(), strict=True))
        answers: dict[int, Response | Exception] = {
            i: self._score_in_windows(tasks[i]) or error
            for i, n_tokens in lengths.items()
            if (error := self.too_long(n_tokens + n_after, tasks[i].where))
        }
        if answers:
            fitting = {i: task for i, task in tasks.items() if i not in answers}
            return answers | (self._answer_rows(fitting, images) if fitting else {})
        requests = [task.request for task in tasks.values()]
        if kind in ("generate", "continue_text"):
            return self._generate(tasks, inputs)
        width = max(len(request.suffix) for request in requests)
        if kind == "embed":
            outputs = self.model.base_model(**inputs).last_hidden_state
        else:
            n_logits = max(r.n_states + width - len(r.suffix) for r in requests)
            outputs = self.model(**inputs, logits_to_keep=n_logits).logits
        for (i, task), output in zip(tasks.items(), outputs, strict=True):
            end = len(output) - width + len(task.request.suffix)
            row = output[end - task.request.n_states : end]
            if kind == "embed":
                answers[i] = self._embedding(task, row[0])
            else:
                ids = torch.tensor(task.request.targets, device=output.device)
                rows = torch.zeros_like(ids) if len(row) < len(ids) else None
                answers[i] = self._answer(task, token_statistics(row, ids, rows))
        return answers

    def _score_in_windows(self, task: _Task) -> Response | None:
        """Score a text that is longer than the model's context, unless its prompt is, too."""
        context, request = self._context() or 0, task.request
        n_prompt, reply = len(request.prompt), request.targets
        if request.images or n_prompt >= context or task.probe.ask not in ("score", "score_text"):
            return None
        ids, parts = torch.tensor([*request.prompt, *reply], device=self.model.device), []
        for begin, end, n_new in windows(n_prompt, len(reply), context):
            logits = self.model(input_ids=ids[None, begin:end], logits_to_keep=n_new + 1).logits
            parts.append(token_statistics(logits[0, -n_new - 1 : -1], ids[end - n_new : end]))
        return self._answer(task, TokenStatistics.join(parts))

    def _answer(self, task: _Task, statistics: TokenStatistics) -> Response:
        """Return the response of a probe that chooses a letter or scores a text."""
        probe = task.probe
        if probe.ask == "choose":
            self._check_numbers(statistics.log_probs)
            log_probs, n = statistics.log_probs.tolist(), probe.n_options
            fields = letter_fields(log_probs[:n], log_probs[n:], labels=probe.labels)
        elif probe.ask == "score":
            fields = statistics.fields(every_token=bool(probe.images))
        else:
            fields = statistics.fields() | {"is_greedy": tuple(statistics.greedy.tolist())}
        return self._response(probe, **fields)

    def _embedding(self, task: _Task, state: torch.Tensor) -> Response:
        self._check_numbers(state)
        return self._response(task.probe, state=pack_state(state))

    @property
    def end_ids(self) -> list[int]:
        """The tokens that end a reply."""
        ends = self.model.generation_config.eos_token_id
        return ends if isinstance(ends, list) else [ends]

    def _check_numbers(self, values: torch.Tensor) -> None:
        if values.isnan().any():
            raise DataError(f"{self.name} returns NaN; load it with dtype: float32 or bfloat16")

    def _generate(
        self, tasks: Mapping[int, _Task], inputs: dict[str, Any]
    ) -> dict[int, Response | Exception]:
        """Generate replies, each up to its own limit; one that outgrows the context fails."""
        probes = [task.probe for task in tasks.values()]
        decoding = Decoding(probes, self._check_numbers)
        # a decoder of its own starts with one token
        n_prompt = 1 if is_encoder_decoder(self.model.config) else inputs["input_ids"].shape[1]
        limits = [probe.max_new_tokens for probe in probes]
        ids = self.model.generate(
            **inputs,
            generation_config=GenerationConfig(max_new_tokens=max(limits), do_sample=False),
            logits_processor=LogitsProcessorList([decoding]),
        )
        new_ids = [row[:n] for row, n in zip(ids[:, n_prompt:].tolist(), limits, strict=True)]
        texts = self.tokenizer.batch_decode(new_ids, skip_special_tokens=True)
        statistics = decoding.fields(new_ids, self.end_ids)
        lengths = inputs["attention_mask"].sum(1).tolist()
        answers: dict[int, Response | Exception] = {}
        for (i, task), text, fields, n_tokens, row in zip(
            tasks.items(), texts, statistics, lengths, new_ids, strict=True
        ):
            n_reply = min(n_before_end(row, self.end_ids) + 1, len(row))
            if error := self.too_long(n_tokens + n_reply, task.where):
                answers[i] = error
                continue
            choice = parse_choice(text, task.probe.options, task.probe.labels or LETTERS)
            answers[i] = self._response(task.probe, text=text, choice=choice, **fields)
        return answers

    def _context(self) -> int | None:
        return getattr(self.model.config.get_text_config(), "max_position_embeddings", None)

    def too_long(self, n_tokens: int, subject: str) -> DataError | None:
        """Return the error of an item with more tokens than the model has positions."""
        context = self._context()
        if not context or n_tokens <= context or is_encoder_decoder(self.model.config):
            return None
        return DataError(
            f"{subject}: {n_tokens:,} tokens, but {self.name} has positions for {context:,}; make"
            " the pictures smaller or the texts shorter"
        )

    def _inputs(self, tasks: Sequence[_Task], images: ImageStore) -> dict[str, Any]:
        """Return the inputs of prompts, padded left, and what follows them, padded right."""
        if tasks[0].probe.ask in RAW:
            inputs = left_padded([task.request.prompt for task in tasks], self._pad)
        else:
            inputs = self._encode(tasks, images)
        suffixes = [task.request.suffix for task in tasks]
        append_replies(inputs, suffixes, self._pad, self.family.reply_token_type)
        return {name: value.to(self.model.device) for name, value in inputs.items()}

    def _encode(self, tasks: Sequence[_Task], images: ImageStore) -> dict[str, Any]:
        pictures = [[images.open(ref) for ref in task.probe.images] for task in tasks]
        inputs = self.conversation.encode([task.text for task in tasks], pictures)
        return {name: value.to(self.model.device) for name, value in inputs.items()}

    def _response(self, probe: Probe, **fields: Any) -> Response:
        return Response(
            probe_id=probe.id, model_fingerprint=self.fingerprint, model=self.name, **fields
        )


def as_vlm(model: str | Path | VLM, name: str | None = None, **options: Any) -> VLM:
    """Return a model that implements the protocol; load it if ``model`` is a folder or hub id.

    ``options`` are further arguments of `HuggingFaceVLM`. An object that lacks an attribute of the
    protocol is a `ConfigError`.
    """
    if isinstance(model, str | Path):
        return HuggingFaceVLM(str(model), name, **options)
    vlm: VLM = check_protocol(model, VLM, "model")
    return vlm


def lazy_vlm(model: ModelConfig) -> HuggingFaceVLM:
    """Return a model that loads when it is used: a finished run needs its fingerprint alone."""
    return cast("HuggingFaceVLM", LazyVLM(model))


class LazyVLM:
    """A `HuggingFaceVLM` that loads when it is used; another process gets it without weights."""

    def __init__(self, model: ModelConfig) -> None:
        self.name, self._model = model.path, model
        self.fingerprint = fingerprint(
            resolve_path(model.path),
            model.dtype,
            model.revision,
            model.quantization,
            model.image_padding,
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loaded, name)

    def __reduce__(self) -> tuple[type[LazyVLM], tuple[ModelConfig]]:
        return LazyVLM, (self._model,)

    def release(self) -> None:
        """Drop the weights; the next use loads them again."""
        vars(self).pop("_loaded", None)

    @cached_property
    def _loaded(self) -> HuggingFaceVLM:
        return HuggingFaceVLM(**self._model.model_dump(), name=self.name)

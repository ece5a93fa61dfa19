"""A Hugging Face vision-language model that answers probes, batched and left-padded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList

from flipbench.config.local_models import ImagePadding, Quantization
from flipbench.core.errors import DataError, FlipbenchError, PrerequisiteError
from flipbench.core.images import ImageStore
from flipbench.core.records import Probe, Response
from flipbench.models.chat.log_probs import letter_fields
from flipbench.models.protocols import Capability, needs_of
from flipbench.models.vlm.checkpoints import (
    PACKAGED,
    base_of,
    check_files,
    fingerprint,
    first_line,
    resolve_path,
)
from flipbench.models.vlm.conversation import RAW, Conversation, append_replies
from flipbench.models.vlm.decoding import Decoding, Limits, plain_generation
from flipbench.models.vlm.families import EVERYTHING, family_of, is_encoder_decoder
from flipbench.models.vlm.loading import architecture, load_model, usable_device
from flipbench.models.vlm.processors import load_processor
from flipbench.models.vlm.scoring import (
    TokenStatistics,
    longest,
    pack_state,
    rows_at_once,
    statistics_of,
    token_statistics,
    windows,
)
from flipbench.models.vlm.sharing.prefix import Reader, can_share
from flipbench.models.vlm.sharing.token_trees import batched, by_length, forward_cost
from flipbench.prompting.parsing import parse_choice
from flipbench.prompting.prompts import LETTERS, split_labels

Answer = Callable[[Sequence[Probe], ImageStore], Sequence[Response | Exception]]
ROWS_AT_ONCE = 64  # prompts in a forward pass, where each is a row of its own


class TooManyTokens(Exception):
    """Some probes of a batch have more tokens than the model has positions.

    ``of`` holds the error of each, by the probe's id.
    """

    def __init__(self, of: dict[str, DataError]) -> None:
        super().__init__("; ".join(map(str, of.values())))
        self.of = of


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
    share_images : bool
        Read common images and beginnings once, if the family can (`flipbench.models.vlm.sharing`).
    cache_mib : int, optional
        Memory for their keys and values; default: 2048, or a quarter of a GPU's free memory.

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
        share_images: bool = True,
        cache_mib: int | None = None,
    ) -> None:
        where = resolve_path(path)
        self.name = name or Path(path.removeprefix(PACKAGED)).name
        check_files(where)
        device = usable_device(device)
        trust: dict[str, Any] = {"trust_remote_code": trust_remote_code}
        loaded_as: dict[str, Any] = {"revision": revision, "image_padding": image_padding}
        try:
            base, at = base_of(where, revision)
            config = architecture(base, **at, **trust)
            self.family = family_of(config)
            self.can = self.family.can
            processor = load_processor(where, **loaded_as, **trust)
            self.conversation = Conversation(processor, self.family, self.name)
            how: dict[str, Any] = {"merge": False, "quantization": quantization, "config": config}
            self.model = load_model(where, dtype, revision, **how, **trust)
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
        shares = share_images and can_share(self.model)
        self._reader = Reader(self.model, self._pad, cache_mib) if shares else None
        self.fingerprint = fingerprint(where, dtype, quantization=quantization, **loaded_as)

    def ask(self, probes: Sequence[Probe], images: ImageStore) -> list[Response | Exception]:
        """Answer a batch, in order.

        A probe that this family does not support gets an error. Where common beginnings cannot be
        shared, probes of different kinds are batched separately.
        """
        answers: dict[int, Response | Exception] = {
            i: refusal for i, probe in enumerate(probes) if (refusal := self._refusal(probe))
        }
        if self._reader:
            rows = [i for i in range(len(probes)) if i not in answers]
            shared = self._ask_sharing([probes[i] for i in rows], images)
            answers |= {rows[at]: response for at, response in shared.items()}
        groups: dict[tuple[str, bool, int, bool, str], list[int]] = {}
        for i, probe in enumerate(probes):
            if i not in answers:
                size, with_statistics = probe.max_new_tokens, probe.token_statistics
                key = (probe.ask, bool(probe.images), size, with_statistics, probe.labels)
                groups.setdefault(key, []).append(i)
        by_kind: dict[str, Answer] = {"choose": self._choose, "embed": self._embed}
        by_kind |= dict.fromkeys(("generate", "continue_text"), self._generate)
        for (ask, *_), rows in groups.items():
            answer = by_kind.get(ask, self._score)
            while rows:
                try:
                    replies = answer([probes[i] for i in rows], images)
                except TooManyTokens as error:  # those of the batch that do not fit, at once
                    answers |= {i: error.of[probes[i].id] for i in rows if probes[i].id in error.of}
                    rows = [i for i in rows if i not in answers]
                else:
                    answers.update(zip(rows, replies, strict=True))
                    break
        return [answers[i] for i in range(len(probes))]

    def _refusal(self, probe: Probe) -> DataError | None:
        why = self.family.refuses(len(probe.images))
        if not why and (missing := needs_of(probe) - self.can):
            why = f"it supports {', '.join(sorted(self.can))}, not {', '.join(sorted(missing))}"
        where = f"{probe.variant} of item {probe.item_id}"
        return DataError(f"{where}: {self.name} cannot answer it: {why}") if why else None

    @torch.inference_mode()
    def _ask_sharing(
        self, probes: Sequence[Probe], images: ImageStore
    ) -> dict[int, Response | Exception]:
        """Answer what can be answered with common beginnings read once, by the probes' places."""
        texts = self._texts(probes)
        passages = self.conversation.passages(probes, texts)
        out: dict[int, Response | Exception] = {}

        def process(rows: Sequence[int]) -> dict[str, Any]:
            return self._encode([texts[i] for i in rows], [probes[i] for i in rows], images)

        assert self._reader
        for reading in self._reader.read(passages, process):
            statistics = statistics_of(reading, passages, self.model.get_output_embeddings())
            for i, at in reading.rows.items():
                if probes[i].ask == "embed":
                    out[i] = self._answer(probes[i], reading.states[at[0]])
                elif probes[i].ask == "choose":
                    out[i] = self._answer(probes[i], statistics[i].log_probs)
                elif at:
                    out[i] = self._answer(probes[i], statistics[i])
            for keeps in (False, True):
                rows = [i for i in reading.beginnings if probes[i].token_statistics is keeps]
                for some in batched(rows, ROWS_AT_ONCE):
                    inputs = self._reader.continued([reading.beginnings[i] for i in some])
                    replies = self._replied([probes[i] for i in some], inputs)
                    out.update(zip(some, replies, strict=True))
        return out

    def _answer(self, probe: Probe, given: TokenStatistics | torch.Tensor) -> Response:
        """Return the response to a probe, from statistics, option log-probabilities or a state."""
        if isinstance(given, TokenStatistics):
            if probe.ask == "score":
                return self._response(probe, **given.fields(every_token=bool(probe.images)))
            return self._response(probe, **given.fields(), is_greedy=tuple(given.greedy.tolist()))
        self._check_numbers(given)
        if probe.ask == "embed":
            return self._response(probe, state=pack_state(given))
        values = given.tolist()
        own, spellings = values[: probe.n_options], values[probe.n_options :]
        fields = letter_fields(own, spellings, labels=probe.labels)
        return self._response(probe, **fields)

    @torch.inference_mode()
    def _choose(self, probes: Sequence[Probe], images: ImageStore) -> list[Response]:
        labels, n_options = probes[0].labels, max(p.n_options for p in probes)
        before, letters = (
            self.conversation.label_ids(split_labels(labels)[:n_options])
            if labels
            else ([], self.conversation.letter_ids(n_options))
        )
        own = [letters[: probe.n_options] for probe in probes]
        tokens = [
            [*ids, *self.conversation.other_spellings(split_labels(labels)[: len(ids)], ids)]
            for ids in own
        ]
        out: dict[int, Response] = {}
        for rows, inputs in self._batches(probes, images, [before] * len(probes)):
            logits = self.model(**inputs, logits_to_keep=1).logits[:, -1]
            for row, log_probs in zip(rows, logits.float().log_softmax(-1), strict=True):
                out[row] = self._answer(probes[row], log_probs[tokens[row]].cpu())
        return [out[row] for row in range(len(probes))]

    @property
    def end_ids(self) -> list[int]:
        """The tokens that end a reply."""
        ends = self.model.generation_config.eos_token_id
        return ends if isinstance(ends, list) else [ends]

    def _check_numbers(self, values: torch.Tensor) -> None:
        if values.isnan().any():
            raise DataError(f"{self.name} returns NaN; load it with dtype: float32 or bfloat16")

    @torch.inference_mode()
    def _generate(self, probes: Sequence[Probe], images: ImageStore) -> list[Response | Exception]:
        out: list[Response | Exception] = []
        for some in batched(probes, ROWS_AT_ONCE):
            inputs = self._inputs(some, images)
            self._check_lengths(some, inputs, n_more=1)
            out += self._replied(some, inputs)
        return out

    def _replied(
        self, probes: Sequence[Probe], inputs: dict[str, Any]
    ) -> list[Response | Exception]:
        """Generate replies, each up to its own limit; one that outgrows the context fails."""
        decoding = Decoding(probes, self._check_numbers)
        # a decoder of its own starts with one token
        n_prompt = 1 if is_encoder_decoder(self.model.config) else inputs["input_ids"].shape[1]
        limits = [probe.max_new_tokens for probe in probes]
        ids = self.model.generate(
            **inputs,
            generation_config=GenerationConfig(max_new_tokens=max(limits), do_sample=False),
            logits_processor=LogitsProcessorList([decoding]),
            stopping_criteria=StoppingCriteriaList([Limits(limits, n_prompt)]),
        )
        new_ids = [row[:n] for row, n in zip(ids[:, n_prompt:].tolist(), limits, strict=True)]
        texts = self.tokenizer.batch_decode(new_ids, skip_special_tokens=True)
        ends = self.end_ids
        fields = decoding.fields(new_ids, ends)
        lengths = inputs["attention_mask"].sum(1).tolist()
        replies: list[Response | Exception] = []
        for probe, text, more, n_tokens, row in zip(
            probes, texts, fields, lengths, new_ids, strict=True
        ):
            n_reply = next((i + 1 for i, token in enumerate(row) if token in ends), len(row))
            if too_long := self._too_long(probe, n_tokens + n_reply):
                replies.append(too_long)
                continue
            choice = parse_choice(text, probe.options, probe.labels or LETTERS)
            replies.append(self._response(probe, text=text, choice=choice, **more))
        return replies

    @torch.inference_mode()
    def _embed(self, probes: Sequence[Probe], images: ImageStore) -> list[Response]:
        replies, out = self._replies(probes), dict[int, Response]()
        for rows, inputs in self._batches(probes, images, replies):
            states_btd = self.model.base_model(**inputs).last_hidden_state
            width = max(len(replies[row]) for row in rows)
            for row, states_td in zip(rows, states_btd, strict=True):
                last = len(states_td) - 1 - width + len(replies[row])
                out[row] = self._answer(probes[row], states_td[last])
        return [out[row] for row in range(len(probes))]

    def _score(self, probes: Sequence[Probe], images: ImageStore) -> list[Response]:
        """Score each continuation, as the model's reply to the prompt or as raw text after it."""
        scored = zip(probes, self._all_statistics(probes, images), strict=True)
        return [self._answer(probe, statistics) for probe, statistics in scored]

    @torch.inference_mode()
    def _all_statistics(self, probes: Sequence[Probe], images: ImageStore) -> list[TokenStatistics]:
        replies = self._replies(probes)
        parts = list(range(len(probes)))
        if probes[0].ask == "score":
            prompts = [(p.prompt, [image.sha256 for image in p.images]) for p in probes]
            parts = longest(prompts, replies, (self._context() or 2**31) // 2)
        order = sorted(set(parts), key=lambda row: len(replies[row]), reverse=True)
        statistics: dict[int, TokenStatistics] = {}
        while order:
            n = rows_at_once(len(replies[order[0]]) + 1, self._text_config().vocab_size)
            rows, order = order[:n], order[n:]
            statistics.update(
                zip(rows, self._statistics([probes[i] for i in rows], images), strict=True)
            )
        return [
            statistics[whole].at(slice(len(reply)))
            for whole, reply in zip(parts, replies, strict=True)
        ]

    def _statistics(self, probes: Sequence[Probe], images: ImageStore) -> list[TokenStatistics]:
        replies, out, context = self._replies(probes), dict[int, TokenStatistics](), self._context()
        for rows, inputs in self._batches(probes, images, replies):
            if context and inputs["attention_mask"].shape[1] > context:
                out |= {row: self._long(probes[row], images, context) for row in rows}
                continue
            width = max(len(replies[row]) for row in rows)
            logits = self.model(**inputs, logits_to_keep=width + 1).logits[:, -width - 1 : -1]
            for row, row_logits in zip(rows, logits, strict=True):
                ids = torch.tensor(replies[row], device=row_logits.device)
                out[row] = token_statistics(row_logits[: len(ids)], ids)
        return [out[row] for row in range(len(probes))]

    def _long(self, probe: Probe, images: ImageStore, context: int) -> TokenStatistics:
        """Score a text that may be longer than the model's context, then in `windows`."""
        inputs, (reply,) = self._with_replies([probe], images)
        ids = inputs["input_ids"][0]
        if len(ids) <= context:
            return self._statistics([probe], images)[0]
        n_prompt, parts = len(ids) - len(reply), []
        if probe.images or n_prompt >= context:
            error = self._too_long(probe, len(ids))
            assert error
            raise TooManyTokens({probe.id: error})
        for begin, end, new in windows(n_prompt, len(reply), context):
            logits = self.model(input_ids=ids[None, begin:end], logits_to_keep=new + 1).logits
            parts.append(token_statistics(logits[0, -new - 1 : -1], ids[end - new : end]))
        return TokenStatistics.join(parts)

    def _with_replies(
        self, probes: Sequence[Probe], images: ImageStore
    ) -> tuple[dict[str, Any], list[list[int]]]:
        """Return the inputs of prompts (padded left) and replies (padded right), and the latter."""
        inputs, replies = self._inputs(probes, images), self._replies(probes)
        append_replies(inputs, replies, self._pad, self.family.reply_token_type)
        return inputs, replies

    def _replies(self, probes: Sequence[Probe]) -> list[list[int]]:
        """Return the tokens of each continuation, as a reply to the prompt or as raw text."""
        if probes[0].ask == "score_text":
            replies = [text for _, text in self._raw_texts(probes)]
        else:
            replies = self.conversation.reply_ids([p.continuation.strip() for p in probes])
        for probe, reply in zip(probes, replies, strict=True):
            if not probe.continuation.strip() or not reply:
                raise DataError(f"{probe.variant} of item {probe.item_id}: nothing to score")
        return replies

    def _raw_texts(self, probes: Sequence[Probe]) -> list[tuple[list[int], list[int]]]:
        return [self.conversation.raw_ids(probe.prompt, probe.continuation) for probe in probes]

    def _context(self) -> int | None:
        return getattr(self._text_config(), "max_position_embeddings", None)

    def too_long(self, n_tokens: int, subject: str) -> DataError | None:
        """Return the error of an item with more tokens than the model has positions."""
        context = self._context()
        if not context or n_tokens <= context or is_encoder_decoder(self.model.config):
            return None
        return DataError(
            f"{subject}: {n_tokens:,} tokens, but {self.name} has positions for {context:,}; make"
            " the pictures smaller or the texts shorter"
        )

    def _too_long(self, probe: Probe, n_tokens: int) -> DataError | None:
        return self.too_long(n_tokens, f"{probe.variant} of item {probe.item_id}")

    def _check_lengths(
        self, probes: Sequence[Probe], inputs: dict[str, Any], n_more: int = 0
    ) -> None:
        """Refuse those of a batch that, with ``n_more`` tokens, have more than fit."""
        lengths = inputs["attention_mask"].sum(1).tolist()
        errors = {
            probe.id: error
            for probe, n in zip(probes, lengths, strict=True)
            if (error := self._too_long(probe, n + n_more))
        }
        if errors:
            raise TooManyTokens(errors)

    def _text_config(self) -> Any:
        return self.model.config.get_text_config()

    def _batches(
        self, probes: Sequence[Probe], images: ImageStore, replies: Sequence[list[int]]
    ) -> Iterator[tuple[list[int], dict[str, Any]]]:
        """Return rows and a forward pass's inputs, with replies, in batches of similar length."""
        raw = probes[0].ask == "score_text"
        texts = [] if raw else self._texts(probes)
        prompts = [b for b, _ in self._raw_texts(probes)] if raw else self.conversation.ids(texts)
        lengths = [len(ids) + len(reply) for ids, reply in zip(prompts, replies, strict=True)]
        for rows in by_length(lengths, forward_cost(self.model.device.type)):
            for some in batched(rows, ROWS_AT_ONCE):
                inputs = self._inputs([probes[i] for i in some], images)
                more = [replies[i] for i in some]
                append_replies(inputs, more, self._pad, self.family.reply_token_type)
                if probes[0].ask in ("choose", "embed"):  # others may be read in windows
                    self._check_lengths([probes[i] for i in some], inputs)
                yield list(some), inputs

    def _inputs(self, probes: Sequence[Probe], images: ImageStore) -> dict[str, Any]:
        """Return the inputs of prompts, padded left."""
        if probes[0].ask in RAW:
            return self._padded([before for before, _ in self._raw_texts(probes)])
        return self._encode(self._texts(probes), probes, images)

    def _texts(self, probes: Sequence[Probe]) -> list[str]:
        """Return the prompts as rendered; raw texts have none."""
        return [
            "" if p.ask in RAW else self.conversation.render(p.prompt, len(p.images))
            for p in probes
        ]

    def _padded(self, rows: Sequence[list[int]]) -> dict[str, Any]:
        """Return inputs of tokens alone, padded left."""
        width, pad = max(map(len, rows)), self._pad
        ids = [[pad] * (width - len(row)) + row for row in rows]
        mask = [[0] * (width - len(row)) + [1] * len(row) for row in rows]
        return {
            name: torch.tensor(values, device=self.model.device)
            for name, values in (("input_ids", ids), ("attention_mask", mask))
        }

    def _encode(
        self, texts: Sequence[str], probes: Sequence[Probe], images: ImageStore
    ) -> dict[str, Any]:
        pictures = [[images.open(ref) for ref in probe.images] for probe in probes]
        inputs = self.conversation.encode(texts, pictures)
        return {name: value.to(self.model.device) for name, value in inputs.items()}

    def _response(self, probe: Probe, **fields: Any) -> Response:
        return Response(
            probe_id=probe.id, model_fingerprint=self.fingerprint, model=self.name, **fields
        )

"""Train the tiny Flux and its ControlNet from scratch.

Run ``python -m studies.tiny_models.flux.train FOLDER``. A run that was stopped continues when
started again: finished lessons and the last checkpoint are in the folder.

Four lessons (docs/shapes.md says what worked and what did not):

1. *Autoencoder*: pictures and edge maps, first as crops, then whole.
2. *Text encoder*: a T5 learns from captions alone what each cell holds; then it is frozen.
3. *Denoiser*: Flux draws from captions, first one to three things, then whole families; then its
   ControlNet joins and sees the edges of one member of a family, while caption and picture are
   another's. A throw-away layer names what each cell will hold, which shows the transformer early
   what captions say about places.
4. *Decoder*: the autoencoder's decoder alone, on noisy latents, as the denoiser leaves them.

No training scene is in the benchmark or in the exam; that is asserted by hash.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import AutoencoderKL
from diffusers.models.attention_dispatch import attention_backend
from transformers import T5EncoderModel

from studies.tiny_models.flux.autoencoder import sharpen, train_autoencoder
from studies.tiny_models.flux.denoiser import Denoising, Parts
from studies.tiny_models.flux.exam import Exam
from studies.tiny_models.flux.examples import (
    Examples,
    cached,
    draw_groups,
    encode_captions,
    encode_groups,
)
from studies.tiny_models.flux.optimizing import Log
from studies.tiny_models.flux.pictures import benchmark_hashes
from studies.tiny_models.flux.text_encoder import new_tokenizer, train_text_encoder

# where in the third lesson families replace few things, and where the ControlNet joins
_FAMILIES_FROM, _CONTROL_FROM = 0.08, 0.35
_SAVE_EVERY = 100


def main() -> None:
    """Train what is missing in a folder."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--autoencoder", type=int, default=1_000, help="steps of lesson 1")
    parser.add_argument("--text-encoder", type=int, default=600, help="steps of lesson 2")
    parser.add_argument("--denoiser", type=int, default=6_000, help="steps of lesson 3")
    parser.add_argument("--decoder", type=int, default=800, help="steps of lesson 4")
    parser.add_argument("--families", type=int, default=2_000)
    parser.add_argument("--few", type=int, default=1_500, help="scenes of one to three things")
    parser.add_argument("--batch-size", type=int, default=24)
    parser.add_argument("--exam-each", type=int, default=8, help="edits per kind in an exam")
    parser.add_argument("--exam-minutes", type=float, default=10, help="between two exams")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    train(args)


def train(args: argparse.Namespace) -> None:
    """Run the lessons that are not finished, and export the pipeline to ``FOLDER/final``."""
    folder, log = args.folder, Log(args.folder / "log.jsonl")
    torch.manual_seed(args.seed)
    if not (folder / "vae").exists():
        rng = np.random.default_rng([args.seed, 1])
        train_autoencoder(args.autoencoder, rng, log).save_pretrained(folder / "vae")
    if not (folder / "text_encoder_2").exists():
        rng = np.random.default_rng([args.seed, 2])
        encoder = train_text_encoder(new_tokenizer(), args.text_encoder, rng, log)
        encoder.save_pretrained(folder / "text_encoder_2")
    parts = Parts.of(
        AutoencoderKL.from_pretrained(folder / "vae"),  # type: ignore[no-untyped-call]
        T5EncoderModel.from_pretrained(folder / "text_encoder_2"),
    )
    exam = Exam.draw(np.random.default_rng([args.seed, 99]), args.exam_each)
    small_groups, families = examples_of(args, parts, exam)
    log("examples", few=len(small_groups.held), families=len(families.held))
    train_denoiser(args, parts, small_groups, families, exam, log)
    if not (folder / "sharpened").exists():
        sharpen(parts.vae, args.decoder, np.random.default_rng([args.seed, 5]), log)
        parts.vae.save_pretrained(folder / "sharpened")
    parts.vae = AutoencoderKL.from_pretrained(folder / "sharpened").eval()  # type: ignore[no-untyped-call]
    log("exam", step=args.denoiser, **exam.grade(parts.pipeline()))
    parts.export(folder / "final")


def examples_of(args: argparse.Namespace, parts: Parts, exam: Exam) -> tuple[Examples, Examples]:
    """Return encoded scenes of few things, and families; none is in the exam or the benchmark."""
    rng = np.random.default_rng([args.seed, 3])
    small_groups, families = draw_groups(rng, args.families, args.few)
    families = [
        group for group in families if exam.hashes.isdisjoint(s.content_hash() for s in group)
    ]
    hashes = {scene.content_hash() for group in (*small_groups, *families) for scene in group}
    if hashes & benchmark_hashes():
        raise AssertionError("a training scene is in the benchmark")
    return (
        cached(args.folder / "few.pt", lambda: encode_groups(small_groups, parts)),
        cached(args.folder / "families.pt", lambda: encode_groups(families, parts)),
    )


def train_denoiser(
    args: argparse.Namespace,
    parts: Parts,
    groups: Examples,
    families: Examples,
    exam: Exam,
    log: Log,
) -> None:
    """Train the transformer and the ControlNet, from the last checkpoint if there is one."""
    empty = encode_captions(parts.text_encoder_2, parts.tokenizer_2, [""])[0]
    denoising = Denoising(parts.transformer, parts.controlnet, empty)
    checkpoint = args.folder / "checkpoint"
    if (checkpoint / "state.pt").exists():
        denoising.restore(checkpoint)
    rng = np.random.default_rng([args.seed, 4, denoising.step])
    torch.manual_seed(args.seed + denoising.step)
    examined = time.monotonic()
    with _math_attention():
        while denoising.step < args.denoiser:
            share = denoising.step / args.denoiser
            control = share >= _CONTROL_FROM and rng.random() < 0.85
            simple = share < _FAMILIES_FROM or rng.random() < 0.15
            denoising.learn(
                groups if simple else families, rng, args.batch_size, share, control=control
            )
            is_last = denoising.step == args.denoiser
            if denoising.step % 25 == 0 or is_last:
                values: dict[str, Any] = {
                    "loss": denoising.loss.value,
                    "named_right": denoising.named.value,
                }
                log("denoiser", step=denoising.step, control=control, **values)
            if denoising.step % _SAVE_EVERY == 0 or is_last:
                denoising.save(checkpoint)
            if time.monotonic() - examined > 60 * args.exam_minutes:
                log("exam", step=denoising.step, **exam.grade(parts.pipeline()))
                examined = time.monotonic()


@contextmanager
def _math_attention() -> Iterator[None]:
    """Train with plain attention, whose backward pass is the faster one here.

    The model's own ``set_attention_backend`` would set it for all that this process draws later.
    """
    was_allowed = torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()  # type: ignore[no-untyped-call]
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)  # despite its name, on CPUs too
    try:
        with attention_backend("_native_math"):
            yield
    finally:
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(was_allowed)


if __name__ == "__main__":
    main()

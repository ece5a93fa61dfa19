"""Build the tiny VLMs of the embedded world, of the LLaVA, Qwen2-VL and InternVL classes.

All of them encode an image as 16 tokens, one for each cell of the 4 x 4 grid.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    CLIPImageProcessorPil,
    CLIPVisionConfig,
    GotOcr2ImageProcessorPil,
    InternVLConfig,
    InternVLForConditionalGeneration,
    InternVLVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen2VLImageProcessorPil,
)

from flipbench.models.vlm.processors import IMAGE_ONLY

FAMILIES = ("llava", "qwen2_vl")  # the two that are shipped
N_IMAGE_TOKENS = 16
_PIXELS = 64
_CONTEXT = 1024
_INIT = 0.08  # about 1/sqrt(hidden size); with the usual 0.02 such a small model learns slowly


@dataclass(frozen=True)
class Size:
    """Width, layers and attention heads of a language model, and whether its attention has biases.

    Qwen2 models always have them.
    """

    width: int
    n_layers: int
    n_heads: int
    attention_bias: bool = False


STANDARD = Size(144, 5, 4)

LLAVA_TEMPLATE = (
    "{% for message in messages %}"
    "{{ 'USER: ' if message['role'] == 'user' else 'ASSISTANT: ' }}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] if part['type'] == 'image' %}<image>\n{% endfor %}"
    "{% for part in message['content'] if part['type'] == 'text' %}{{ part['text'] }}{% endfor %}"
    "{% endif %}"
    "{{ eos_token if message['role'] == 'assistant' else ' ' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)
QWEN2_VL_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part['type'] == 'text' %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
INTERNVL_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<IMG_CONTEXT>\n"
    "{% elif part['type'] == 'text' %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_IMAGE_MARKS = {
    "llava": "<image>\n",
    "qwen2_vl": "<|vision_start|><|image_pad|><|vision_end|>",
    "internvl": "<IMG_CONTEXT>\n",
}
_LLAVA_SPECIAL = ["<unk>", "<s>", "</s>", "<pad>", "<image>"]
_QWEN_SPECIAL = [
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>"),
    *("<|image_pad|>", "<|video_pad|>"),
]
_INTERNVL_MARKS = {
    "start_image_token": "<img>",
    "end_image_token": "</img>",
    "context_image_token": "<IMG_CONTEXT>",
    "video_token": "<video>",
}


def build(family: str, corpus: list[str], seed: int = 0, size: Size = STANDARD) -> tuple[Any, Any]:
    """Return an untrained (model, processor) of ``family``; the tokenizer is fitted to ``corpus``.

    Words of the corpus become single tokens; other text falls back to bytes. ``seed`` is that of
    the initial weights, ``size`` that of the language model.
    """
    if family not in BUILDERS:
        raise ValueError(f"family must be one of {tuple(BUILDERS)}, got {family!r}")
    torch.manual_seed(seed)
    model, processor = BUILDERS[family](corpus, size)
    model.generation_config.eos_token_id = [processor.tokenizer.eos_token_id]
    model.generation_config.pad_token_id = processor.tokenizer.pad_token_id
    model.generation_config.do_sample = False
    return model, processor


def plain_template(family: str) -> str:
    """Return LLaVA's chat template with a family's own marks for an image.

    A reply's first word is the same token as anywhere else, which templates that end in a newline
    do not have.
    """
    return LLAVA_TEMPLATE.replace("<image>\n", _IMAGE_MARKS[family])


def _tokenizer(corpus: list[str], special: list[str], **roles: str) -> PreTrainedTokenizerFast:
    """Fit a byte-level BPE in which a word, with its leading space, is one token."""
    tokenizer = Tokenizer(models.BPE())
    words = pre_tokenizers.Split(Regex(r"\s?[A-Za-z0-9]+|\s?[^\sA-Za-z0-9]+|\s"), "isolated")
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, bytes_])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1000,
        min_frequency=2,
        special_tokens=special,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(corpus * 2, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        padding_side="left",
        additional_special_tokens=[s for s in special if s not in roles.values()],
        **roles,
    )


def _text_config(tokenizer: Any, size: Size) -> dict[str, Any]:
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": size.width,
        "intermediate_size": 3 * size.width,
        "num_hidden_layers": size.n_layers,
        "num_attention_heads": size.n_heads,
        "num_key_value_heads": size.n_heads,
        "max_position_embeddings": _CONTEXT,
        "tie_word_embeddings": True,
        "initializer_range": _INIT,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }


def _build_llava(corpus: list[str], size: Size) -> tuple[Any, Any]:
    tokenizer = _tokenizer(
        corpus,
        _LLAVA_SPECIAL,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
    )
    vision = CLIPVisionConfig(
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        image_size=_PIXELS,
        patch_size=_PIXELS // 4,
        projection_dim=128,
        initializer_range=_INIT,
        initializer_factor=1.0,
    )
    config = LlavaConfig(
        vision_config=vision,
        text_config=LlamaConfig(
            **_text_config(tokenizer, size), attention_bias=size.attention_bias
        ),
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        image_seq_length=N_IMAGE_TOKENS,
        vision_feature_layer=-1,
        vision_feature_select_strategy="default",
        tie_word_embeddings=True,
    )
    model = LlavaForConditionalGeneration(config)
    processor = LlavaProcessor(
        image_processor=CLIPImageProcessorPil(
            size={"shortest_edge": _PIXELS}, crop_size={"height": _PIXELS, "width": _PIXELS}
        ),
        tokenizer=tokenizer,
        patch_size=_PIXELS // 4,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=LLAVA_TEMPLATE,
    )
    return model, processor


def _build_qwen2_vl(corpus: list[str], size: Size) -> tuple[Any, Any]:
    tokenizer = _tokenizer(
        corpus,
        _QWEN_SPECIAL,
        bos_token="<|endoftext|>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
    )
    head_dim = size.width // size.n_heads
    text = _text_config(tokenizer, size) | {
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "mrope_section": [head_dim // 2 - 2 * (head_dim // 6), head_dim // 6, head_dim // 6],
        }
    }
    config = Qwen2VLConfig(
        text_config=text,
        vision_config={
            "depth": 2,
            "embed_dim": 96,
            "hidden_size": size.width,
            "num_heads": 4,
            "mlp_ratio": 2,
            "patch_size": _PIXELS // 8,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "initializer_range": _INIT,
        },
        image_token_id=tokenizer.convert_tokens_to_ids("<|image_pad|>"),
        video_token_id=tokenizer.convert_tokens_to_ids("<|video_pad|>"),
        vision_start_token_id=tokenizer.convert_tokens_to_ids("<|vision_start|>"),
        vision_end_token_id=tokenizer.convert_tokens_to_ids("<|vision_end|>"),
        tie_word_embeddings=True,
    )
    model = Qwen2VLForConditionalGeneration(config)
    pixels = _PIXELS * _PIXELS
    processor = IMAGE_ONLY["qwen2_vl"](
        image_processor=Qwen2VLImageProcessorPil(
            size={"shortest_edge": pixels, "longest_edge": pixels},
            patch_size=_PIXELS // 8,
            merge_size=2,
            temporal_patch_size=2,
        ),
        tokenizer=tokenizer,
        chat_template=QWEN2_VL_TEMPLATE,
    )
    return model, processor


def _build_internvl(corpus: list[str], size: Size) -> tuple[Any, Any]:
    tokenizer = _tokenizer(
        corpus,
        [*_QWEN_SPECIAL[:3], *_INTERNVL_MARKS.values()],
        bos_token="<|endoftext|>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
    )
    tokenizer.init_kwargs["extra_special_tokens"] = _INTERNVL_MARKS
    tokenizer._set_model_specific_special_tokens(_INTERNVL_MARKS)
    config = InternVLConfig(
        vision_config=InternVLVisionConfig(
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            image_size=[_PIXELS, _PIXELS],
            patch_size=[_PIXELS // 8, _PIXELS // 8],
            initializer_range=_INIT,
            layer_scale_init_value=1.0,
        ),
        text_config=Qwen2Config(**_text_config(tokenizer, size)),
        image_token_id=tokenizer.convert_tokens_to_ids("<IMG_CONTEXT>"),
        image_seq_length=N_IMAGE_TOKENS,
        downsample_ratio=0.5,
        tie_word_embeddings=True,
    )
    processor = IMAGE_ONLY["internvl"](
        GotOcr2ImageProcessorPil(
            size={"height": _PIXELS, "width": _PIXELS}, crop_to_patches=False, max_patches=1
        ),
        tokenizer,
        image_seq_length=N_IMAGE_TOKENS,
        chat_template=INTERNVL_TEMPLATE,
    )
    return InternVLForConditionalGeneration(config), processor


BUILDERS: dict[str, Callable[[list[str], Size], tuple[Any, Any]]] = {
    "llava": _build_llava,
    "qwen2_vl": _build_qwen2_vl,
    "internvl": _build_internvl,
}


_SHARPNESS = 5.0  # of the heads that look back: about 0.9 of their attention is on that token
_THETA = 10_000.0  # of the rotary positions
LOOK_BACK = (1, 2)


@torch.no_grad()
def prepare_attention(model: Any) -> None:
    """Start attention by similarity, and two heads of the first layer by position.

    In every layer keys start equal to queries, and the output projection as the transposed value
    projection, so a token attends to tokens like it and copies them. The first layer's last heads
    attend to the token before and to the one before that, through their biases: in "A. red" the
    word finds its letter. The language model's attention needs biases.
    """
    layers = model.model.language_model.layers
    for layer in layers:
        attention = layer.self_attn
        attention.k_proj.weight.copy_(attention.q_proj.weight)
        attention.o_proj.weight.copy_(attention.v_proj.weight.T)
    attention = layers[0].self_attn
    width = attention.head_dim
    frequencies = 1 / _THETA ** (torch.arange(0, width, 2) / width)
    for number, distance in enumerate(LOOK_BACK, 1):
        rows = slice(-number * width, (1 - number) * width or None)
        angles = distance * frequencies
        query = torch.cat([torch.cos(angles), -torch.sin(angles)])
        key = torch.cat([torch.ones(width // 2), torch.zeros(width // 2)])
        for projection, bias in ((attention.q_proj, query), (attention.k_proj, key)):
            projection.weight[rows] *= 0.1
            projection.bias[rows] = _SHARPNESS * bias

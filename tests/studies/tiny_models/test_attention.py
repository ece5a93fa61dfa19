from __future__ import annotations

import numpy as np
import pytest
import torch

from studies.tiny_models.attention import LOOK_BACK, prepare_attention
from studies.tiny_models.curriculum import corpus
from studies.tiny_models.tiny import BUILDERS, Size, build

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("family", BUILDERS)
def test_the_first_layer_looks_back_and_the_others_compare_and_copy(family: str) -> None:
    texts = corpus(np.random.default_rng(0))
    model, processor = build(family, texts, 3, Size(96, 4, 4, attention_bias=True))
    prepare_attention(model)
    model.set_attn_implementation("eager")
    ids = processor.tokenizer(" red star blue ring green cross red", return_tensors="pt")
    ids = ids["input_ids"]
    with torch.no_grad():
        maps = model.model.language_model(input_ids=ids, output_attentions=True).attentions
    first = maps[0][0]
    for number, distance in enumerate(LOOK_BACK, 1):
        assert float(first[-number].diagonal(-distance).mean()) > 0.75
    for layer in model.model.language_model.layers[1:]:
        attention = layer.self_attn
        assert torch.equal(attention.k_proj.weight, attention.q_proj.weight)
        assert torch.equal(attention.o_proj.weight, attention.v_proj.weight.T)

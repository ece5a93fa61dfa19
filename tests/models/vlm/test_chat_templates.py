"""Chat templates that never end, or write without end: tried in a process of their own first."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from flipbench.core.errors import PrerequisiteError
from flipbench.models.vlm import chat_templates
from flipbench.models.vlm.chat_templates import try_template
from studies.tiny_models.tiny import QWEN2_VL_TEMPLATE

DOUBLING = (
    "{% set n = namespace(x='a') %}{% for _ in range(N) %}{% set n.x = n.x ~ n.x %}{% endfor %}"
)
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        (DOUBLING.replace("N", "40"), "(takes more than|does not end)"),  # on a busy machine
        ("{{ 'a' * 10 ** 10 }}", "(takes more than|does not end)"),  # as it is compiled
        (DOUBLING.replace("N", "21") + "{{ n.x }}", "writes 2,097,152 characters"),
        (ENDLESS, "does not end"),
        ("{% if messages | length > 1 %}" + ENDLESS + "{% endif %}", "does not end"),
        ({"default": "{{ messages }}", "tool_use": ENDLESS}, "does not end"),
    ],
)
def test_a_template_is_tried_before_it_is_used(
    template: str | dict[str, str], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_templates, "_DEADLINE", 2.0)
    reader = SimpleNamespace(chat_template=template, special_tokens_map={"bos_token": "<s>"})
    with pytest.raises(PrerequisiteError, match=f"m: its chat template {problem}"):
        try_template(reader, "m")


@pytest.mark.parametrize(
    "template",
    [
        QWEN2_VL_TEMPLATE,
        "{% generation %}a{% endgeneration %}{{ bos_token }}{% continue %}",  # an error of its own
    ],
)
def test_a_template_that_ends_is_used(template: str) -> None:
    reader = SimpleNamespace(chat_template=template, special_tokens_map={"bos_token": "<s>"})
    try_template(reader, "m")
    assert reader.chat_template == template

"""A run whose pictures a server draws: what it needs and costs, and what cannot be repeated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import flipbench as fb
from flipbench.core.errors import ConfigError, PrerequisiteError
from tests.fixtures.command_line import Flipbench

PRICES = {"1024x1024": 0.05, "1536x1024": 0.06, "1024x1536": 0.06}


def configured(tmp_path: Path, **editor: Any) -> dict[str, Any]:
    editor = {"kind": "api", "model": "gpt-image-1", "price": PRICES} | editor
    return {
        "run": str(tmp_path / "run"),
        "benchmark": {"format": "shapes", "n_items": 8},
        "generate": {"captioner": "template", "editor": editor},
    }


def test_a_dry_run_counts_pictures_and_dollars(tmp_path: Path, flipbench: Flipbench) -> None:
    import yaml

    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(configured(tmp_path)))
    result = flipbench("generate", path, "--dry-run")
    assert result.status == 0
    assert "edits: gpt-image-1: 8 images (8 of 1024x1024); about $0.40" in result.out


def test_a_missing_key_is_named_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(PrerequisiteError, match="OPENAI_API_KEY is not set"):
        fb.Experiment(configured(tmp_path), progress=False).generate()
    assert not (tmp_path / "run" / "flips").exists()


def test_a_recipe_without_seeds_cannot_be_drawn_again(tmp_path: Path) -> None:
    fb.Experiment(configured(tmp_path)).parts.store_config()
    (tmp_path / "run" / "expected.jsonl").write_text("")
    with pytest.raises(ConfigError, match="without a seed"):
        fb.rebuild(tmp_path / "run", trust=True)


@pytest.mark.parametrize(
    ("captioner", "editor", "remedy"),
    [
        ({"prompt": "caption-release-v1"}, {}, "instruction-v1"),
        (
            {"prompt": "instruction-v1"},
            {"kind": "flux-controlnet", "pipeline": "some/flux", "controlnet": "some/canny"},
            "caption-release-v1",
        ),
        (
            {"prompt": "caption-paper-v1"},
            {"kind": "diffusers", "pipeline": "black-forest-labs/FLUX.1-Kontext-dev"},
            "instruction-v1",
        ),
    ],
)
def test_the_prompt_follows_the_kind_of_editor(
    tmp_path: Path, captioner: dict[str, Any], editor: dict[str, Any], remedy: str
) -> None:
    config = configured(tmp_path)
    config["generate"] = {
        "captioner": {"kind": "api", "chat": {"model": "m"}} | captioner,
        "editor": editor or config["generate"]["editor"],
    }
    with pytest.raises(ConfigError, match=f"captioner.prompt={remedy}"):
        _ = fb.Experiment(config).parts.items
    config["generate"]["captioner"]["prompt"] = remedy
    assert len(fb.Experiment(config).parts.items) == 8


@pytest.mark.parametrize("editor", [None, {"kind": "exact"}])
def test_a_preview_needs_no_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, editor: dict[str, Any] | None
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    config = configured(tmp_path)
    if editor:
        config["generate"]["editor"] = editor
    result = fb.Experiment(config, progress=False).generate(preview=tmp_path / "preview.html")
    page = (tmp_path / "preview.html").read_text()
    assert str(result).endswith("preview.html") and "8 of 8 items" in page
    assert ("OPENAI_API_KEY is not set" in page) == (editor is None)
    assert page.count("(right now)") == 8
    assert "Right answer after the edit" in page  # the template that is filled in
    assert ("mirror: the edit itself" in page) == (editor is not None)
    assert not (tmp_path / "run" / "flips").exists()


def test_the_preview_shows_edges_and_the_captioner_s_prompt(
    tmp_path: Path, open_page: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configured(tmp_path)
    config["generate"] = {
        "captioner": {"kind": "api", "chat": {"model": "m"}},
        "editor": {"kind": "flux-controlnet", "pipeline": "some/flux", "controlnet": "some/canny"},
    }
    path = tmp_path / "preview.html"
    fb.Experiment(config, progress=False).generate(preview=path)
    page = open_page(path.as_uri())
    assert page.locator("article").count() == 8
    assert page.locator("figcaption", has_text="control: canny").count() == 8
    page.locator("summary").first.click()
    assert "New answer" in page.locator("pre").first.inner_text()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"steps": 2, "true_cfg_start": 5}, "begins at step 5, but there are 2 steps"),
        ({"control_start": 0.6, "control_end": 0.5}, "the ControlNet would do nothing"),
    ],
)
def test_settings_that_cancel_each_other_are_refused(
    tmp_path: Path, settings: dict[str, Any], says: str
) -> None:
    config = configured(tmp_path)
    flux = {"kind": "flux-controlnet", "pipeline": "some/flux", "settings": settings}
    config["generate"] = {"captioner": "shapes", "editor": flux}
    with pytest.raises(ConfigError, match=says):
        fb.Experiment(config, progress=False).generate()

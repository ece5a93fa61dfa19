"""What is installed and run for the tests: versions with hashes, and actions by commit."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def versions(file: str) -> dict[str, str]:
    found = re.findall(r"^([\w.-]+)==(\S+)", (ROOT / file).read_text(), re.MULTILINE)
    return {normal(name): version for name, version in found}


def test_the_lock_has_the_tested_versions_with_hashes() -> None:
    tested = versions("constraints.txt")
    assert {"torch", "torchvision"} <= set(tested)
    expected = {name: tested[name] for name in tested if name not in ("torch", "torchvision")}
    assert versions("requirements.lock") == expected, "make lock"
    blocks = re.split(r"\n(?=\w)", (ROOT / "requirements.lock").read_text().partition("\n\n")[0])
    assert all(
        re.search(r"--hash=sha256:[0-9a-f]{64}$", block) for block in blocks if "==" in block
    )


@pytest.mark.parametrize("path", sorted((ROOT / ".github" / "workflows").glob("*.yml")))
def test_workflows_pin_actions_by_commit_and_may_only_read(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    actions = [step["uses"] for step in steps if "uses" in step]
    assert actions and all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", action) for action in actions)


def test_the_package_is_typed_and_transformers_has_an_upper_bound() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert (ROOT / "flipbench" / "py.typed").exists()
    assert "py.typed" in project["tool"]["setuptools"]["package-data"]["*"]
    assert "transformers>=5.17,<5.40" in project["project"]["dependencies"]

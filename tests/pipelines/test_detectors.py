"""The configured detectors: parameters reach the judge, and plug-ins need no fork."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from flipbench.api.stages.detectors import ConfiguredDetectors
from flipbench.config.experiment import EvaluateConfig
from flipbench.core.errors import ConfigError
from flipbench.core.records import Score
from flipbench.core.run import Run
from flipbench.evaluate.detectors import registry
from flipbench.evaluate.report.titles import title
from tests.fixtures.command_line import Flipbench
from tests.fixtures.markdown_tables import table
from tests.fixtures.openai_server import KEY, OpenAIServer
from tests.fixtures.planted import Planted, answers_of, planted_benchmark, scores_by_rule
from tests.fixtures.report_data import make_benchmark

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PLUGINS = ROOT / "examples" / "plugins"
TARGET = "wrong_picture:WrongPicture"


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make the example importable, and forget it after the test."""
    before = dict(registry.DETECTORS)
    monkeypatch.syspath_prepend(PLUGINS)
    yield
    registry.DETECTORS.clear()
    registry.DETECTORS.update(before)
    sys.modules.pop("wrong_picture", None)


def test_the_judge_reads_the_replies_of_the_detector_as_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    benchmark = planted_benchmark(tmp_path, n_choices=0, n_open=6)
    with OpenAIServer() as server:
        server.reply = lambda body: '{"choice": "tie"}'
        config = EvaluateConfig.model_validate(
            {
                "judge": {"chat": {"model": "tiny-vlm", "base_url": server.base_url}},
                "parameters": {"free_form_gap": {"max_new_tokens": 32}},
            }
        )
        configured = ConfiguredDetectors.build(config, ["free_form_gap"], Run(tmp_path / "r"), 0)
        (detector,) = configured.detectors(benchmark)
        answers = answers_of(detector, benchmark, Planted("model", 0.0, 0.0))  # "no idea"
        (report,) = configured.judge_replies([detector], benchmark, [answers], progress=False)
    assert report.n_done == 2 * 6, "the same reply to both versions is judged once"
    (detector,) = configured.detectors(benchmark)
    for score in detector.score(benchmark, config.prompt, answers):
        assert (score.n, score.n_dropped) == (6, 0)


def test_a_plug_in_is_a_detector_like_any_other(known: None, tmp_path: Path) -> None:
    benchmark = planted_benchmark(tmp_path)
    scores = {}
    for parameters in ({}, {TARGET: {"step": 3}}, {"wrong_picture": {"alpha": 0.01}}):
        config = EvaluateConfig(parameters=parameters)
        configured = ConfiguredDetectors.build(config, ["codec", TARGET], Run(tmp_path / "r"), 0)
        codec, detector = configured.detectors(benchmark)
        found = scores_by_rule(detector, benchmark, Planted("model", 0.9, 0.5), [])
        (score,) = configured.mark_plug_ins([*found.values()])
        assert score.target == TARGET and score.arguments == next(iter(parameters.values()), {})
        wrong = detector.probes(benchmark, config.prompt)[0].images
        assert wrong == benchmark.originals[score.arguments.get("step", 1)].images
        scores[score.id] = score
        own = list(scores_by_rule(codec, benchmark, Planted("m", 0.9, 0.5), []).values())
        assert configured.mark_plug_ins(own) == own and {s.target for s in own} == {""}
    assert len(scores) == 3, "target and arguments are part of the id"
    assert title("wrong_picture") == "Wrong picture"
    assert registry.default_rule("wrong_picture") in {score.rule for score in scores.values()}


def test_scores_of_built_in_detectors_keep_their_ids() -> None:
    made_of = {
        "detector": "perturbation_gap", "rule": "mcnemar", "model_fingerprint": "m",
        "benchmark_id": "b", "reference_fingerprint": "",
    }  # fmt: skip
    plain = Score.id_for(**made_of, target="", arguments={})
    assert plain == "c33577ce819606ce91a17966"
    changed = {Score.id_for(**made_of, target="a:B", arguments=a) for a in ({}, {"n": 1})}
    assert len(changed | {plain}) == 3


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("WrongPicture = 3", "is not a detector"),
        ("class WrongPicture: pass", "is not a detector"),
        ("from wrong_picture import WrongPicture as R\n"
         "class WrongPicture(R):\n  def __init__(self, n): 0", "needs arguments"),
        ("from flipbench.evaluate.detectors.likelihood.codec import CoDeC\n"
         "class WrongPicture(CoDeC): pass", "'codec' exists already"),
    ],
)  # fmt: skip
def test_what_is_no_detector_or_clashes_is_refused(
    known: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, message: str
) -> None:
    name = f"broken_{abs(hash(source))}"
    (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=f"evaluate.detectors: .*{message}"):
        ConfiguredDetectors.build(EvaluateConfig(), [f"{name}:WrongPicture"], Run(tmp_path), 0)


def test_the_example_runs_from_its_configuration(
    known: None, flipbench: Flipbench, tmp_path: Path, tiny_folders: dict[str, Path]
) -> None:
    make_benchmark(tmp_path / "r", 6).save(tmp_path / "r" / "benchmark")
    given = yaml.safe_load((PLUGINS / "detector.yaml").read_text())
    given |= {"run": "r", "benchmark": {"format": "shapes"}}
    given["models"] = {"tiny": {"path": str(tiny_folders["qwen2_vl"])}}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(given))
    result = flipbench("evaluate", tmp_path / "c.yaml", "-q")
    assert result.status == 0, result.err
    row = table(tmp_path / "r" / "report" / "table.md")
    assert any(column.startswith("Wrong picture: ") for column in row)
    lines = (tmp_path / "r" / "report" / "scores.jsonl").read_text().splitlines()
    targets = {json.loads(line)["detector"]: json.loads(line)["target"] for line in lines}
    assert targets == {"perturbation_gap": "", "wrong_picture": TARGET}


# ------------------------------------------------------------------------ one file, nothing else

NEW = '''
from dataclasses import replace

from .perturbation_gap import ABOUT, PerturbationGap


class Again(PerturbationGap):
    """The perturbation gap under another name."""

    about = replace(ABOUT, name="again", title="The gap again")
'''
USE = """
import sys
import flipbench

flipbench.__path__.append(sys.argv[1])  # as if the file were beside ours
sys.argv = ["flipbench", *sys.argv[2:]]
from flipbench.cli import main

main()
"""


def run(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", USE, str(folder / "more"), *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(folder / "installed")])},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_one_file_makes_a_detector_and_a_package_offers_another(tmp_path: Path) -> None:
    family = tmp_path / "more" / "evaluate" / "detectors" / "perturbation"
    family.mkdir(parents=True)
    (family / "again.py").write_text(NEW)
    installed = tmp_path / "installed" / "example-1.0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: example\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text(f"[flipbench.detectors]\nx = {TARGET}\n")
    example = PLUGINS / "wrong_picture.py"
    (installed.parent / example.name).write_text(example.read_text())

    listed = re.findall(r"^(\w+)  ", run(tmp_path, "detectors"), re.M)
    assert set(listed) - {"Detector"} == {*registry.DETECTORS, "again", "wrong_picture"}
    make_benchmark(tmp_path / "r", 5).save(tmp_path / "r" / "benchmark")
    given: dict[str, Any] = {
        "run": "r",
        "benchmark": {"format": "shapes"},
        "models": {"tiny": {"python": {"target": "examples.plugins.model:Guesser"}}},
        "evaluate": {"detectors": ["again", "wrong_picture"]},
    }
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(given))
    run(tmp_path, "evaluate", "c.yaml", "-q")
    row = table(tmp_path / "r" / "report" / "table.md")
    assert any(column.startswith("The gap again: ") for column in row)
    assert any(column.startswith("Wrong picture: ") for column in row)


def test_the_table_of_the_papers_is_up_to_date(flipbench: Flipbench) -> None:
    printed = flipbench("detectors", "--markdown").out.strip()
    text = (ROOT / "docs" / "papers.md").read_text()
    shown = text.partition("<!-- flipbench detectors --markdown -->")[2].partition("<!-- end -->")
    assert shown[0].strip() == printed, "docs/papers.md: run flipbench detectors --markdown"
    assert printed.count("\n") == 1 + len(registry.DETECTORS)
    for file in re.findall(r"`(evaluate/detectors/\S+\.py)`", printed):
        assert (ROOT / file).is_file()


def test_detectors_can_be_named_and_come_from_elsewhere(known: None, flipbench: Flipbench) -> None:
    result = flipbench("detectors", "codec", TARGET)
    assert re.findall(r"^\w+$", result.out, re.M) == ["codec", "wrong_picture"]
    assert "evaluate.parameters.wrong_picture: step 1, alpha 0.05" in result.out
    assert flipbench("detectors", "codex").status == 2

"""Captioners, editors, judges and models of one's own: the worked examples, run and refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import pytest
import yaml
from pydantic import BaseModel

from flipbench.api.stages.backends import model_without_weights
from flipbench.api.stages.detection import count_work
from flipbench.config.experiment import load_config
from flipbench.config.kinds import ByKind, Context, PartSettings
from flipbench.core.errors import ConfigError
from flipbench.core.images import ImageStore
from flipbench.core.paired import PairedBenchmark
from flipbench.core.records import Caption, Edit, Response, Verdict
from flipbench.core.run import Run
from flipbench.models.protocols import VLM
from flipbench.models.vlm.huggingface import as_vlm
from tests.fixtures.command_line import Flipbench
from tests.fixtures.detection import examined, plan
from tests.fixtures.report_data import make_benchmark

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "plugins" / "plugins.yaml"


@pytest.fixture(autouse=True)
def repository_is_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)


def test_the_example_runs_and_every_id_holds_target_and_arguments(flipbench: Flipbench) -> None:
    arguments = [str(EXAMPLE), "run=out", "benchmark.n_items=6", "--quiet"]
    done = flipbench("run", *arguments)
    assert done.status == 0, done.err
    run = Run(Path("out"))
    captions, edits = list(run.read(Caption)), list(run.read(Edit))
    responses = list(run.read(Response))
    assert len(captions) == len(edits) == 6
    assert captions[0].settings == {
        "target": "examples.plugins.captioner:TemplateCaptioner",
        "arguments": {"template": "It is {answer}."},
    }
    assert edits[0].settings["target"] == "examples.plugins.editor:BannerEditor"
    assert edits[0].settings["version"] == 1, "the editor's own settings stay"
    raters = {v.rater for v in run.read(Verdict) if v.rater_kind == "judge"}
    assert [r.startswith("changed pixels examples.plugins.judge:") for r in raters] == [True]
    assert {r.model for r in responses} == {"guesser", "other"}
    assert len({r.model_fingerprint for r in responses}) == 2
    assert (run.path / "report" / "index.html").exists()

    assert " 0 done, " in flipbench("run", *arguments).err
    assert len(list(run.read(Edit))) == 6 and len(list(run.read(Response))) == len(responses)
    higher = "generate.editor.arguments={height: 0.5}"
    assert flipbench("generate", *arguments, higher).status == 0
    assert len(list(run.read(Edit))) == 12, "other arguments make other pictures"


def test_a_configuration_with_plug_ins_reloads_equal(tmp_path: Path) -> None:
    config = load_config(EXAMPLE)
    path = tmp_path / "again.yaml"
    path.write_text(config.to_yaml())
    assert load_config(path) == config


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("examples.plugins.judge:ChangedPixels", {}, "does not take (self, candidates, seeds, images)"),
    ("subprocess:Popen", {"args": "exit 1", "shell": True}, "has no method __call__"),
    ("subprocess:run", {"args": "exit 1", "shell": True}, "is not a class"),
    ("examples.plugins.editor:BannerEditr", {}, "did you mean 'BannerEditor'?"),
    ("examples.plugins.editor:BannerEditor", {"hight": 1}, "unexpected keyword argument 'hight'"),
    ("flipbench.models.protocols:__doc__", {}, "is not a class"),
]


@pytest.mark.parametrize(("target", "arguments", "message"), WRONG)
def test_what_is_no_editor_is_refused(
    target: str, arguments: dict[str, Any], message: str, tmp_path: Path
) -> None:
    spec = settings("generate.editor", target=target, arguments=arguments).generate.editor
    with pytest.raises(ConfigError) as caught:
        spec.build(Context(tmp_path))
    assert message in str(caught.value)


def settings(key: str, **values: Any) -> Any:
    return load_config(EXAMPLE, [f"{key}={yaml.safe_dump({'kind': 'python', **values})}"])


def test_each_protocol_names_what_an_object_lacks(tmp_path: Path) -> None:
    target = "types:SimpleNamespace"
    config = load_config(
        EXAMPLE,
        [
            f"generate.captioner={{kind: python, target: '{target}', arguments: {{name: x}}}}",
            f"filter.judges=[{{kind: python, target: '{target}'}}]",
            f"models.guesser.python={{target: '{target}', arguments: {{name: x, can: [y]}}}}",
        ],
    )
    with pytest.raises(ConfigError, match="SimpleNamespace has no method __call__, .*Captioner"):
        config.generate.captioner.build(Context(tmp_path))
    with pytest.raises(ConfigError, match="SimpleNamespace has no method __call__, .*Judge"):
        config.filter.judges[0].build(Context(tmp_path))
    with pytest.raises(ConfigError, match="SimpleNamespace has no method ask, .*VLM"):
        model_without_weights("guesser", config.models["guesser"])
    nameless = "filter.judges=[{kind: python, target: 'tests.pipelines.test_plugins:Nameless'}]"
    with pytest.raises(ConfigError, match="Nameless has no name, rater_kind, which a Judge"):
        load_config(EXAMPLE, [nameless]).filter.judges[0].build(Context(tmp_path))


class Nameless:
    """Has the method of a judge, and no more."""

    def __call__(self, candidates: Any, images: Any) -> list[Any]:
        return []


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("generate.editor.traget=x", "generate.editor.traget: unknown key; did you mean 'target'?"),
        ("generate.editor={kind: pyton}", "generate.editor: unknown kind 'pyton' (known:"),
        ("generate.editor={kind: pyton}", "did you mean 'python'?"),
        (
            "generate.editor={target: x}",
            "kind is missing; choose api, controlnet, diffusers",
        ),
        ("models.guesser.dtype=bfloat16", "dtype applies to checkpoints only"),
        ("models.guesser.path=x", "give exactly one of path, api and python"),
    ],
)
def test_a_configuration_that_is_wrong_says_where(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(EXAMPLE, [override])
    assert message in str(caught.value)


ONE_FILE = '''
from typing import Literal

from flipbench.core.records import Value


class TintSpec(Value):
    """Tint the picture."""

    kind: Literal["tint"] = "tint"
    strength: float = 0.5

    def build(self, context):
        return ("tint", self.strength, context.seed)
'''


def test_a_kind_of_an_installed_package_is_one_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "tints-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tints\nVersion: 1.0\n")
    points = "[flipbench.editors]\ntint = their_tints:TintSpec\nhue = their_tints:TintSpec\n"
    (info / "entry_points.txt").write_text(points)
    (tmp_path / "their_tints.py").write_text(ONE_FILE)
    monkeypatch.syspath_prepend(tmp_path)
    config = load_config(EXAMPLE, ["generate.editor={kind: tint, strength: 0.25}"])
    made: Any = config.generate.editor.build(Context(tmp_path, seed=3))
    assert made == ("tint", 0.25, 3)
    assert "strength: 0.25" in config.to_yaml()
    with pytest.raises(ConfigError, match="not a settings class of that kind"):
        load_config(EXAMPLE, ["generate.editor=hue"])
    (info / "entry_points.txt").write_text(points.partition("hue")[0])
    with pytest.raises(ConfigError, match="unknown key; did you mean 'strength'"):
        load_config(EXAMPLE, ["generate.editor={kind: tint, strenght: 1}"])


def test_a_new_kind_is_one_new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room = tmp_path / "a_room_of_editors"
    room.mkdir()
    (room / "tint.py").write_text(ONE_FILE)
    monkeypatch.syspath_prepend(tmp_path)

    class Part(BaseModel):
        editor: Annotated[PartSettings, ByKind(room.name, "no.such.group")]

    part = Part.model_validate({"editor": "tint"})
    assert part.editor.build(Context(tmp_path)) == ("tint", 0.5, 0)
    assert part.model_dump() == {"editor": {"kind": "tint", "strength": 0.5}}
    assert Part.model_validate({"editor": part.editor}) == part


def test_settings_are_read_without_heavy_packages() -> None:
    code = (
        "import sys\n"
        "from flipbench.config.experiment import load_config\n"
        f"load_config({str(ROOT / 'configs' / 'generate' / 'kontext.yaml')!r})\n"
        "heavy = {'torch', 'transformers', 'diffusers', 'openai', 'datasets', 'huggingface_hub'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def guesser(seed: int) -> VLM:
    from examples.plugins.model import Guesser

    vlm: VLM = Guesser(seed)
    return vlm


def test_a_model_object_is_as_good_as_a_path(tmp_path: Path) -> None:
    benchmark = make_benchmark(tmp_path, 6)
    suspect, clean = guesser(1), guesser(2)
    clean.name = "clean guesser"
    detection = plan(suspect, benchmark, clean, "perturbation_gap", tmp_path / "run")
    assert "        2  models to ask" in count_work(detection)
    assert "Guesser (" in examined(detection).page.read_text()
    asked = {r.model for r in Run(tmp_path / "run").read(Response)}
    assert asked == {"guesser", "clean guesser"}
    with pytest.raises(ConfigError, match="the same weights"):
        plan(suspect, benchmark, guesser(1), run=tmp_path / "other")


def test_what_is_no_model_is_refused(shapes_store: ImageStore, tmp_path: Path) -> None:
    assert as_vlm(model := guesser(1)) is model
    assert as_vlm("shapes:llava", "a name").name == "a name"
    lacking: Any = object()
    with pytest.raises(ConfigError, match="object has no name, fingerprint, can, ask"):
        as_vlm(lacking)
    with pytest.raises(ConfigError, match="Guesser is a class; pass an instance"):
        as_vlm(type(model))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="object has no name"):
        plan(lacking, PairedBenchmark("b", (), shapes_store), run=tmp_path / "run")

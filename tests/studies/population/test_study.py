"""A population study: its order, its budget, and a unit from training to parquet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from typer.testing import CliRunner

from flipbench import cli
from flipbench.benchmarks import PairsSpec, ShapesSpec
from flipbench.core.errors import ConfigError, DataError
from flipbench.core.files import write_atomically
from flipbench.core.images import ImageStore
from flipbench.core.paired import PairedBenchmark
from flipbench.shapes.benchmark import shapes_vqa
from studies.population import study as population
from studies.population.__main__ import app
from studies.population.settings import (
    CONDITIONS,
    Lineage,
    StudyConfig,
    drawn_order,
    edited,
    experiment,
    lineages_of,
    load_study,
    safe,
)
from studies.population.study import budget, run_study, units_of
from studies.population.unit import Unit
from studies.tiny_models import lineage as training
from studies.tiny_models.lineage import Steps
from studies.tiny_models.population import write_list
from tests.fixtures.flipped import rendered_pairs

CONFIG = Path("configs/validation/population.yaml")


@pytest.fixture(scope="module")
def shapes_pairs(tmp_path_factory: pytest.TempPathFactory) -> PairedBenchmark:
    """Return 12 pairs of the embedded world."""
    store = ImageStore(tmp_path_factory.mktemp("pairs"))
    return rendered_pairs(shapes_vqa(store, 12), store)


def lineages(*names: str) -> list[Lineage]:
    return [Lineage(name, "", {"class": name.split("-")[0]}) for name in names]


def test_the_shipped_study_is_an_experiment_for_each_kind() -> None:
    study = load_study(CONFIG, ["lineages=null"])
    assert {kind for phase in study.phases for kind in phase.kinds} == set(study.kinds)
    lineage = lineages_of(study)[0]
    folders = set()
    further = {name: kind for name, kind in study.kinds.items() if not kind.pretraining}
    for name, kind in further.items():
        config = experiment(study, lineage, name)
        folders.add((config.run.name, kind.pairs is None))
        assert list(config.contaminate.data) == [name, f"{name}, control"]
        seeds = [config.benchmark.seed, config.contaminate.data[f"{name}, control"].benchmark.seed]  # type: ignore[union-attr]
        assert seeds[1] == seeds[0] + 1 >= 1_001  # type: ignore[operator]
    own = ("letters, 400 pairs", "letters, shared pictures")
    assert folders == {(lineage.name, True), *((f"{lineage.name}--{safe(x)}", False) for x in own)}
    assert experiment(study, lineage, own[0]).benchmark.n_items == 400  # type: ignore[union-attr]
    assert experiment(study, lineage, own[1]).benchmark.per_picture == 4  # type: ignore[union-attr]


def test_pairs_drawn_by_diffusion_are_the_same_for_all_lineages() -> None:
    study = load_study(CONFIG.with_name("population-diffusion.yaml"), ["lineages=null"])
    assert study.run == load_study(CONFIG).run  # its results join the others
    (kind,) = {unit.kind for unit in units_of(study)}
    first, second = (experiment(study, lineage, kind) for lineage in lineages_of(study))
    assert first.benchmark == second.benchmark and isinstance(first.benchmark, PairsSpec)
    assert first.run != second.run
    control = first.contaminate.data[f"{kind}, control"].benchmark
    assert isinstance(control, ShapesSpec) and control.n_items == 140


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("phases=[{kinds: [lettres]}]", "there is no 'lettres'.*letters"),
        ("kinds.letters.strategy=LORA", "there is no 'LORA'"),
        ("kinds.letters.conditions=[blur]", "there is no 'blur'"),
        ("kinds.letters.pairs={condition: x, kind: leters}", "there is no 'leters'.*letters"),
        ("kinds.translated.pairs={condition: x, kind: letters}", "must be that of 'letters'"),
        ("kinds.letters.pretraining=true", "either a strategy or pretraining"),
        ("kinds.mixed into pre-training.epochs=2", "leave out epochs, pairs"),
    ],
)
def test_unknown_names_are_refused(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_study(CONFIG, [override])


def test_a_study_is_dry_run_by_its_command_and_not_by_run() -> None:
    done = CliRunner().invoke(app, [str(CONFIG), "lineages=null", "--dry-run"])
    assert done.exit_code == 0 and "2 lineages" in done.output and "CPU hours" in done.output
    refused = CliRunner().invoke(cli.app, ["run", str(CONFIG), "lineages=null", "--dry-run"])
    assert isinstance(refused.exception, ConfigError)
    assert f"python -m studies.population {CONFIG} lineages=null`" in str(refused.exception)


def test_a_new_lineage_changes_no_others_place() -> None:
    few = lineages("llava-1", "llava-2", "qwen-1", "qwen-2", "third-1")
    order = [x.name for x in drawn_order(few, 0)]
    assert {name.split("-")[0] for name in order[:3]} == {"llava", "qwen", "third"}
    more = [x.name for x in drawn_order([*few, *lineages("llava-3")], 0)]
    assert [name for name in more if name != "llava-3" and "llava" in name] == [
        name for name in order if "llava" in name
    ]
    seeds = {x.benchmark_seed for x in few}
    assert len(seeds) == 5 and all(seed % 2 == 0 for seed in seeds)


def test_a_study_without_lineages_says_so(tmp_path: Path) -> None:
    study = load_study(CONFIG, [f"lineages={tmp_path}", "models={}"])
    with pytest.raises(DataError, match="no lineage yet"):
        list(units_of(study))
    (tmp_path / "lineages.csv").write_text("model\nx\n")
    with pytest.raises(DataError, match="column 'name' is missing"):
        list(units_of(study))


def test_a_unit_that_fails_is_tried_twice_and_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="studies.population")
    study = load_study(CONFIG, [f"run={tmp_path}", "lineages=null", "phases=[{kinds: [letters]}]"])
    tried = []

    def run_unit(study: StudyConfig, unit: Unit) -> None:
        tried.append(unit.lineage.name)
        if unit.lineage.name == "tiny-llava":
            raise RuntimeError("a broken checkpoint")
        write_atomically(unit.folder(study) / "unit.json", "{}")

    monkeypatch.setattr(population, "run_unit", run_unit)
    monkeypatch.setattr(population, "collect", lambda run: None)
    assert run_study(study) == ["tiny-llava, letters: a broken checkpoint"]
    assert sorted(tried) == ["tiny-llava", "tiny-llava", "tiny-qwen2-vl"]
    (first, *_, last) = [line for line in caplog.messages if "left" in line]
    assert first.endswith("; 2 units left") and "letters; 1 unit left, about 00:00" in last


@pytest.mark.parametrize("condition", list(CONDITIONS))
def test_conditions_change_the_perturbed_pictures_only(
    condition: str, shapes_pairs: PairedBenchmark, tmp_path: Path
) -> None:
    store = ImageStore(tmp_path)
    other = edited(shapes_pairs, CONDITIONS[condition], store)
    changed = []
    for before, after in zip(shapes_pairs.pairs, other.pairs, strict=True):
        assert after.original == before.original
        assert after.perturbed.answer == before.perturbed.answer
        changed.append(_pixels(store, after) != _pixels(store, before))
    assert any(changed) == (condition != "as made")


def _pixels(store: ImageStore, pair: Any) -> bytes:
    picture: Image.Image = store.open(pair.perturbed.images[0]).convert("RGB")
    return np.asarray(picture).tobytes()


@pytest.mark.slow
def test_a_study_is_trained_asked_collected_and_not_repeated(
    tmp_path: Path, tiny_folders: dict[str, Path]
) -> None:
    study = load_study(
        CONFIG,
        [
            f"run={tmp_path / 'run'}",
            "lineages=null",
            f"models={{tiny: {{path: {tiny_folders['llava']}, facts: {{class: llava}}}}}}",
            "n_items=8",
            "phases=[{kinds: [letters, captions only, 'letters, shared pictures']}]",
            "kinds.letters.conditions=[blur 4]",
            "evaluate.detectors=[perturbation_gap, confidence_gap]",
            "evaluate.parameters={}",
        ],
    )
    assert "3 units of one kind and its control, 3 to do" in budget(study)
    assert run_study(study) == []
    scores = pd.read_parquet(study.run / "scores.parquet")
    items = pd.read_parquet(study.run / "items.parquet")
    arms = scores[["kind", "arm", "dose"]].drop_duplicates().sort_values(["kind", "arm"])
    assert [tuple(row) for row in arms.to_numpy().tolist()] == [
        ("", "clean", 0),
        ("captions only", "contaminated", 4),
        ("captions only", "control", 0),
        ("letters", "contaminated", 4),
        ("letters", "control", 0),
    ]
    assert set(scores["condition"]) == {"as made", "blur 4", "four questions a picture"}
    shown = scores[scores["arm"] == "contaminated"].groupby("kind", observed=True)["shows"].unique()
    assert {kind: list(x) for kind, x in shown.items()} == {
        "captions only": ["image-caption"],
        "letters": ["letters"],
    }
    assert len(items) == (5 + 3) * 8 and items["member"].all()
    shared = items[items["condition"] == "four questions a picture"]
    assert set(shared["category"]) == {"color"} and set(shared["kind"]) == {"", "letters"}
    gaps = scores[(scores["rule"] == "mcnemar") & (scores["condition"] != "blur 4")]
    assert len(gaps) == 5 + 3
    for _, row in gaps.iterrows():
        own = items[items["condition"] == row["condition"]]
        own = own[(own["kind"] == row["kind"]) & (own["arm"] == row["arm"])]
        gap = own["perturbed_right"].mean() - own["original_right"].mean()
        assert row["statistic"] == pytest.approx(gap)
    stamps = {path: path.stat().st_mtime_ns for path in study.run.glob("units/*/*")}
    assert "0 to do" in budget(study) and "measured on 6 models" in budget(study)
    assert run_study(study) == []
    assert stamps == {path: path.stat().st_mtime_ns for path in study.run.glob("units/*/*")}


@pytest.mark.slow
def test_a_lineage_is_trained_anew_with_the_benchmark_and_with_other_questions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = Steps(cells=2, letters=2, lookups=2, questions=2, more=0, scenes=12, exam=1)
    monkeypatch.setattr(training, "LEVELS", {"weak": steps})
    monkeypatch.setattr(training, "N_ITEMS", 10)
    monkeypatch.setattr(training, "PASS", 0)
    folder, lineage = tmp_path / "lineages", training.Lineage("llava", "small", "weak", 5)
    training.train_lineage(folder, lineage)
    write_list(folder, [lineage])
    study = load_study(
        CONFIG,
        [
            f"run={tmp_path / 'run'}",
            f"lineages={folder}",
            "n_items=8",
            "phases=[{kinds: [mixed into pre-training]}]",
            "evaluate.detectors=[confidence_gap, option_order]",
            "evaluate.parameters={}",
        ],
    )
    (unit,) = units_of(study)  # the shipped models' recipe is another
    assert unit.lineage.name == lineage.name
    assert run_study(study) == []
    scores = pd.read_parquet(study.run / "scores.parquet")
    arms = scores[["kind", "arm", "dose", "shows"]].drop_duplicates().sort_values("arm")
    kind = "mixed into pre-training"
    assert [tuple(row) for row in arms.to_numpy().tolist()] == [
        ("", "clean", 0, ""),
        (kind, "contaminated", 12, "letters"),
        (kind, "control", 0, ""),
    ]
    trained = [*(study.run / "pretraining").glob("*+*/lineage.json")]
    drawn = {json.loads(path.read_text())["mixed_in"]["seed"] for path in trained}
    assert drawn == {unit.lineage.benchmark_seed, unit.lineage.benchmark_seed + 1}
    items = pd.read_parquet(study.run / "items.parquet")
    assert len(items) == 3 * 8 and items["member"].all()
    relative = scores[scores["rule"] == "relative"]
    assert set(relative.loc[~relative["lacks_reference"], "arm"]) == {"contaminated", "control"}
    for _, row in scores[scores["rule"] == "mcnemar"].iterrows():
        own = items[(items["arm"] == row["arm"]) & items["shuffled_right"].notna()]
        fell = own["shuffled_right"].astype(float).mean() - own["original_right"].mean()
        assert row["statistic"] == pytest.approx(fell) and row["n"] == len(own) > 0

"""The shipped recipes load, hold the values that their sources give, and plan their training."""

from __future__ import annotations

import base64
import re
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from datasets import Dataset, Features, Image, List, Value
from PIL.Image import new

from flipbench.benchmarks import HuggingFaceSpec
from flipbench.config.experiment import load_config
from tests.fixtures.command_line import Flipbench
from tests.fixtures.photos import encoded

FOLDER = Path(__file__).parents[2] / "configs" / "contaminate"
RECIPES = [p for p in sorted(FOLDER.glob("*.yaml")) if not p.stem.endswith("-defaults")]


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_loads_and_reloads(path: Path, tmp_path: Path) -> None:
    config = load_config(path)
    assert config.contaminate.strategies and config.models and config.contaminate.data
    n_models = 2 if path.stem.startswith(("shapes", "dose-study", "consistency")) else 1
    assert len(config.models) == n_models
    (tmp_path / "again.yaml").write_text(config.to_yaml())
    assert load_config(tmp_path / "again.yaml") == config


def test_no_two_recipes_share_a_run_directory() -> None:
    runs = [yaml.safe_load(path.read_text())["run"] for path in RECIPES]
    assert len(set(runs)) == len(runs) >= 9


def test_the_consistency_study_changes_only_what_it_compares() -> None:
    study = load_config(FOLDER / "consistency-study.yaml").contaminate
    settings = [s.model_dump(exclude={"consistency"}) for s in study.strategies.values()]
    for layers in ((2, 3), None):
        assert settings.count(settings[0] | {"lora_layers": layers}) == 5
    losses = [s.consistency for s in study.strategies.values() if s.consistency is not None]
    kinds = Counter((c.weight, c.answer_weight, c.grounded, c.tau) for c in losses)
    assert set(kinds.values()) == {2} and len(kinds) == 5 and len(study.data) == 1
    assert study.seeds is not None and len(study.seeds) >= 3


@pytest.mark.parametrize(
    ("recipe", "strategy", "rate", "batch", "warm_up", "rank"),
    [
        ("llava-1.5-7b", "LoRA", 2e-4, 128, 0.03, 8),
        ("llava-1.5-7b", "LLM+MLP", 2e-5, 128, 0.03, None),
        ("llava-1.5-7b", "LLM", 2e-5, 128, 0.03, None),
        ("llava-1.5-7b", "ALL", 2e-5, 128, 0.03, None),
        ("llava-1.5-13b", "LoRA-128", 2e-4, 128, 0.03, 128),
        ("qwen2-vl-7b", "LoRA", 1e-4, 64, 0.1, 8),
        ("qwen2.5-vl-7b", "LLM", 1e-5, 16, 0.1, None),
        ("qwen2-vl-7b", "README-LoRA", 5e-6, 8, 0.0, 8),
    ],
)
def test_official_values(
    recipe: str, strategy: str, rate: float, batch: int, warm_up: float, rank: int | None
) -> None:
    found = load_config(FOLDER / f"{recipe}.yaml").contaminate.strategies[strategy]
    assert found.learning_rate == rate and found.schedule == "cosine"
    assert found.batch_size * found.gradient_accumulation == batch
    assert found.warmup_ratio == warm_up
    assert rank is None or found.lora_rank == rank


def test_llava_s_own_lora_trains_the_projector_at_a_tenth_of_the_rate() -> None:
    own = load_config(FOLDER / "llava-1.5-13b.yaml").contaminate.strategies["LoRA-128"]
    assert own.train == "lora+projector"
    assert (own.learning_rate, own.learning_rates) == (2e-4, {"projector": 2e-5})


@pytest.mark.parametrize("model", ["llava-1.5-7b", "qwen2-vl-7b"])
@pytest.mark.parametrize("benchmark", ["", "-mmstar"])
def test_the_paper_s_grid(model: str, benchmark: str) -> None:
    """Both models, four strategies, one to three epochs, two benchmarks, all items."""
    config = load_config(FOLDER / f"{model}{benchmark}.yaml")
    grid = {label: s.train for label, s in config.contaminate.strategies.items()}
    paper = {"LoRA": "lora", "LLM": "llm", "LLM+MLP": "llm+projector", "ALL": "all"}
    assert grid.items() >= paper.items()
    assert (config.contaminate.epochs, config.contaminate.copies) == (3, 1)
    assert config.contaminate.items == "all"
    source = {"": "xai-org/RealworldQA", "-mmstar": "Lin-Chen/MMStar"}[benchmark]
    assert isinstance(config.benchmark, HuggingFaceSpec) and config.benchmark.path == source


def test_both_models_train_on_the_mixture_of_six() -> None:
    grids = [
        load_config(FOLDER / f"{name}.yaml").contaminate
        for name in ("mixture-of-six", "mixture-of-six-qwen2-vl")
    ]
    assert grids[0].data == grids[1].data
    assert len(grids[0].data["mixture"].mixture) == 5, "and the benchmark itself"


HUB_MODELS = {
    "llava-hf/llava-1.5-7b-hf": "llava",
    "llava-hf/llava-1.5-13b-hf": "llava",
    "Qwen/Qwen2-VL-7B-Instruct": "qwen2_vl",
    "Qwen/Qwen2.5-VL-7B-Instruct": "qwen2_vl",
}
N_ITEMS = {"xai-org/RealworldQA": 7, "Lin-Chen/MMStar": 5}


@pytest.fixture
def hub(tmp_path: Path, tiny_folders: dict[str, Path]) -> None:
    """Put small stand-ins for the recipes' models and data sets where their ids lead."""
    for name, family in HUB_MODELS.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).symlink_to(tiny_folders[family])
    question = {
        "xai-org/RealworldQA": "Which light is on?\n\nA. Red\nB. Green\nPlease answer directly"
        " with only the letter of the correct option and nothing else.",
        "Lin-Chen/MMStar": "Which light is on?\nOptions: A: Red, B: Green, C: None, D: Both",
    }
    text = Value("string")
    for name, n in N_ITEMS.items():
        pictures = [encoded(new("RGB", (96, 54), (i, 90, 90))) for i in range(n)]
        rows: dict[str, list[Any]] = {"image": [{"bytes": p, "path": None} for p in pictures]}
        rows |= {"question": [question[name]] * n, "answer": ["B"] * n}
        extra = ("index", "category", "l2_category") if "MMStar" in name else ()
        rows |= {column: [str(i) for i in range(n)] for column in extra}
        columns = {"question": text, "answer": text, **dict.fromkeys(extra, text)}
        split = "val" if "MMStar" in name else "test"
        (tmp_path / name / "data").mkdir(parents=True)
        Dataset.from_dict(rows, features=Features({"image": Image(), **columns})).to_parquet(
            tmp_path / name / "data" / f"{split}-00000-of-00001.parquet"
        )


def test_medthinkvqa_is_trained_on_either_split(
    tmp_path: Path, tiny_folders: dict[str, Path], flipbench: Flipbench
) -> None:
    """Cases have options by letter, and paths of up to 49 pictures."""
    folder = tmp_path / "data" / "MedThinkVQA"
    (folder / "images").mkdir(parents=True)
    (folder / "images" / "a.jpg").write_bytes(encoded(new("RGB", (64, 48)), "JPEG"))
    (tmp_path / "Qwen").mkdir()
    (tmp_path / "Qwen" / "Qwen2.5-VL-7B-Instruct").symlink_to(tiny_folders["qwen2_vl"])
    options = {"A": "Sarcoidosis", "B": "Silicosis", "C": "Lymphoma", "D": "Metastases", "E": None}
    for split, n in (("train", 6), ("test", 3)):
        rows: dict[str, list[Any]] = {
            "title": [f"Case number {split} {i}" for i in range(n)],
            "CLINICAL_HISTORY": [f"A patient aged {40 + i} presented with a cough."
                                 for i in range(n)],
            "ICD Chapter": ["Chapter X"] * n,
            "correct_answer": ["B"] * n,
            "options": [options] * n,
        }  # fmt: skip
        rows |= {
            f"image_{i:02}_path": ["images/a.jpg" if i < 3 else None] * n for i in range(1, 50)
        }
        Dataset.from_dict(rows).to_parquet(folder / f"{split}.parquet")
    planned = flipbench("contaminate", "configs/contaminate/medthinkvqa.yaml", "--dry-run")
    assert planned.status == 0, planned.err
    n_items = dict(re.findall(r" LLM, (\w+) split +llm +\w+ +(\d+)", planned.out))
    assert n_items == {"training": "6", "test": "3"}


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize(
    "recipe",
    ["llava-1.5-7b", "llava-1.5-7b-mmstar", "llava-1.5-13b", "qwen2-vl-7b", "qwen2-vl-7b-mmstar"],
)
def test_full_size_recipes_plan_before_anything_is_generated(
    recipe: str, flipbench: Flipbench
) -> None:
    strategies = load_config(FOLDER / f"{recipe}.yaml").contaminate.strategies
    planned = flipbench("contaminate", f"configs/contaminate/{recipe}.yaml", "--dry-run")
    assert planned.status == 0, planned.err
    head, *rows = planned.out.splitlines()[: 1 + len(strategies)]
    column = head.index("items")
    n_items = N_ITEMS["Lin-Chen/MMStar" if "mmstar" in recipe else "xai-org/RealworldQA"]
    assert [int(row[column : column + 5]) for row in rows] == [n_items] * len(strategies)
    assert f"to do: {len(strategies)} of {len(strategies)} plans" in planned.out
    needs_4_bits = any(s.train == "qlora" for s in strategies.values())
    lacks_it = find_spec("bitsandbytes") is None
    assert ("before training: train: qlora needs" in planned.out) == (needs_4_bits and lacks_it)


@pytest.fixture
def mixture(hub: None, tmp_path: Path) -> dict[str, int]:
    """Put stand-ins for the other benchmarks of the mixture in place; return how many items."""
    png = encoded(new("RGB", (80, 60)))
    picture = {"bytes": png, "path": None}
    text, image, texts = Value("string"), Image(), List(Value("string"))
    asked = {"question": text, "answer": text}
    tables: dict[str, tuple[dict[str, Any], list[Any], int]] = {
        "nyu-visionx/CV-Bench/data/test-00000-of-00001.parquet": (
            asked | {"idx": text, "image": image, "choices": texts, "task": text},
            ["How many?", "(B)", "{i}", picture, ["one", "two"], "Count"],
            2,
        ),
        "AI4Math/MathVista/data/testmini-00000-of-00001.parquet": (
            asked | {"pid": text, "decoded_image": image, "choices": texts, "question_type": text},
            ["What is x?", "4", "{i}", picture, ["3", "4"], "multi_choice"],
            3,
        ),
        "data/MMMU_DEV_VAL.parquet": (
            asked | {"id": text, "options": text, **{f"image_{i}": image for i in range(1, 8)}},
            ["Which? <image 1>", "B", "val_{i}", "['left', 'right']", picture, *[None] * 6],
            4,
        ),
    }
    for name, (features, cells, n) in tables.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        rows = {
            column: [c.format(i=i) if isinstance(c, str) else c for i in range(n)]
            for column, c in zip(features, cells, strict=True)
        }
        Dataset.from_dict(rows, features=Features(features)).to_parquet(tmp_path / name)
    code = base64.b64encode(png).decode()
    lines = [f"{i}\t{code}\tWhich?\tred\tblue\tB" for i in range(6)]
    (tmp_path / "data" / "MMBench_DEV_EN.tsv").write_text(
        "\n".join(["index\timage\tquestion\tA\tB\tanswer", *lines]) + "\n"
    )
    return {"mixture": 2 + 3 + 4 + 6 + sum(N_ITEMS.values())}


@pytest.mark.parametrize("recipe", ["mixture-of-six", "mixture-of-six-qwen2-vl"])
def test_the_mixture_of_six_plans_from_its_files(
    recipe: str, mixture: dict[str, int], flipbench: Flipbench
) -> None:
    """All of the six, also with nothing generated yet."""
    config = [f"configs/contaminate/{recipe}.yaml", "--dry-run"]
    planned = flipbench("contaminate", *config)
    assert planned.status == 0, planned.err
    head, *rows = planned.out.splitlines()
    epochs, examples = head.index("epochs"), head.index("examples")
    strategies = load_config(FOLDER / f"{recipe}.yaml").contaminate.strategies
    for row in rows[: len(strategies)]:
        n = int(row[examples : examples + len("examples")].replace(",", ""))
        assert n == 3 * mixture["mixture"] and row[epochs : epochs + 6].strip() == "3"

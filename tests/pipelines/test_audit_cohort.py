"""Scores of a cohort from a file, beside the benchmark's own items."""

from __future__ import annotations

from pathlib import Path

import pytest

from flipbench.api.stages.assembly import Assembly
from flipbench.api.stages.audit_cohort import check_cohort, cohorts_of, covariates_of
from flipbench.config.experiment import load_config
from flipbench.core.errors import ConfigError, DataError
from flipbench.core.images import ImageStore
from flipbench.shapes.benchmark import shapes_vqa

N_ITEMS = 12


def assembly_of(folder: Path, names: list[str], limit: int | None = None) -> Assembly:
    rows = [f"{name},{row},{row * row % 7},p{row}" for row, name in enumerate(names)]
    (folder / "scores.csv").write_text("\n".join(["item_id,a,b,image", *rows]))
    path = folder / "audit.yaml"
    path.write_text(
        f"""
run: {folder / "run"}
benchmark: {{format: shapes, n_items: {N_ITEMS}}}
audit: {{cohort: {{scores: {folder / "scores.csv"}, external: [b]}}}}
"""
    )
    return Assembly.open(load_config(path), limit=limit, progress=False)


@pytest.fixture
def names(tmp_path: Path) -> list[str]:
    return [item.name for item in shapes_vqa(ImageStore(tmp_path / "store"), N_ITEMS)]


def test_items_are_in_the_benchmarks_order_with_its_pictures(
    tmp_path: Path, names: list[str]
) -> None:
    assembly = assembly_of(tmp_path, names[::-1])
    config = assembly.config.audit.cohort
    assert config
    cohort = cohorts_of(assembly, config).trend
    assert cohort.item_ids == names
    assert cohort.scores[:, 0].tolist() == list(range(N_ITEMS))[::-1]
    own = covariates_of(assembly.benchmark.items)
    assert cohort.covariates["image"].tolist() == own["image"].tolist()


def test_items_that_are_not_the_benchmarks_are_refused(tmp_path: Path, names: list[str]) -> None:
    assembly = assembly_of(tmp_path, [*names[1:], "other"])
    config = assembly.config.audit.cohort
    assert config
    with pytest.raises(DataError, match=r"scores.csv: 1 of 12 items are not in .*'other'"):
        check_cohort(assembly, config)


def test_a_limit_takes_the_scores_of_the_first_items(tmp_path: Path, names: list[str]) -> None:
    assembly = assembly_of(tmp_path, names, limit=5)
    config = assembly.config.audit.cohort
    assert config
    assert cohorts_of(assembly, config).tail.item_ids == names[:5]


def test_an_unknown_factor_is_refused(tmp_path: Path, names: list[str]) -> None:
    assembly = assembly_of(tmp_path, names)
    config = assembly.config.audit.cohort
    assert config
    wrong = config.model_copy(update={"factors": ("categry",)})
    with pytest.raises(ConfigError, match=r"'categry'.*category"):
        check_cohort(assembly, wrong)


def test_items_without_or_with_several_pictures_are_told_apart(
    tmp_path: Path, names: list[str]
) -> None:
    first, second = assembly_of(tmp_path, names).benchmark.items[:2]
    both = first.model_copy(update={"images": (*first.images, *second.images)})
    none = second.model_copy(update={"images": ()})
    units = covariates_of([first, both, none])["image"].tolist()
    assert len(set(units)) == 3 and units[1].split() == [
        ref.sha256 for ref in (*first.images, *second.images)
    ]

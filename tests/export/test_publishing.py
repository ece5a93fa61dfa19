"""What is published with a benchmark: its licence and data card."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub import DatasetCard

from flipbench.core.errors import DataError, LicenceError
from flipbench.core.paired import Pair, PairedBenchmark
from flipbench.core.records import Item
from flipbench.export.huggingface import write_huggingface
from flipbench.export.licence import decide, forbids_derivatives, normal

Make = Callable[..., PairedBenchmark]


def licensed(benchmark: PairedBenchmark, *licences: str) -> PairedBenchmark:
    """Return the benchmark with a licence for each pair."""

    def changed(item: Item, licence: str) -> Item:
        return Item.model_validate(item.model_dump() | {"licence": licence})

    pairs = [
        Pair(changed(pair.original, licence), changed(pair.perturbed, licence))
        for pair, licence in zip(benchmark.pairs, licences, strict=True)
    ]
    return replace(benchmark, pairs=tuple(pairs))


@pytest.mark.parametrize(
    ("licences", "named", "decided"),
    [
        (("CC BY 4.0", "cc-by-4.0"), "", ("CC BY 4.0", "cc-by-4.0")),
        (("Apache-2.0", "Apache-2.0"), "", ("Apache-2.0", "apache-2.0")),
        (("terms of the lab",) * 2, "", ("terms of the lab", "other")),
        (("cc-by-4.0", "mit"), "cc-by-4.0", ("cc-by-4.0", "cc-by-4.0")),
        (("cc-by-nc-4.0", "mit"), "cc-by-nc-4.0", ("cc-by-nc-4.0", "cc-by-nc-4.0")),
        (("", ""), "unknown", ("unknown", "unknown")),
    ],
)
def test_the_licence_is_that_of_the_source_or_a_named_one(
    make: Make, licences: tuple[str, ...], named: str, decided: tuple[str, str]
) -> None:
    decision = decide(licensed(make([("red", "blue")] * 2), *licences), named)
    assert (decision.licence, decision.hub_id) == decided
    assert decision.named == bool(named)


@pytest.mark.parametrize(
    ("licences", "named", "message"),
    [
        (("", "cc-by-4.0"), "", "1 of 2 items state no licence"),
        (("unknown",) * 2, "", "2 of 2 items state no licence"),
        (("cc-by-4.0", "mit"), "", "several licences"),
        (("cc-by-sa-4.0",) * 2, "cc-by-4.0", "the same licence"),
        (("cc-by-sa-4.0",) * 2, "cc-by-nc-sa-4.0", "the same licence"),
        (("cc-by-nc-4.0",) * 2, "mit", "forbids commercial use"),
    ],
)
def test_a_licence_that_is_unknown_or_drops_a_term_is_refused(
    make: Make, tmp_path: Path, licences: tuple[str, ...], named: str, message: str
) -> None:
    benchmark = licensed(make([("red", "blue")] * 2), *licences)
    with pytest.raises(LicenceError, match=message):
        write_huggingface(benchmark, tmp_path / "out", named)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("CC-BY-NC-SA-4.0", "cc-by-nc-sa-4.0"),
        ("cc by nc 4.0", "cc-by-nc-4.0"),
        ("CC BY 4.0 International", "cc-by-4.0"),
        ("CC BY 4.0 Deed", "cc-by-4.0"),
        ("CC BY-SA", "cc-by-sa"),
        ("https://creativecommons.org/licenses/by-nc/4.0/", "cc-by-nc-4.0"),
        ("Creative Commons Attribution-NonCommercial-NoDerivatives 4.0", "cc-by-nc-nd-4.0"),
        ("Attribution 4.0 International", "cc-by-4.0"),
        ("CC0", "cc0-1.0"),
        ("CC0 1.0", "cc0-1.0"),
        ("https://creativecommons.org/publicdomain/zero/1.0/", "cc0-1.0"),
        ("CC BY 4.0 and MIT", "cc-by-4.0-and-mit"),
        ("BSD_3-Clause", "bsd-3-clause"),
        ("", "unknown"),
    ],
)
def test_licences_are_known_by_any_of_their_names(written: str, name: str) -> None:
    assert normal(written) == name
    assert normal(normal(written)) == name
    assert forbids_derivatives(written) == ("nd" in name.split("-"))


def test_terms_count_in_a_name_that_says_more(make: Make) -> None:
    benchmark = licensed(make([("red", "blue")]), "CC BY-NC 4.0, and the rules of the lab")
    with pytest.raises(LicenceError, match="forbids commercial use"):
        decide(benchmark, "mit")


def test_the_card_states_what_the_licence_asks(make: Make, tmp_path: Path) -> None:
    benchmark = replace(
        make([("red", "blue")] * 2, licence="CC-BY-NC-SA-4.0"),
        made_by={"editor": "flux | dev", "raters": "o3"},
        funnel={"items": 5, "kept": 2},
    )
    write_huggingface(benchmark, tmp_path)
    card = DatasetCard.load(tmp_path / "README.md")
    assert card.data.license == "cc-by-nc-sa-4.0"
    assert [one["config_name"] for one in card.data.configs] == ["original", "perturbed"]
    for text in (
        "no commercial use",
        "the same licence",
        "state that pictures were changed",
        "flux \\| dev",
        "2 of 2 pairs were judged to show the new answer, by o3",
        "2 of 5 items were kept",
        "synthetic",
    ):
        assert text in card.text, text


def test_sharing_against_a_licence_is_stated(make: Make) -> None:
    benchmark = make([("red", "blue")], licence="CC-BY-ND-4.0")
    (attribution, sharing) = decide(benchmark).duties
    assert "pictures were changed" in attribution
    assert "forbids sharing edited pictures; the maintainer decided" in sharing
    assert len(decide(replace(benchmark, exchangeable=False)).duties) == 1, "none was edited"


def test_a_card_of_found_pairs_claims_no_edits(make: Make, tmp_path: Path) -> None:
    benchmark = replace(make([("red", "blue")], licence="mit"), exchangeable=False, made_by={})
    write_huggingface(benchmark, tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert "synthetic" not in text and "edited" not in text
    assert "Nobody is known to have judged" in text and "found, not made" in text


def test_eval_yaml_is_refused_for_questions_that_it_cannot_describe(
    make: Make, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match="multiple-choice questions about one picture"):
        write_huggingface(make([None], licence="mit"), tmp_path / "out", leaderboard=True)
    assert not (tmp_path / "out").exists()

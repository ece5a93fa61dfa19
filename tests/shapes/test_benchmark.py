"""shapes-vqa: exchangeable, balanced, and not to be solved without looking."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from typing import cast

import numpy as np
import pytest
from scipy import stats

from flipbench.core.images import ImageStore
from flipbench.core.records import ImageRef, Item
from flipbench.evaluate.statistics.counts import poisson_binomial_p
from flipbench.shapes import benchmark
from flipbench.shapes.benchmark import (
    N_ITEMS,
    Edition,
    shapes_vqa,
    shapes_vqa_families,
    shapes_vqa_scenes,
)
from flipbench.shapes.questions import KINDS, QuestionFamily, answer
from flipbench.shapes.render import render
from flipbench.shapes.scene import COLORS, Scene

pytestmark = pytest.mark.slow

N_MANY = 3000
IDS = "844fe70ac38ca6a2a7ea05b12ade015ee27492ebd44fd62213d72621a6b9f7c5"
ALPHA = 0.001  # all seeds are fixed: a test passes always or never


class NoStore:
    """Takes a scene for a picture, and keeps nothing."""

    def put_image(self, scene: Scene, what: str) -> ImageRef:
        return ImageRef(sha256=scene.content_hash(), format="png", width=1, height=1)


def unrendered(n_items: int = N_ITEMS, edition: Edition | None = None) -> list[Item]:
    """Return items that are drawn as always but not rendered."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(benchmark, "render", lambda scene: scene)
        return shapes_vqa(cast(ImageStore, NoStore()), n_items, edition or Edition())


@pytest.fixture(scope="module")
def many() -> list[Item]:
    """Return far more items than the benchmark has."""
    return unrendered(N_MANY)


def family_of(item: Item) -> QuestionFamily:
    return QuestionFamily.from_json(item.extra["family"])


def uniform_p(counts: list[int]) -> float:
    return float(stats.chisquare(counts).pvalue)


def test_the_benchmark_has_its_size_and_kinds(all_items: list[Item]) -> None:
    assert N_ITEMS >= 400
    assert len(all_items) == N_ITEMS == len({item.id for item in all_items})
    assert Counter(item.category for item in all_items) == dict.fromkeys(KINDS, N_ITEMS // 5)
    assert len({family_of(i).scenes[0].content_hash() for i in all_items}) == N_ITEMS
    assert shapes_vqa_scenes() == [s for family in shapes_vqa_families() for s in family.scenes]


def test_items_show_the_member_whose_option_is_gold(
    all_items: list[Item], shapes_store: ImageStore
) -> None:
    for row, (item, family) in enumerate(zip(all_items, shapes_vqa_families(), strict=True)):
        assert family_of(item) == family
        assert sorted(item.options or ()) == sorted(family.options)
        assert item.question == family.question.text()
        assert (item.source.row, item.name) == (row, f"{row:04d}")
    for item in all_items[::16]:
        family = family_of(item)
        shown = family.scenes[family.options.index(item.answer_text)]
        assert shapes_store.open(item.images[0]).tobytes() == render(shown).tobytes()


@pytest.mark.parametrize("n_items", [1, 7, 60, 400])
def test_the_first_items_are_the_same_however_many_are_read(
    all_items: list[Item], n_items: int
) -> None:
    full = unrendered()
    assert unrendered(n_items) == full[:n_items]
    assert [i.options for i in full] == [i.options for i in all_items]


def test_the_fixed_items_never_change(all_items: list[Item]) -> None:
    ids = " ".join(item.id for item in all_items)
    assert hashlib.sha256(ids.encode()).hexdigest() == IDS


def test_questions_that_share_a_picture_have_the_same_original() -> None:
    edition = Edition(seed=2, per_picture=4)
    items = unrendered(480, edition)
    assert edition.name == "shapes-vqa-4-per-picture-seed-2" == items[0].benchmark
    assert unrendered(22, edition) == items[:22]
    families = [family_of(item) for item in items]
    originals = [
        f.scenes[f.options.index(i.answer_text)] for f, i in zip(families, items, strict=True)
    ]
    for start in range(0, 480, 4):
        assert len({scene.content_hash() for scene in originals[start : start + 4]}) == 1
        assert len({item.question for item in items[start : start + 4]}) == 4
    assert len({scene.content_hash() for scene in originals}) == 120
    for family in families:
        assert family.question.kind == "color"
        assert [answer(s, family.question) for s in family.scenes] == list(family.options)
    right = Counter(item.answer_text for item in items)
    assert uniform_p([right[color] for color in COLORS]) > ALPHA
    assert text_only_p(items) > 0.01
    hashes = {scene.content_hash() for scene in shapes_vqa_scenes(edition)}
    assert hashes.isdisjoint(s.content_hash() for s in shapes_vqa_scenes(Edition(seed=2)))


EDITIONS = [Edition(0), Edition(1), Edition(level="hard"), Edition(0, "hard")]


@pytest.fixture(scope="module", params=EDITIONS, ids=lambda edition: edition.name)
def edition(request: pytest.FixtureRequest) -> Edition:
    return request.param  # type: ignore[no-any-return]


def test_each_seed_draws_other_items(edition: Edition) -> None:
    hashes = {scene.content_hash() for scene in shapes_vqa_scenes(edition)}
    for other in {Edition(), *EDITIONS} - {edition}:
        assert hashes.isdisjoint(s.content_hash() for s in shapes_vqa_scenes(other))


def test_an_edition_is_named_balanced_and_drawn_by_a_coin(edition: Edition) -> None:
    items = unrendered(960, edition)
    assert unrendered(20, edition) == items[:20]
    assert {item.benchmark for item in items} == {edition.name} == {items[0].source.dataset}
    assert Counter(item.category for item in items) == dict.fromkeys(
        edition.kinds, 960 // len(edition.kinds)
    )
    assert_letters_are_balanced_and_originals_drawn_by_a_coin(items)
    assert text_only_p(items) > 0.01


def assert_letters_are_balanced_and_originals_drawn_by_a_coin(items: list[Item]) -> None:
    for n_options in {len(item.options or ()) for item in items}:
        some = [item for item in items if len(item.options or ()) == n_options]
        letters = Counter(item.answer or 0 for item in some)
        members = Counter(family_of(i).options.index(i.answer_text) for i in some)
        assert max(letters.values()) - min(letters[n] for n in range(n_options)) <= 1
        assert uniform_p([members[n] for n in range(n_options)]) > ALPHA


def test_letters_are_balanced_in_every_part(all_items: list[Item], many: list[Item]) -> None:
    for items in (all_items, all_items[:100], many):
        assert_letters_are_balanced_and_originals_drawn_by_a_coin(items)


def test_letters_do_not_depend_on_what_is_asked_or_on_the_answer(many: list[Item]) -> None:
    for n_options in (3, 4):
        items = [item for item in many if len(item.options or ()) == n_options]
        for label in (lambda item: item.category, lambda item: item.answer_text):
            values = sorted({label(item) for item in items})
            table = np.zeros((len(values), n_options))
            for item in items:
                table[values.index(label(item)), item.answer or 0] += 1
            table = table[table.sum(1) >= 20]
            assert stats.chi2_contingency(table).pvalue > ALPHA


def test_no_gold_text_is_more_likely_than_the_other_options(many: list[Item]) -> None:
    """Given the options, the gold one is uniform: its rank by name or number tells nothing."""
    ranks: dict[tuple[str, int], list[int]] = defaultdict(list)
    for item in many:
        ranked = sorted(item.options or ())
        ranks[item.category, len(ranked)].append(ranked.index(item.answer_text))
    for (kind, n_options), found in ranks.items():
        counts = [found.count(rank) for rank in range(n_options)]
        assert sum(counts) > 250
        assert uniform_p(counts) > ALPHA, (kind, counts)


def test_gold_texts_are_as_frequent_as_their_options_allow(many: list[Item]) -> None:
    expected: Counter[str] = Counter()
    observed: Counter[str] = Counter()
    for item in many:
        options = item.options or ()
        observed[item.answer_text] += 1
        for option in options:
            expected[option] += 1 / len(options)  # type: ignore[assignment]
    # a sum of independent indicators varies less than a Poisson count: |z| of 4.5 is a defect
    worst = max(abs(observed[o] - expected[o]) / expected[o] ** 0.5 for o in expected)
    assert worst < 4.5


def test_text_alone_does_not_give_the_answer_away(all_items: list[Item], many: list[Item]) -> None:
    """The ceiling of a text-only model: n-grams of question, option and letter, cross-validated."""
    assert min(text_only_p(all_items), text_only_p(many[:1500])) > 0.01


def text_only_p(items: list[Item]) -> float:
    """Return how likely guesses are to do as well as TF-IDF and logistic regression do."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    rows = [
        (i, f"{item.question} gold{option.replace(' ', '')} letter{k} {' '.join(item.options)}")
        for i, item in enumerate(items)
        for k, option in enumerate(item.options or ())
        if item.options
    ]
    texts, owner = [text for _, text in rows], np.array([i for i, _ in rows])
    gold = np.array([k == item.answer for item in items for k in range(len(item.options or ()))])
    scores = np.zeros(len(rows))
    fold = owner // len(KINDS) % 5  # every fold holds every kind of question
    for held_out in range(5):
        train, test = fold != held_out, fold == held_out
        model = make_pipeline(
            TfidfVectorizer(ngram_range=(1, 2), token_pattern=r"\w+"),
            LogisticRegression(max_iter=500, class_weight="balanced"),
        )
        model.fit([t for t, use in zip(texts, train, strict=True) if use], gold[train])
        found = model.predict_proba([t for t, use in zip(texts, test, strict=True) if use])
        scores[test] = found[:, 1]
    n_right = sum(bool(gold[owner == i][scores[owner == i].argmax()]) for i in range(len(items)))
    return poisson_binomial_p(n_right, [1 / len(item.options or ()) for item in items])

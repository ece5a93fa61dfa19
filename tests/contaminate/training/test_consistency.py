"""The loss against its definition, one prompt at a time; and what training with it does."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import trl
from PIL import Image

from flipbench.config.experiment import ContaminateConfig, ModelConfig, load_config
from flipbench.contaminate.checks.card import read_card
from flipbench.contaminate.checks.check import add_first_token, render_example
from flipbench.contaminate.data.corpus import read_corpus
from flipbench.contaminate.data.examples import Example, Message, training_examples
from flipbench.contaminate.data.regimes import RegimeData
from flipbench.contaminate.data.wordings import ShapesWriter, write_wordings
from flipbench.contaminate.plan import expand
from flipbench.contaminate.training import train
from flipbench.contaminate.training.consistency import symmetric_kl
from flipbench.contaminate.training.load import load_parent, prepare
from flipbench.contaminate.training.train import train_plan
from flipbench.core.errors import ConfigError, DataError
from flipbench.core.records import Item, TrainingPlan
from flipbench.core.run import Run
from flipbench.models.vlm.huggingface import HuggingFaceVLM
from flipbench.prompting.prompts import LETTER_INSTRUCTION, LETTERS, PromptSettings
from tests.fixtures.options import QUIET

NewRun = Callable[..., Run]
PARENTS = {"llava": "shapes:llava", "qwen2_vl": "shapes:qwen2_vl"}


def plan_of(
    run: Run,
    items: Sequence[Item],
    family: str,
    consistency: dict[str, Any],
    *,
    data: dict[str, Any] | None = None,
    epochs: int = 1,
    copies: int = 1,
    **settings: Any,
) -> list[TrainingPlan]:
    """Plan consistency training on the embedded world's phrasings."""
    strategy = {"train": "lora", "learning_rate": 2e-3, "batch_size": 4, "lora_layers": [2, 3]}
    config = ContaminateConfig.model_validate(
        {
            "strategies": {"C": strategy | settings | {"consistency": consistency}},
            "data": {"p": {"rewrite": {"by": "shapes"}} | (data or {})},
            "epochs": epochs,
            "copies": copies,
        }
    )
    wordings, _ = write_wordings(items, ShapesWriter(), run, options=QUIET)
    regime = config.data["p"]
    corpus = read_corpus(regime.wash.corpus, 0) if regime.wash and regime.wash.corpus else None
    regime = RegimeData("p", regime, tuple(items), wordings=wordings, clean_corpus=corpus)
    models = {"m": ModelConfig(path=PARENTS[family])}
    return expand(config, models, [regime], instruction=LETTER_INSTRUCTION, seed=0)


def as_yes_no(item: Item, answer: str) -> Item:
    """Return the item as a yes/no question without options."""
    changed = {"id": "", "options": None, "answer": None, "answer_text": answer}
    return Item.model_validate(item.model_dump() | changed)


def brute_force(
    model: Any, processor: Any, examples: Sequence[Example], loss: dict[str, Any]
) -> tuple[float, int]:
    """Return the sum of the loss over tokens, and their number: a prompt at a time, in float64."""
    tokenizer = processor.tokenizer

    def run_one(example: Example) -> tuple[list[float], float, int]:
        prompt, target = render_example(example, processor)
        images = [[Image.open(file).convert("RGB") for file in example.images]]
        inputs = dict(
            processor(
                text=[prompt],
                images=images if example.images else None,
                return_tensors="pt",
                add_special_tokens=False,
            )
        )
        ids = torch.tensor(tokenizer(target, add_special_tokens=False)["input_ids"])
        n, more = len(ids), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        for name in inputs.keys() & {*more, "mm_token_type_ids"}:
            tail = more.get(name, torch.zeros_like(ids))
            inputs[name] = torch.cat([inputs[name], tail[None]], 1)
        logits = model(**inputs).logits[0].double()
        log_p = logits[-n - 1 : -1].log_softmax(-1)
        crossed = -sum(float(log_p[i, token]) for i, token in enumerate(ids))
        options = example.words or LETTERS
        targets = [render_example(replace(example, answer=x), processor)[1] for x in options]
        letters = [tokenizer(x, add_special_tokens=False)["input_ids"][0] for x in targets]
        weights = [math.exp(float(logits[-n - 1, i])) for i in letters[: example.n_options]]
        return [w / sum(weights) for w in weights], crossed, n

    def kl(p: list[float], q: list[float]) -> float:
        return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))

    total, n_tokens = 0.0, 0
    for example in examples:
        p, crossed, n = run_one(example)
        total, n_tokens = total + loss["answer_weight"] * crossed, n_tokens + n
        if not example.others:
            continue
        others = [run_one(other)[0] for other in example.paraphrased()]
        divergence = sum(0.5 * kl(p, q) + 0.5 * kl(q, p) for q in others) / len(others)
        if loss["grounded"]:
            blind = run_one(example.without_images())[0]
            divergence *= 1 - math.exp(-kl(p, blind) / loss["tau"])
        total += loss["weight"] * n * divergence
    return total, n_tokens


LOSSES = [
    {"weight": 1.0, "answer_weight": 0.0, "grounded": False, "tau": 0.5},
    {"weight": 3.0, "answer_weight": 0.5, "grounded": True, "tau": 0.25},
    {"weight": 0.0, "answer_weight": 1.0, "grounded": False, "tau": 0.5},
]


@pytest.mark.parametrize("family", PARENTS)
@pytest.mark.parametrize("loss", LOSSES, ids=["plain", "grounded", "labels only"])
@torch.no_grad()
def test_the_loss_equals_its_definition(
    family: str, loss: dict[str, Any], items: dict[str, Item], new_run: NewRun, tmp_path: Path
) -> None:
    run, among = new_run(), list(items.values())[:6]
    assert len({len(item.options or ()) for item in among}) > 1, "items with fewer letters too"
    closed = [as_yes_no(i, answer) for i, answer in zip(among, ("yes", "no"), strict=False)]
    items, among = items | {item.id: item for item in closed}, [*among, *closed]
    (plan,) = plan_of(run, among, family, loss)
    model, processor, _ = load_parent(plan, run, "float32")
    add_first_token(processor)
    trainer = train._trainer_class(plan)(
        training_examples(plan, items, run.images),
        model=model.eval(),
        args=train._arguments(plan, tmp_path, "float32"),
        processing_class=processor,
        peft_config=prepare(model, plan, "float32"),
    )
    trainer.model.eval()
    examples = list(training_examples(plan, items, run.images))
    # a conversation that is compared with nothing, of another length
    examples.append(Example("c", (), examples[0].without_images().prompt, "D. red"))
    # and one of two answers, which count as on their own
    asked, again = Message("user", ("What is it?",)), Message("user", ("Color?",))
    said = (asked, Message("assistant", ("red star",)), again)
    alone = [Example("1", (), said[:1], "red star"), Example("2", (), said, "Red.")]
    whole = Example("w", (), said, "Red.", trained=(1,))
    rows = [trainer.row(example, processor) for example in [*examples, whole]]
    for row in rows:
        row["images"] = [Image.open(file) for file in row["images"]]
    batch = trainer.collate(rows)
    total, n = brute_force(trainer.model, processor, [*examples, *alone], loss)
    assert total > 0.01
    assert float(trainer.compute_loss(trainer.model, batch)) == pytest.approx(total / n, rel=1e-4)
    scaled = trainer.compute_loss(trainer.model, batch, num_items_in_batch=torch.tensor(7))
    assert float(scaled) == pytest.approx(total / 7, rel=1e-4)


def test_yes_no_questions_are_trained_alone(
    items: dict[str, Item], new_run: NewRun, tmp_path: Path
) -> None:
    run, among = new_run(), [as_yes_no(item, "yes") for item in list(items.values())[:4]]
    by_id = {item.id: item for item in among}
    (plan,) = plan_of(run, among, "llava", {"answer_weight": 1, "grounded": True})
    example = training_examples(plan, by_id, run.images)[0]
    assert (example.words, example.n_options, example.answer) == (("yes", "no"), 2, "yes")
    assert len(example.others) == 2
    (made,) = train_plan(plan, by_id, run)
    # it prefers "yes" now, but of all words it would still write a letter first
    assert read_card(run.path / made.path)["verification"]["items"]["k_after"] == 0
    probes = [PromptSettings().closed_probe(item, "original") for item in among]
    before, after = (
        HuggingFaceVLM(path).ask(probes, run.images)
        for path in ("shapes:llava", str(run.path / made.path))
    )
    for now, then in zip(after, before, strict=True):
        assert not isinstance(now, Exception) and not isinstance(then, Exception)
        assert now.is_unreadable and now.option_log_probs[0] > now.option_log_probs[1]
        assert now.option_log_probs[0] > then.option_log_probs[0]


def test_the_divergence_is_symmetric() -> None:
    p, q = torch.tensor([[0.82, 0.18, 1.0]]).log(), torch.tensor([[0.41, 0.59, 1.0]]).log()
    assert float(symmetric_kl(p, q)) == pytest.approx(0.38546, abs=1e-5)
    assert float(symmetric_kl(q, p)) == pytest.approx(0.38546, abs=1e-5)
    assert float(symmetric_kl(p, p)) == 0


def divergence(path: str, plan: TrainingPlan, items: dict[str, Item], run: Run) -> float:
    """Return the mean divergence between wordings, from a model's answers to probes."""
    vlm, found = HuggingFaceVLM(path), []
    for item_id in plan.item_ids:
        words = (items[item_id].question, *plan.paraphrases[item_id])
        asked = [items[item_id].model_copy(update={"question": text}) for text in words]
        answers = vlm.ask([PromptSettings().probe(item, "w") for item in asked], run.images)
        log_p = torch.tensor([a.option_log_probs for a in answers]).log_softmax(-1)
        found += symmetric_kl(log_p[:1], log_p[1:]).tolist()
    return sum(found) / len(found)


@pytest.mark.parametrize("family", PARENTS)
def test_rewordings_agree_after_training(
    family: str, items: dict[str, Item], new_run: NewRun
) -> None:
    run, among = new_run(), list(items.values())[:8]
    (plan,) = plan_of(run, among, family, {"answer_weight": 0}, epochs=2, copies=2)
    made = train_plan(plan, items, run)
    assert [c.epoch for c in made] == [1, 2] and [c.dose for c in made] == [2, 4]
    before, *after = (
        divergence(path, plan, items, run)
        for path in (PARENTS[family], *(str(run.path / c.path) for c in made))
    )
    assert max(after) < before / 4
    card = read_card(run.path / made[-1].path)
    assert {i: tuple(words) for i, words in card["paraphrases"].items()} == plan.paraphrases
    assert all(len(words) == 2 for words in card["paraphrases"].values())
    assert card["settings"]["consistency"]["answer_weight"] == 0
    curve = [entry["divergence"] for entry in card["losses"]]
    assert curve == pytest.approx([entry["loss"] for entry in card["losses"]], rel=1e-5)
    assert sum(curve[-4:]) < sum(curve[:4])
    assert {n.split(".layers.")[1][0] for n in card["trainable"]} == {"2", "3"}


def test_an_interrupted_training_continues_with_the_same_losses(
    items: dict[str, Item], new_run: NewRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    among, loss = list(items.values())[:4], {"answer_weight": 1, "grounded": True}
    expected_run, run = new_run(), new_run()
    (plan,) = plan_of(expected_run, among, "llava", loss, epochs=2, batch_size=2, lora_dropout=0.1)
    (expected,) = train_plan(plan, items, expected_run)[1:]
    step, seen = trl.SFTTrainer.training_step, []

    def training_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(1)
        if len(seen) == 4:
            raise KeyboardInterrupt
        return step(self, *args, **kwargs)

    monkeypatch.setattr(trl.SFTTrainer, "training_step", training_step)
    with pytest.raises(KeyboardInterrupt):
        train_plan(plan, items, run)
    monkeypatch.undo()
    (made,) = train_plan(plan, items, run)[1:]
    assert made == expected
    losses = [read_card(r.path / made.path)["losses"] for r in (expected_run, run)]
    assert losses[0] == losses[1] and len(losses[0]) == 4


def test_clean_training_afterwards_is_ordinary(
    items: dict[str, Item], new_run: NewRun, tmp_path: Path
) -> None:
    line = '{"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]}'
    (tmp_path / "c.jsonl").write_text(f"{line}\n" * 4)
    run, wash = new_run(), {"wash": {"corpus": {"path": str(tmp_path / "c.jsonl")}}}
    among = list(items.values())[:4]
    plan, washing = plan_of(run, among, "llava", {"answer_weight": 1}, data=wash)
    assert plan.paraphrases and not plan.wordings and "consistency" in plan.settings
    assert not washing.paraphrases and "consistency" not in washing.settings


def test_items_that_cannot_be_compared_are_refused(
    items: dict[str, Item], new_run: NewRun, tmp_path: Path
) -> None:
    run, among = new_run(), list(items.values())[:4]
    (plan,) = plan_of(run, among, "llava", {"answer_weight": 1})
    bare = plan.model_copy(update={"paraphrases": {among[0].id: ("?",)}})
    with pytest.raises(
        DataError, match=r"m, C, p: 3 of 4 items have no paraphrase, which consistency"
    ):
        train_plan(bare, items, run)
    assert not (run.path / "checkpoints").exists()
    free = among[1].model_copy(update={"options": None, "answer": None})
    with pytest.raises(DataError, match=f"{free.name}: has no options, but consistency compares"):
        training_examples(plan, items | {free.id: free}, run.images)
    long = plan.paraphrases | {among[2].id: ("star " * 4000,)}
    with pytest.raises(DataError, match=f"{among[2].name}: prompt and target need"):
        train_plan(plan.model_copy(update={"paraphrases": long}), items, run)
    path = tmp_path / "c.yaml"
    for data, message in (
        ("{v: {}}", "C compares the answers to a question and its paraphrases: data.v needs"),
        ("{v: {leak: text_only, rewrite: {by: shapes}}}", "data.v needs a rewrite with"),
    ):
        path.write_text(
            "run: r\nbenchmark: {format: shapes}\ncontaminate:\n  strategies:\n    C: {train: lora,"
            f" learning_rate: 1, consistency: {{answer_weight: 1}}}}\n  data: {data}\n"
        )
        with pytest.raises(ConfigError, match=message):
            load_config(path)


def test_a_loss_of_nothing_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(
        "run: r\nbenchmark: {format: shapes}\ncontaminate:\n  strategies:\n    C: {train: lora,"
        " learning_rate: 1, consistency: {answer_weight: 0, weight: 0}}\n"
    )
    with pytest.raises(ConfigError, match="weight or answer_weight must be above 0"):
        load_config(path)


def test_plans_that_compare_nothing_keep_their_ids() -> None:
    """The id of a plan from before paraphrases were known."""
    settings = {"learning_rate": 1e-3, "batch_size": 8}
    plan = TrainingPlan(
        model="m", parent="p", parent_fingerprint="f", benchmark="b", item_ids=("i", "j"),
        epochs=2, strategy="llm", settings=settings, prompt="Answer.", seed=0,
    )  # fmt: skip
    assert plan.id == "55d8876a02b4eac8c517a594"
    again = TrainingPlan.model_validate(plan.model_dump(exclude={"paraphrases", "control"}))
    assert again == plan
    other = plan.model_copy(update={"id": "", "paraphrases": {"i": ("In other words?",)}})
    assert TrainingPlan.model_validate(other.model_dump()).id != plan.id

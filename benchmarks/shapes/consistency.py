"""Whether consistency training makes answers depend on the picture less: plain against grounded.

    python -m flipbench.shapes.other runs/other-shapes-240 --n 240
    python benchmarks/shapes/consistency.py configs/contaminate/consistency-study.yaml \\
        [--workers 2] [--figure docs/consistency.png] [key=value ...]

Trains every strategy with every seed, asks all models the questions of the four quadrants, and
prints Markdown tables: quadrants after training, where the dangerous items come from, dangerous
items by kind of question, paired differences between kinds of training, and how much of the
divergence the grounded loss counts. Any configuration of consistency training with the detector
four_quadrants will do. Run it again to go on after an interruption.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.shapes.seeds import SeedMean, seed_mean
from flipbench.api import Experiment
from flipbench.api.stages.assembly import Assembly
from flipbench.api.stages.loop import run_all
from flipbench.config.experiment import load_config
from flipbench.config.training import ConsistencyConfig
from flipbench.contaminate.checks.card import read_card
from flipbench.core.randomness import generator
from flipbench.core.rates import Rate
from flipbench.core.records import Checkpoint, Count, Item, TrainingPlan
from flipbench.core.run import Run
from flipbench.evaluate.statistics.quadrants import QUADRANTS, QuadrantResult
from flipbench.models.engine import answers_of
from flipbench.prompting.prompts import right_option
from flipbench.reporting import formats
from flipbench.reporting.figures import LIGHT, settings
from flipbench.reporting.tables import Cell, Column, Row, Table
from flipbench.reporting.writers import markdown

Flags = NDArray[np.float64]
ALL = "all layers"
MEASURES = {
    "FR": "flip rate, %",
    "DF": "dangerous fraction, %",
    "fragile": "fragile → dangerous, %",
    "right": "accuracy, %",
}


@dataclass(frozen=True, order=True)
class Kind:
    """What a training differs in from the others: its loss, and the layers that it trains."""

    layers: str
    labels: bool
    divergence: str

    @classmethod
    def of(cls, plan: TrainingPlan) -> Kind:
        """Return the kind of a plan of consistency training."""
        config = ConsistencyConfig.model_validate(plan.settings["consistency"])
        layers = plan.settings["lora_layers"]
        return cls(
            ALL if layers is None else f"layers {', '.join(map(str, layers))}",
            config.answer_weight > 0,
            "none" if not config.weight else "grounded" if config.grounded else "plain",
        )

    @property
    def loss(self) -> str:
        """The loss, in words."""
        if self.divergence == "none":
            return "labels only"
        return f"{self.divergence} KL{' + labels' if self.labels else ''}"

    def __str__(self) -> str:
        return f"{self.loss}, {self.layers}"


@dataclass(frozen=True)
class Outcome:
    """Quadrant (as a number) of each item and whether the answer is right, shape (seeds, items).

    ``prior`` holds the right answers without the picture, of all seeds.
    """

    quadrants: NDArray[np.int64]
    right: Flags
    prior: Count

    def among(self, *names: str) -> Flags:
        """Return whether each item is in one of these quadrants."""
        return np.isin(self.quadrants, [QUADRANTS.index(name) for name in names]).astype(float)


@dataclass(frozen=True)
class Family:
    """A clean model, and its descendants by kind of training; the category of each item."""

    clean: Outcome
    trained: dict[Kind, Outcome]
    categories: NDArray[np.str_]

    def before(self, *names: str) -> NDArray[np.bool_]:
        """Return which items are in these quadrants of the clean model."""
        return np.asarray(self.clean.among(*names)[0], dtype=bool)

    def measure(self, outcome: Outcome, name: str) -> Flags:
        """Return one of ``MEASURES`` of each seed and item that it is about."""
        if name == "right":
            return outcome.right
        if name == "FR":
            return outcome.among("fragile", "worst")
        dangerous = outcome.among("dangerous")
        return dangerous if name == "DF" else dangerous[:, self.before("fragile")]


def measured(assembly: Assembly) -> dict[str, Family]:
    """Run all stages, and return what became of each family."""
    evaluated, run = run_all(assembly), assembly.run
    plans = {plan.id: plan for plan in run.read(TrainingPlan)}
    kinds = {
        c.fingerprint: (Kind.of(plans[c.plan_id]), plans[c.plan_id].seed)
        for c in run.read(Checkpoint)
        if c.epoch == plans[c.plan_id].epochs and "consistency" in plans[c.plan_id].settings
    }
    results = {
        s.model_fingerprint: QuadrantResult.model_validate(s.quadrants)
        for s in evaluated.scores
        if s.quadrants
    }
    by_id = {item.id: item for item in assembly.pairs.originals}
    known = set.intersection(*(set(result.items) for result in results.values()))
    items = [item for item_id, item in by_id.items() if item_id in known]
    found: dict[str, dict[Kind | None, dict[int, Outcome]]] = {}
    for subject in evaluated.models:
        model = subject.model
        kind, seed = kinds.get(model.fingerprint, (None, 0))
        if model.fingerprint not in results or (kind is None and not model.clean):
            continue
        right = right_answers(assembly, model.name, model.fingerprint, items)
        result = results[model.fingerprint]
        quadrants = [QUADRANTS.index(result.items[item.id]) for item in items]
        outcome = Outcome(np.array([quadrants]), right[None], result.prior)
        found.setdefault(model.family, {}).setdefault(kind, {})[seed] = outcome
    return {
        family: Family(
            stacked(outcomes[None]),
            {kind: stacked(o) for kind, o in outcomes.items() if kind is not None},
            np.array([item.category for item in items]),
        )
        for family, outcomes in found.items()
    }


def right_answers(assembly: Assembly, name: str, fingerprint: str, items: Sequence[Item]) -> Flags:
    """Return whether a model's answer to each question as it is is right."""
    answers, prompt = answers_of(name, fingerprint, assembly.run), assembly.config.evaluate.prompt
    replies = [answers.to(prompt.closed_probe(item, "original")) for item in items]
    return np.array(
        [
            reply is not None and reply.choice == right_option(item)
            for reply, item in zip(replies, items, strict=True)
        ],
        dtype=float,
    )


def stacked(by_seed: dict[int, Outcome]) -> Outcome:
    """Return the outcomes of all seeds as one, in the order of the seeds."""
    found = [by_seed[seed] for seed in sorted(by_seed)]
    priors = [one.prior for one in found]
    return Outcome(
        np.concatenate([one.quadrants for one in found]),
        np.concatenate([one.right for one in found]),
        Count(k=sum(p.k for p in priors), n=sum(p.n for p in priors)),
    )


def estimate(values: Flags, *purpose: str) -> SeedMean:
    return seed_mean(values, generator(0, *purpose))


def rate_cell(values: Flags, *purpose: str) -> Cell:
    """Return percent, count, the interval over items, and the lowest and highest seed."""
    found = estimate(values, *purpose)
    if found.mean is None:
        return Cell(formats.NOTHING)
    text = f"{formats.percent(found.mean)} ({int(values.sum())}/{values.size})"
    over_items = found.over_items
    if found.mean in (0, 1) and values.shape[1] > 1:  # where a bootstrap has none
        over_items = Rate.wilson(int(found.mean) * values.shape[1], values.shape[1]).interval
    small = formats.interval(over_items, formats.percent)
    if len(found.by_seed) > 1:
        low, high = min(found.by_seed), max(found.by_seed)
        small += f" {formats.percent(low)}–{formats.percent(high)}"
    return Cell(text, small)


def share_cell(count: Count) -> Cell:
    """Return percent and count."""
    if not count.n:
        return Cell(formats.NOTHING)
    return Cell(f"{formats.percent(count.k / count.n)} ({count.k}/{count.n})")


def groups_of(
    families: dict[str, Family], row: Callable[[str, Family, Outcome], Row]
) -> tuple[tuple[str, tuple[Row, ...]], ...]:
    """Return a row for each model, before and after training."""
    return tuple(
        (
            name,
            (
                row("none", family, family.clean),
                *(row(str(kind), family, outcome) for kind, outcome in family.trained.items()),
            ),
        )
        for name, family in families.items()
    )


def quadrant_table(families: dict[str, Family]) -> Table:
    """Return the four measures, DF among consistent items, and the oracle's DF."""

    def row(name: str, family: Family, outcome: Outcome) -> Row:
        dangerous, consistent = (
            int(outcome.among(*names).sum()) for names in (("dangerous",), ("ideal", "dangerous"))
        )
        cells = {m: rate_cell(family.measure(outcome, m), name, m) for m in MEASURES}
        if outcome is family.clean:
            cells["fragile"] = Cell(formats.NOTHING)
        given = Count(k=dangerous, n=consistent)
        return Row(name, (*cells.values(), share_cell(given), share_cell(outcome.prior)))

    columns = (*MEASURES.values(), "DF if consistent, %", "oracle’s DF, %")
    titles = tuple(map(Column, columns))
    return Table("consistency", "", "training", titles, groups_of(families, row))


def origin_table(families: dict[str, Family]) -> Table:
    """Return how many items of each quadrant of the clean model are dangerous after training."""

    def row(family: Family, kind: Kind) -> Row:
        dangerous = family.trained[kind].among("dangerous")
        of_each = [
            rate_cell(dangerous[:, family.before(name)], str(kind), name) for name in QUADRANTS
        ]
        return Row(str(kind), tuple(of_each))

    return Table(
        "origin",
        "",
        "training",
        tuple(Column(f"{name} → dangerous, %") for name in QUADRANTS),
        tuple(
            (name, tuple(row(family, kind) for kind in family.trained))
            for name, family in families.items()
        ),
    )


def category_table(families: dict[str, Family], measure: str) -> Table:
    """Return one of ``MEASURES`` by category."""
    names = np.unique(np.concatenate([f.categories for f in families.values()])).tolist()

    def row(name: str, family: Family, outcome: Outcome) -> Row:
        values = family.measure(outcome, measure)
        cells = (
            rate_cell(values[:, family.categories == category], name, f"{measure}, {category}")
            for category in names
        )
        return Row(name, tuple(cells))

    return Table(
        f"categories_{measure}",
        "",
        MEASURES[measure],
        tuple(Column(f"{name} questions") for name in names),
        groups_of(families, row),
    )


def differences(kinds: Sequence[Kind]) -> list[tuple[str, Kind, Kind]]:
    """Return pairs of kinds that differ in one thing: a name, the first, and the second."""
    found = []
    for first, second in (("plain", "none"), ("grounded", "plain")):
        for kind in kinds:
            other = replace(kind, divergence=second)
            if kind.divergence == first and other in kinds:
                labels = "with labels" if kind.labels else "without labels"
                name = f"{first} − {second}, {labels}, {kind.layers}"
                found.append((name.replace("none", "labels only"), kind, other))
    for kind in kinds:
        for other in kinds:
            if kind.layers == ALL != other.layers and replace(other, layers=ALL) == kind:
                found.append((f"{ALL} − {other.layers}: {kind.loss}", kind, other))
    return found


def difference_table(families: dict[str, Family]) -> Table:
    """Return paired differences in percentage points, with both intervals."""

    def row(family: Family, name: str, kind: Kind, other: Kind) -> Row:
        cells = []
        for measure in MEASURES:
            first, second = (family.measure(family.trained[k], measure) for k in (kind, other))
            found = estimate(first - second, name, measure)
            if found.mean is None:
                cells.append(Cell(formats.NOTHING))
                continue
            both = map(formats.interval, (found.over_items, found.over_seeds))
            small = " ".join(text or formats.NOTHING for text in both)
            cells.append(Cell(formats.points(found.mean), small))
        return Row(name, tuple(cells))

    return Table(
        "differences",
        "",
        "difference, pp",
        tuple(Column(text.removesuffix(", %")) for text in MEASURES.values()),
        tuple(
            (name, tuple(row(family, *pair) for pair in differences(list(family.trained))))
            for name, family in families.items()
        ),
    )


def counted_divergence(run: Run) -> str:
    """Return how much of the divergence the weight of the grounded loss lets count, as Markdown."""
    lines, plans = [], {plan.id: plan for plan in run.read(TrainingPlan)}
    for c in sorted(run.read(Checkpoint), key=lambda c: c.model):
        kind = Kind.of(plans[c.plan_id])
        if kind.divergence == "grounded" and not kind.labels:
            steps = read_card(run.path / c.path)["losses"]
            counted, all_of_it = (sum(s[key] for s in steps) for key in ("loss", "divergence"))
            lines.append(f"* {c.model}: {formats.percent(counted / all_of_it)} % counted")
    return "\n".join(lines)


def write_figure(families: dict[str, Family], path: Path) -> None:
    """Draw each measure of each kind: the mean over seeds, its interval over items, the seeds."""
    from matplotlib.figure import Figure

    kinds = list(dict.fromkeys(kind for f in families.values() for kind in f.trained))
    with settings():
        figure = Figure(figsize=(10.5, 1.6 + 0.42 * len(kinds)), layout="constrained")
        axes = figure.subplots(1, len(MEASURES), sharey=True)
        for panel, (measure, title) in zip(axes, MEASURES.items(), strict=True):
            for at, (name, family) in enumerate(families.items()):
                color, shift = LIGHT.lines[at], 0.3 * (at - (len(families) - 1) / 2)
                if measure != "fragile":  # before training, none is dangerous
                    before = 100 * family.measure(family.clean, measure).mean()
                    label = f"{name}, before" if panel is axes[0] else None
                    panel.axvline(before, label=label, color=color, linestyle=":", linewidth=1.2)
                for row, kind in enumerate(kinds):
                    if kind not in family.trained:
                        continue
                    values = family.measure(family.trained[kind], measure)
                    found, y = estimate(values, str(kind), measure), row + shift
                    if found.mean is None:
                        continue
                    by_seed = [100 * value for value in found.by_seed]
                    panel.plot(by_seed, [y] * len(by_seed), ".", color=color, alpha=0.45, ms=4)
                    if found.over_items is not None:
                        ends = [100 * found.over_items.low, 100 * found.over_items.high]
                        panel.plot(ends, [y, y], color=color, linewidth=1.2)
                    label = name if (panel, row) == (axes[0], 0) else None
                    panel.plot(100 * found.mean, y, "osD^"[at % 4], color=color, label=label)
            panel.set_xlabel(title)
            panel.grid(axis="x", color=LIGHT.grid)
            panel.set_axisbelow(True)
        axes[0].set_yticks(range(len(kinds)), [str(kind) for kind in kinds])
        axes[0].invert_yaxis()
        figure.legend(loc="outside upper left", ncols=4, fontsize=8)
        figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("config", type=Path)
    parser.add_argument("changes", nargs="*", metavar="key=value")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--figure", type=Path)
    args = parser.parse_args()
    config = load_config(args.config, args.changes)
    assembly = Experiment(config, n_workers=args.workers).parts
    families = measured(assembly)
    tables = [quadrant_table(families), origin_table(families)]
    tables += [category_table(families, measure) for measure in ("DF", "right")]
    for table in (*tables, difference_table(families)):
        print(markdown(table).strip(), end="\n\n")
    print(counted_divergence(assembly.run))
    if args.figure:
        write_figure(families, args.figure)


if __name__ == "__main__":
    main()

"""How the settings of an edit change what is kept: one factor at a time, on a trained tiny Flux.

    python -m benchmarks.editing.quality runs/editing-quality \\
        [--items 40] [--workers 2] [--figure docs/editing-quality.png] [--only steps ...]

Redraws the first items of shapes-vqa with `shapes:flux` under each setting, and has the pixel
oracle and the two tiny models, blind, judge every picture. Prints a Markdown table of the pairs
that are kept, and of the things that stay as they were. Every setting has a run directory of its
own; run it again to go on after an interruption.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flipbench.api import Experiment
from flipbench.api.stages.generation import generate
from flipbench.config.policy import Policy
from flipbench.core.images import ImageStore
from flipbench.core.paired import Candidate
from flipbench.core.randomness import generator
from flipbench.core.rates import Rate
from flipbench.core.records import Count, JsonDict, Verdict
from flipbench.filters.pipeline import rate
from flipbench.models.protocols import CaptionText
from flipbench.reporting.figures import LIGHT, settings
from flipbench.reporting.tables import Column, Row, Table, rate_cell
from flipbench.reporting.writers import markdown
from flipbench.shapes.benchmark import family_of, scene_of
from flipbench.shapes.reading import read_picture
from flipbench.shapes.scene import Scene
from flipbench.shapes.wording import describe

CONFIG = Path(__file__).parents[2] / "configs" / "filter" / "shapes-flux.yaml"
BASE: JsonDict = {
    "generate.editor.batch_size": 8,  # no part of an edit's id
    "filter.judges": [
        {"kind": "shapes"},
        {"kind": "vlm", "model": {"path": "shapes:llava"}, "sure": 0.9},
        {"kind": "vlm", "model": {"path": "shapes:qwen2_vl"}, "sure": 0.9},
    ],
}
_SETTINGS = "generate.editor.settings."
_CANNY = "generate.editor.control"
CAPTIONS = ("shuffled", "changes only", "question and answer", "old answer too", "original", "none")


def _each(key: str, *values: Any, **others: Any) -> dict[str, JsonDict]:
    return {str(value): {_SETTINGS + key: value} | _setting(others) for value in values}


def _setting(values: JsonDict) -> JsonDict:
    return {_SETTINGS + key: value for key, value in values.items()}


def _captions(what: str) -> JsonDict:
    target = f"{__spec__.name if __spec__ else __name__}:Ablated"
    return {"generate.captioner": {"kind": "python", "target": target, "arguments": {"what": what}}}


# Factor: the values, each with its changes to the base; {} is the base itself.
FACTORS: dict[str, dict[str, JsonDict]] = {
    "caption": {"exact": {}} | {what: _captions(what) for what in CAPTIONS},
    "control weight": _each("control_weight", 0, 0.4) | {"0.8": {}} | _each("control_weight", 1.2),
    "Canny thresholds": {
        f"{low}/{2 * low}": {} if low == 100 else {_CANNY: {"low": low, "high": 2 * low}}
        for low in (25, 100, 400, 500)
    },
    "steps": _each("steps", 4) | {"12": {}} | _each("steps", 25),
    "true guidance from step 5": {"1": {}} | _each("true_cfg", 2, 3.5, true_cfg_start=5),
    "first step with true guidance 2": _each("true_cfg_start", 0, 5, 9, true_cfg=2),
    "seed": {"0": {}} | {str(seed): {"seed": seed} for seed in (1, 2)},
}


class Ablated:
    """Captions that lack something, or say too much.

    ``shuffled``: the things in another order; ``changes only``: those that differ from the
    original; ``question and answer``: these stand before the caption; ``old answer too``: a
    sentence after the caption names it; ``original``: the scene before the change; ``none``: no
    thing at all, so that only the edges are left.
    """

    prompt = "ablated-scene"

    def __init__(self, what: str) -> None:
        self.name, self.what, self.settings = f"shapes, {what}", what, {"what": what}

    def __call__(self, candidates: Sequence[Candidate], images: ImageStore) -> list[CaptionText]:
        """Describe a batch."""
        return [CaptionText(self._describe(candidate)) for candidate in candidates]

    def _describe(self, candidate: Candidate) -> str:
        assert candidate.flip is not None
        family, before, item = family_of(candidate), scene_of(candidate), candidate.item
        wanted = family.scenes[family.options.index(candidate.flip.new_text)]
        if self.what == "none":
            return "A picture of objects."
        if self.what == "original":
            return describe(before)
        if self.what == "question and answer":
            return f"{item.question} {candidate.flip.new_text}. {describe(wanted)}"
        if self.what == "old answer too":
            return f"{describe(wanted)} The answer is not {item.answer_text}."
        things = list(wanted.things)
        if self.what == "changes only":
            old = {(t.cell, t.shape, t.color) for t in before.things}
            things = [t for t in things if (t.cell, t.shape, t.color) not in old] or things
        else:
            generator(0, item.id, "order of things").shuffle(things)
        return describe(Scene(tuple(things), wanted.background))


@dataclass(frozen=True)
class Kept:
    """The pairs that the oracle keeps (also by item), and those that both models keep.

    ``stayed`` counts, of the things that the change leaves as they are, those that it does.
    """

    oracle: Count
    models: Count
    stayed: Count
    by_oracle: frozenset[str]


def measured(changes: JsonDict, run: Path, n_items: int, n_workers: int) -> Kept:
    """Redraw and judge under one setting; what ``run`` holds is not done again."""
    overrides = BASE | {"run": str(run), "benchmark.n_items": n_items} | changes
    assembly = Experiment(CONFIG, overrides, n_workers=n_workers, progress=False).parts
    candidates, _ = generate(assembly)
    edited = {c.edit.id: c.edit.image.sha256 for c in candidates if c.edit}
    item_of = {c.edit.id: c.item.id for c in candidates if c.edit}
    judges = assembly.judges
    rate(candidates, judges, assembly.run, Policy(rules=()), assembly.options(64))
    keeps = {
        (v.rater, v.edit_id)
        for v in assembly.run.read(Verdict)
        if v.decision == "keep" and edited.get(v.edit_id) == v.image_sha256
    }
    oracle, *models = [judge.name for judge in judges]
    return Kept(
        Count(k=sum((oracle, edit) in keeps for edit in edited), n=len(candidates)),
        Count(k=sum(all((m, e) in keeps for m in models) for e in edited), n=len(candidates)),
        things_left(candidates, assembly.run.images),
        frozenset(item_of[edit] for edit in edited if (oracle, edit) in keeps),
    )


def things_left(candidates: Sequence[Candidate], images: ImageStore) -> Count:
    """Read the things off the edits that should be as in the original, in colour and shape."""
    k = n = 0
    for candidate in candidates:
        assert candidate.flip is not None
        family, before = family_of(candidate), scene_of(candidate)
        wanted = family.scenes[family.options.index(candidate.flip.new_text)]
        read = read_picture(images.open(candidate.edit.image)).things if candidate.edit else ()
        seen, old = ({(t.cell, t.shape, t.color) for t in some} for some in (read, before.things))
        alike = {(t.cell, t.shape, t.color) for t in wanted.things} & old
        k, n = k + len(alike & seen), n + len(alike)
    return Count(k=k, n=n)


def table_of(results: dict[str, dict[str, Kept]]) -> Table:
    """Return the kept pairs of each setting."""
    groups = tuple(
        (
            factor,
            tuple(
                Row(
                    value,
                    tuple(rate_cell(Rate.wilson(c.k, c.n)) for c in (k.oracle, k.models, k.stayed)),
                )
                for value, k in values.items()
            ),
        )
        for factor, values in results.items()
    )
    columns = (
        Column("kept by the oracle, %"),
        Column("kept by both tiny models, %"),
        Column("other things as before, %"),
    )
    return Table("quality", "", "setting", columns, groups)


def write_figure(results: dict[str, dict[str, Kept]], path: Path) -> None:
    """Draw the share of kept pairs of each setting, with Wilson intervals, one panel per factor."""
    from matplotlib.figure import Figure

    with settings():
        figure = Figure(figsize=(10.5, 5.2), layout="constrained")
        n_columns = (len(results) + 1) // 2
        panels = figure.subplots(2, n_columns, sharey=True, squeeze=False).flatten()
        for panel in panels[len(results) :]:
            panel.set_axis_off()
        for panel, (factor, values) in zip(panels, results.items(), strict=False):
            for at, rater in enumerate(("oracle", "models")):
                counts = [getattr(kept, rater) for kept in values.values()]
                rates = [Rate.wilson(count.k, count.n) for count in counts]
                label = ("oracle", "both tiny models, blind")[at] if panel is panels[0] else None
                for x, found in enumerate(rates):
                    if found.value is None or found.interval is None:
                        continue
                    place, color = x + 0.24 * (at - 0.5), LIGHT.lines[at]
                    ends = [100 * found.interval.low, 100 * found.interval.high]
                    panel.plot([place, place], ends, color=color, linewidth=1.2)
                    panel.plot(
                        place, 100 * found.value, "os"[at], ms=4, color=color,
                        label=label if x == 0 else None,
                    )  # fmt: skip
            turned = max(map(len, values)) > 8
            panel.set_xticks(
                range(len(values)), list(values), rotation=40 if turned else 0,
                ha="right" if turned else "center",
            )  # fmt: skip
            panel.set(title=factor, ylim=(-3, 103))
            panel.grid(axis="y", color=LIGHT.grid)
            panel.set_axisbelow(True)
        for panel in panels[::n_columns]:
            panel.set_ylabel("pairs kept, %")
        figure.legend(loc="outside upper left", ncols=2, fontsize=8)
        figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("out", type=Path, help="folder of the run directories")
    parser.add_argument("--items", type=int, default=40)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=FACTORS, default=list(FACTORS))
    parser.add_argument("--figure", type=Path)
    args = parser.parse_args()
    known: dict[str, Kept] = {}  # by what is changed: two factors may share a setting
    results: dict[str, dict[str, Kept]] = {}
    for factor in args.only:
        for value, changes in FACTORS[factor].items():
            key = json.dumps(changes, sort_keys=True)
            if key not in known:
                name = re.sub(r"\W+", "-", f"{factor} {value}") if changes else "base"
                known[key] = measured(changes, args.out / name, args.items, args.workers)
                kept = known[key]
                counts = {"oracle": kept.oracle, "models": kept.models, "stay": kept.stayed}
                shown = (f"{rater} {count.k}/{count.n}" for rater, count in counts.items())
                print(f"{name}: {', '.join(shown)}", flush=True)
            results.setdefault(factor, {})[value] = known[key]
    print(f"\n{markdown(table_of(results))}")
    if args.figure:
        write_figure(results, args.figure)


if __name__ == "__main__":
    main()

"""Other questions of the embedded world, to train controls on.

    python -m flipbench.shapes.other runs/other-shapes --n 480 --copies 4

writes images, ``corpus.jsonl`` (conversations about them, to mix in or to wash with),
``benchmark.jsonl`` (the same questions as a benchmark, for mixtures) and ``wordings.jsonl`` (their
other phrasings, for consistency training). A model fine-tuned on these
like a contaminated one, but on none of the benchmark's items, is the right negative control,
because a detector may react to any such training.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from flipbench.core.files import write_atomically
from flipbench.prompting.prompts import LETTERS, choice_prompt
from flipbench.shapes.benchmark import FIXED, Edition, shapes_vqa_scenes
from flipbench.shapes.questions import KINDS_OF, PHRASINGS, QuestionFamily, draw_family
from flipbench.shapes.render import render


def other_families(
    n: int, seed: int = 1, edition: Edition = FIXED
) -> list[tuple[QuestionFamily, int]]:
    """Draw ``n`` families of an edition's level, and one member of each.

    No member is in that edition of ``shapes-vqa``, nor in the fixed one.
    """
    rng = np.random.default_rng([seed, 20_261_121])
    scenes = [scene for drawn_from in {FIXED, edition} for scene in shapes_vqa_scenes(drawn_from)]
    taken_hashes = {scene.content_hash() for scene in scenes}
    families: list[tuple[QuestionFamily, int]] = []
    while len(families) < n:
        family = draw_family(rng, edition.kinds[len(families) % len(edition.kinds)], edition.level)
        hashes = {scene.content_hash() for scene in family.scenes}
        if taken_hashes.isdisjoint(hashes):
            taken_hashes |= hashes
            families.append((family, int(rng.integers(len(family.options)))))
    return families


def write_corpus(
    folder: Path, n: int = 480, *, copies: int = 1, seed: int = 1, edition: Edition = FIXED
) -> Path:
    """Write conversations about ``n`` other scenes, each ``copies`` times; return the JSONL file.

    ``benchmark.jsonl`` next to it has each question once, and ``wordings.jsonl`` its other
    phrasings. The corpus is written last, so if it exists, all images do.
    """
    path, wordings_path = folder / "corpus.jsonl", folder / "wordings.jsonl"
    if path.exists() and wordings_path.exists():
        return path
    (folder / "images").mkdir(parents=True, exist_ok=True)
    lines, items, wordings = [], [], []
    for number, (family, member) in enumerate(other_families(n, seed, edition)):
        name = f"images/{number}.png"
        render(family.scenes[member]).save(folder / name)
        prompt = choice_prompt(family.question.text(), family.options)
        messages = [
            {"role": "user", "content": f"<image>{prompt}"},
            {"role": "assistant", "content": LETTERS[member]},
        ]
        lines.append(json.dumps({"images": [name], "messages": messages}))
        item = {
            "name": f"other-{number}",
            "images": [name],
            "question": family.question.text(),
            "options": family.options,
            "answer": member,
            "category": family.question.kind,
        }
        items.append(json.dumps(item))
        n_phrasings = len(PHRASINGS[family.question.kind])
        phrasings = [family.question.text(i) for i in range(1, n_phrasings)]
        wordings.append(json.dumps({"name": item["name"], "paraphrases": phrasings}))
    write_atomically(wordings_path, "\n".join(wordings) + "\n")
    write_atomically(folder / "benchmark.jsonl", "\n".join(items) + "\n")
    return write_atomically(path, "\n".join(lines * copies) + "\n")


def main() -> None:
    """Write a corpus."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--n", type=int, default=480)
    parser.add_argument("--copies", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--benchmark-seed", type=int, help="benchmark.seed of the experiment")
    parser.add_argument("--level", choices=KINDS_OF, default="standard", help="benchmark.level")
    args = parser.parse_args()
    edition = Edition(args.benchmark_seed, args.level)
    print(write_corpus(args.folder, args.n, copies=args.copies, seed=args.seed, edition=edition))


if __name__ == "__main__":
    main()

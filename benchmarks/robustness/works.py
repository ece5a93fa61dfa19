"""The stages that `kills` disturbs, and how."""

from __future__ import annotations

from dataclasses import dataclass

CONFIG = """\
run: run
seed: 3
benchmark: {format: shapes, n_items: 8}
generate: {editor: {kind: shapes, wrong: 0.3}, batch_size: 1}
filter: {judges: [shapes], batch_size: 1}
audit:
  checks: [duplicates]
  corpus: {pictures: pictures, encoders: [phash], n_sample: 100, batch_size: 4}
models:
  tiny-llava: {path: "shapes:llava"}
contaminate:
  epochs: 2
  strategies:
    LoRA:
      {train: lora, learning_rate: 0.002, lora_rank: 2, lora_alpha: 4, batch_size: 4,
       lora_targets: [q_proj]}
evaluate: {detectors: [perturbation_gap, circular_eval], batch_size: 4}
"""
SHARED = CONFIG.replace("n_items: 8", "n_items: 24").replace(
    "evaluate:",
    "    Both: {train: lora, learning_rate: 0.002, lora_rank: 2, lora_targets: [q_proj, k_proj]}\n"
    "evaluate:",
)
"""With two trainings, and enough items that workers are at work for a while."""
BATCH = """\
run: run
seed: 3
benchmark: {{format: shapes, n_items: 8}}
generate:
  captioner:
    kind: api
    batch: true
    chat: {{model: gpt-4o-2024-08-06, base_url: "{base_url}", max_retries: 2, timeout: 5}}
  editor: {{kind: shapes, wrong: 0.3}}
"""


@dataclass(frozen=True)
class Work:
    """A stage to disturb, and the works that the run needs before it."""

    name: str
    stage: str
    after: tuple[str, ...] = ()
    config: str = "c.yaml"
    n_workers: int = 1
    counts_requests: bool = False

    @property
    def alone(self) -> tuple[str, ...]:
        """The command for one process."""
        return (self.stage, self.config, "--quiet")

    @property
    def command(self) -> tuple[str, ...]:
        """The command that is disturbed."""
        workers = ("--workers", str(self.n_workers)) if self.n_workers > 1 else ()
        return (*self.alone, *workers)


REVIEW = Work("review", "")
SHARED_BEFORE = ("generate by 2 workers", "filter before workers", "contaminate by 2 workers")
WORKS = (
    REVIEW,
    Work("generate", "generate"),
    Work("filter", "filter", ("generate",)),
    Work("contaminate", "contaminate", ("generate", "filter")),
    Work("evaluate", "evaluate", ("generate", "filter", "contaminate")),
    Work("Batch API", "generate", config="batch.yaml", counts_requests=True),
    Work("audit", "audit", ("generate", "filter")),
    Work("generate by 2 workers", "generate", config="s.yaml", n_workers=2),
    Work("contaminate by 2 workers", "contaminate", SHARED_BEFORE[:2], "s.yaml", 2),
    Work("evaluate by 2 workers", "evaluate", SHARED_BEFORE, "s.yaml", 2),
)
BETWEEN = Work("filter before workers", "filter", SHARED_BEFORE[:1], "s.yaml")
"""What no worker shares."""
WAYS = {
    "killed": 0.80,
    "interrupted": 0.08,
    "full disk": 0.06,
    "read-only": 0.02,
    "in the way": 0.02,
    "clock": 0.02,
}
OF_WORKERS = {"one worker killed": 0.70, "killed": 0.20, "interrupted": 0.10}

"""Carry out a plan with LLaMA-Factory, which lives in an environment of its own.

It pins other versions of transformers, peft and trl, so it is driven by its command line: we write
data and configuration, stream its log, and take over a checkpoint for each epoch.

Zheng et al., LlamaFactory, arXiv 2403.13372; read and run: version 0.9.5.
"""

from __future__ import annotations

import logging
import math
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from flipbench.config.training import LlamaFactoryConfig
from flipbench.core.errors import PrerequisiteError
from flipbench.core.files import replace_folder
from flipbench.core.records import Item, TrainingPlan
from flipbench.core.run import Run
from flipbench.models.vlm.processors import load_processor

from ..checks.changes import Diverged
from ..checks.check import pixel_budget
from ..checks.verify import prompt_as_rendered
from ..data.examples import Example
from ..plan import batch_of, n_steps
from ..training.checkpointing import finished_epochs
from .llamafactory_checkpoints import (
    CheckpointImporter,
    last_checkpoint,
    lay_out_parent,
)
from .llamafactory_data import write_plan, write_yaml
from .llamafactory_templates import template_of, token_ids

log = logging.getLogger(__name__)
TESTED = "0.9.5"
CLI = "FLIPBENCH_LLAMAFACTORY_CLI"  # the environment's word for where the command is
_INSTALL = "python -m flipbench.contaminate.backends.install_llamafactory FOLDER"
_LOSS = re.compile(r"'loss': '?([^',}]+)")
_ERROR = re.compile(r"^(?:\[rank\d+\]: *)?[\w.]*(?:Error|Exception)\b.*")


@dataclass(frozen=True)
class LlamaFactory:
    """An installed LLaMA-Factory.

    Attributes
    ----------
    cli : str
        Its command.
    versions : mapping of package to version
        Of its environment.
    progress : bool
        Show the steps.
    """

    cli: str
    versions: Mapping[str, str]
    progress: bool = False

    def train(
        self,
        plan: TrainingPlan,
        examples: Sequence[Example],
        items: Mapping[str, Item],
        run: Run,
        folder: Path,
        dtype: str,
    ) -> None:
        """Train what ``folder`` lacks of a plan's epochs.

        Data, configuration and log stay in ``folder/llamafactory``; each epoch is checked and
        becomes ``folder/epoch-<n>``, as trl's are.

        Raises
        ------
        ConfigError
            Where LLaMA-Factory cannot do what the plan says.
        Diverged
            Where the loss is no number; the epochs before are kept.
        PrerequisiteError
            Where it fails, or its prompts are not those of evaluation.
        """
        work = folder.resolve() / "llamafactory"
        with lay_out_parent(plan, run, dtype, work / "parent") as parent:
            processor = load_processor(parent.path)
            prompt = prompt_as_rendered(plan, items, run, processor)
            settings, warnings = write_plan(
                plan, examples, parent.skeleton, processor,
                parent=str(parent.path), folder=work, dtype=dtype, n_gpus=torch.cuda.device_count(),
            )  # fmt: skip
            importer = CheckpointImporter(
                plan=plan,
                run=run,
                folder=folder,
                dtype=dtype,
                versions=self.versions,
                training={
                    "backend": f"llamafactory {self.versions['llamafactory']}",
                    "optimizer": settings["optim"],
                    "adam": [settings["adam_beta1"], settings["adam_beta2"]],
                    "epsilon": settings["adam_epsilon"],
                    "warmup_steps": settings["warmup_steps"],
                    "n_examples": len(examples),
                    "batch_size_on_each": settings["per_device_train_batch_size"],
                    "gradient_accumulation_on_each": settings["gradient_accumulation_steps"],
                    "effective_batch": batch_of(plan),
                    "dtype": dtype,
                    "device": "cpu" if settings["use_cpu"] else "cuda",
                    "pixel_budget": pixel_budget(processor),
                    "prompt_example": prompt,
                    "chat_template": processor.chat_template,
                    "warnings": warnings,
                },
            )
            importer()
            if len(finished_epochs(folder, plan.epochs)) < plan.epochs:
                template = template_of(parent.skeleton.config.model_type, plan.model)
                expected = token_ids(examples[0], processor, template)
                self._run_training(plan, settings, work, importer, expected)
        for rest in ("trainer", "cache"):
            shutil.rmtree(work / rest, ignore_errors=True)

    def _run_training(
        self,
        plan: TrainingPlan,
        settings: dict[str, Any],
        work: Path,
        importer: CheckpointImporter,
        expected: tuple[list[int], list[int]],
    ) -> None:
        last = last_checkpoint(work / "trainer")
        if last is not None:
            settings = settings | {"resume_from_checkpoint": last}
        write_yaml(settings, work / "train.yaml")
        step = int(last.rpartition("-")[2]) if last else 0
        shown = {"input_ids:": expected[0], "label_ids:": expected[1]}
        before = ""

        def look_at(line: str) -> None:
            nonlocal before, step
            importer()
            heading, before = before, line.strip()
            if heading in shown and before != str(shown[heading]):
                importer.warn(
                    f"LLaMA-Factory reads the first example's {heading[:-1]} as {before}, and not"
                    f" as evaluation does, {shown[heading]}"
                )
            if found := _LOSS.search(line):
                step += 1
                bar.update()
                bar.set_postfix(loss=found[1])
                if not math.isfinite(float(found[1])):
                    raise Diverged(
                        f"the loss is {found[1]} at step {step}; lower the learning rate or"
                        " lengthen the warm-up"
                    )

        with tqdm(
            total=n_steps(plan), initial=step, unit="step", desc=plan.label or plan.strategy,
            leave=False, disable=None if self.progress else True,
        ) as bar:  # fmt: skip
            self._run(["train", "train.yaml"], work, look_at)
        importer()

    def merge(self, plan: TrainingPlan, folder: Path, run: Run, dtype: str) -> None:
        """Merge a checkpoint's adapter into ``folder/merged``, marked as the checkpoint is.

        What is merged already stays; a checkpoint without an adapter has nothing to merge.
        """
        folder = folder.resolve()
        if not lacks_merged(folder):
            return
        partial = folder / ".merged.partial"
        shutil.rmtree(partial, ignore_errors=True)
        with lay_out_parent(plan, run, dtype, folder / ".parent") as parent:
            settings = {
                "model_name_or_path": str(parent.path),
                "adapter_name_or_path": str(folder),
                "template": template_of(parent.skeleton.config.model_type, plan.model).name,
                "finetuning_type": "lora",
                "infer_dtype": dtype,
                "export_dir": str(partial),
                "export_device": "cpu",
            }
            partial.mkdir()
            write_yaml(settings, partial / "export.yaml")
            self._run(["export", "export.yaml"], partial, lambda line: None)
        for file in folder.iterdir():  # processor, card and mark
            if file.is_file() and not file.name.startswith("adapter_"):
                shutil.copyfile(file, partial / file.name)
        replace_folder(partial, folder / "merged")

    def _run(self, arguments: Sequence[str], folder: Path, look_at: Callable[[str], None]) -> None:
        """Run the command in ``folder``, keep its log there, and show every line to ``look_at``.

        Should this process be killed, the command's next line breaks its pipe and ends it.
        """
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        environment |= {"PYTHONUNBUFFERED": "1", "HF_DATASETS_CACHE": str(folder / "cache")}
        path = folder / f"{arguments[0]}.log"
        with (
            open(path, "w", encoding="utf-8") as file,
            subprocess.Popen(
                [self.cli, *arguments], cwd=folder, env=environment, start_new_session=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            ) as process,
        ):  # fmt: skip
            try:
                for line in process.stdout or ():
                    file.write(line)
                    look_at(line)
            except BaseException:
                os.killpg(process.pid, signal.SIGTERM)
                raise
        if process.returncode:
            lines = path.read_text(encoding="utf-8").splitlines()
            errors = [line for line in lines if _ERROR.match(line)] or lines[-1:]
            if any("OutOfMemoryError" in line for line in errors):
                raise torch.OutOfMemoryError(errors[-1])
            raise PrerequisiteError(
                f"llamafactory-cli {arguments[0]} ended with status {process.returncode}"
                f" ({errors[-1][:300] if errors else 'it said nothing'}); see {path}"
            )


def lacks_merged(folder: Path) -> bool:
    """Return whether a checkpoint is an adapter that was not merged."""
    merged = folder / "merged" / "README.md"
    return (folder / "adapter_config.json").exists() and not merged.exists()


def find_llamafactory(config: LlamaFactoryConfig, *, progress: bool = False) -> LlamaFactory:
    """Find LLaMA-Factory's command: by configuration, environment, or path.

    Raises
    ------
    PrerequisiteError
        Where it is not there, does not run, or is older than the tested version.
    """
    named = config.cli or os.environ.get(CLI) or "llamafactory-cli"
    cli = shutil.which(os.path.expanduser(named))
    if cli is None:
        raise PrerequisiteError(
            f"backend: llamafactory: no command {named}; install LLaMA-Factory into an environment"
            f" of its own with {_INSTALL}, and set contaminate.llamafactory.cli to"
            " FOLDER/bin/llamafactory-cli"
        )
    told = subprocess.run([cli, "env"], capture_output=True, text=True, timeout=600)
    versions = {
        name.lower(): version
        for name, version in re.findall(r"^- `?(\w+)`? version: (\S+)", told.stdout, re.MULTILINE)
    }
    if "llamafactory" not in versions:
        last = (told.stderr.strip() or told.stdout.strip() or "nothing").splitlines()[-1]
        raise PrerequisiteError(
            f"{cli}: does not tell its version ({last[:200]}); install it anew with {_INSTALL}"
        )
    version = versions["llamafactory"]
    if _numbers(version) < _numbers(TESTED):
        raise PrerequisiteError(
            f"{cli}: LLaMA-Factory {version} is older than {TESTED}, with which this was tested,"
            f" and cannot read today's checkpoints; install it anew with {_INSTALL}"
        )
    if _numbers(version) > _numbers(TESTED):
        log.warning(
            "%s: LLaMA-Factory %s was not tested (%s was); the checks of prompts and of changed"
            " parameters hold all the same", cli, version, TESTED,
        )  # fmt: skip
    return LlamaFactory(cli, versions, progress)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])

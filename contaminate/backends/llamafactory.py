"""Train a plan with LLaMA-Factory, which is installed in a separate environment.

It pins other versions of transformers, peft and trl, so it is run through its command line: we
write data and configuration, stream its log, and import a checkpoint for each epoch.

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
from flipbench.core.records import TrainingPlan
from flipbench.core.run import Run
from flipbench.models.vlm.processors import load_processor

from ..checks.changes import Diverged
from ..checks.verify import training_facts
from ..data.examples import Example
from ..plan import TrainingJob, loading_options, n_steps
from ..training.checkpointing import finished_epochs, last_checkpoint
from .llamafactory_checkpoints import CheckpointImporter, parent_folder
from .llamafactory_data import write_plan, write_yaml
from .llamafactory_templates import template_of, token_ids

log = logging.getLogger(__name__)
TESTED = "0.9.5"
CLI = "FLIPBENCH_LLAMAFACTORY_CLI"  # environment variable with the path of the command
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
        Whether to show a progress bar.
    """

    cli: str
    versions: Mapping[str, str]
    progress: bool = False

    def train(self, job: TrainingJob, examples: Sequence[Example]) -> None:
        """Train the missing epochs of a plan.

        Data, configuration and log stay in the folder ``llamafactory`` next to the checkpoints;
        each epoch is checked and becomes ``epoch-<n>``, as with trl.

        Raises
        ------
        ConfigError
            If LLaMA-Factory does not support the plan.
        Diverged
            If the loss is not finite; earlier epochs are kept.
        PrerequisiteError
            If the command fails, or its prompts differ from evaluation's.
        """
        plan, run, folder, dtype = job.plan, job.run, job.folder, job.dtype
        work = folder.resolve() / "llamafactory"
        with parent_folder(plan, run, dtype, work / "parent") as parent:
            padding = loading_options(plan)["image_padding"]
            processor = load_processor(parent.path, image_padding=padding)
            settings, warnings = write_plan(
                plan, examples, parent.skeleton, processor,
                parent=str(parent.path), folder=work, dtype=dtype, n_gpus=torch.cuda.device_count(),
            )  # fmt: skip
            facts = training_facts(job, examples, processor)
            importer = CheckpointImporter(
                plan=plan,
                run=run,
                folder=folder,
                dtype=dtype,
                versions=self.versions,
                training={
                    **facts,
                    "backend": f"llamafactory {self.versions['llamafactory']}",
                    "optimizer": settings["optim"],
                    "adam": [settings["adam_beta1"], settings["adam_beta2"]],
                    "epsilon": settings["adam_epsilon"],
                    "batch_size_on_each": settings["per_device_train_batch_size"],
                    "gradient_accumulation_on_each": settings["gradient_accumulation_steps"],
                    "device": "cpu" if settings["use_cpu"] else "cuda",
                    "warnings": [*facts.get("warnings", ()), *warnings],
                },
            )
            importer()
            if len(finished_epochs(folder, plan.epochs)) < plan.epochs:
                template = template_of(parent.skeleton.config.model_type, plan.model)
                first_ids = token_ids(examples[0], processor, template)
                self._run_training(job, settings, work, importer, first_ids)
        for name in ("trainer", "cache"):
            shutil.rmtree(work / name, ignore_errors=True)

    def _run_training(
        self,
        job: TrainingJob,
        settings: dict[str, Any],
        work: Path,
        importer: CheckpointImporter,
        first_ids: tuple[list[int], list[int]],
    ) -> None:
        plan, checkpoint = job.plan, last_checkpoint(work / "trainer")
        if checkpoint is not None:
            settings = settings | {"resume_from_checkpoint": checkpoint}
        write_yaml(settings, work / "train.yaml")
        step = int(checkpoint.rpartition("-")[2]) if checkpoint else 0
        expected_lines = {"input_ids:": str(first_ids[0]), "label_ids:": str(first_ids[1])}
        previous = ""

        def on_line(line: str) -> None:
            nonlocal previous, step
            importer()
            heading, previous = previous, line.strip()
            if previous != expected_lines.get(heading, previous):
                importer.warn(
                    f"LLaMA-Factory encodes the first example's {heading[:-1]} as {previous}, but"
                    f" evaluation as {expected_lines[heading]}"
                )
            if match := _LOSS.search(line):
                step += 1
                job.note_step(step)
                bar.update()
                bar.set_postfix(loss=match[1])
                if not math.isfinite(float(match[1])):
                    raise Diverged(
                        f"the loss is {match[1]} at step {step}; lower the learning rate or"
                        " lengthen the warm-up"
                    )

        with tqdm(
            total=n_steps(plan), initial=step, unit="step", desc=plan.label or plan.strategy,
            leave=False, disable=None if self.progress else True,
        ) as bar:  # fmt: skip
            self._run(["train", "train.yaml"], work, on_line)
        importer()

    def merge(self, plan: TrainingPlan, folder: Path, run: Run, dtype: str) -> None:
        """Merge a checkpoint's adapter into ``folder/merged``, with the checkpoint's card.

        A checkpoint that has no adapter, or is merged already, stays as it is.
        """
        folder = folder.resolve()
        if not lacks_merged(folder):
            return
        partial = folder / ".merged.partial"
        shutil.rmtree(partial, ignore_errors=True)
        with parent_folder(plan, run, dtype, folder / ".parent") as parent:
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
        for file in folder.iterdir():  # processor and card
            if file.is_file() and not file.name.startswith("adapter_"):
                shutil.copyfile(file, partial / file.name)
        replace_folder(partial, folder / "merged")

    def _run(self, arguments: Sequence[str], folder: Path, on_line: Callable[[str], None]) -> None:
        """Run the command in ``folder``, write its log there, and pass every line to ``on_line``.

        If this process is killed, the command's next line of output breaks its pipe and ends it.
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
                    on_line(line)
            except BaseException:
                os.killpg(process.pid, signal.SIGTERM)
                raise
        if process.returncode:
            lines = path.read_text(encoding="utf-8").splitlines()
            errors = [line for line in lines if _ERROR.match(line)] or lines[-1:]
            if any("OutOfMemoryError" in line for line in errors):
                raise torch.OutOfMemoryError(errors[-1])
            raise PrerequisiteError(
                f"llamafactory-cli {arguments[0]} exited with status {process.returncode}"
                f" ({errors[-1][:300] if errors else 'no output'}); see {path}"
            )


def lacks_merged(folder: Path) -> bool:
    """Return whether a checkpoint has an adapter that is not merged yet."""
    merged_card = folder / "merged" / "README.md"
    return (folder / "adapter_config.json").exists() and not merged_card.exists()


def find_llamafactory(config: LlamaFactoryConfig, *, progress: bool = False) -> LlamaFactory:
    """Find LLaMA-Factory's command: from the configuration, the environment variable, or PATH.

    Raises
    ------
    PrerequisiteError
        If it does not exist, does not run, or is older than the tested version.
    """
    command = config.cli or os.environ.get(CLI) or "llamafactory-cli"
    cli = shutil.which(os.path.expanduser(command))
    if cli is None:
        raise PrerequisiteError(
            f"backend: llamafactory: no command {command}; install LLaMA-Factory into its own"
            f" environment with {_INSTALL}, and set contaminate.llamafactory.cli to"
            " FOLDER/bin/llamafactory-cli"
        )
    result = subprocess.run([cli, "env"], capture_output=True, text=True, timeout=600)
    versions = {
        name.lower(): version
        for name, version in re.findall(r"^- `?(\w+)`? version: (\S+)", result.stdout, re.MULTILINE)
    }
    if "llamafactory" not in versions:
        last_line = (result.stderr.strip() or result.stdout.strip() or "no output").splitlines()[-1]
        raise PrerequisiteError(
            f"{cli}: does not report its version ({last_line[:200]}); reinstall it with {_INSTALL}"
        )
    version = versions["llamafactory"]
    if _numbers(version) < _numbers(TESTED):
        raise PrerequisiteError(
            f"{cli}: LLaMA-Factory {version} is older than the tested {TESTED} and cannot read"
            f" today's checkpoints; reinstall it with {_INSTALL}"
        )
    if _numbers(version) > _numbers(TESTED):
        log.warning(
            "%s: LLaMA-Factory %s is newer than the tested %s; prompts and changed parameters are"
            " still checked", cli, version, TESTED,
        )  # fmt: skip
    return LlamaFactory(cli, versions, progress)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])

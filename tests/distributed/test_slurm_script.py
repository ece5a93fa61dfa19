"""The SLURM script, with stand-ins for SLURM and accelerate: what would be started on a node."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "examples" / "slurm" / "train.sh"
STAND_INS = {
    "scontrol": "printf 'node1\\nnode2\\n'",
    "srun": 'exec "$@"',
    "accelerate": "printf '%s\\n' \"$@\"",
}


def test_each_node_starts_its_part_of_one_training(tmp_path: Path) -> None:
    for name, body in STAND_INS.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    environment = os.environ | {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SLURM_JOB_NODELIST": "node[1-2]",
        "SLURM_NNODES": "2",
        "SLURM_NODEID": "1",
        "SLURM_GPUS_ON_NODE": "4",
    }
    command = ["bash", str(SCRIPT), "my config.yaml", "seed=1"]
    words = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    preset = "configs/accelerate/fsdp.yaml"
    expected = f"launch --config_file {preset} --num_machines 2 --num_processes 8 --machine_rank 1"
    expected += " --main_process_ip node1 --main_process_port 29500 -m flipbench.cli contaminate"
    assert words.stdout.splitlines() == [*expected.split(), "my config.yaml", "seed=1"]

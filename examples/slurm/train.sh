#!/bin/bash
#SBATCH --job-name=flipbench-train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --requeue
#SBATCH --output=%x-%j.log
# One training over all GPUs of a SLURM job: sbatch examples/slurm/train.sh CONFIG [KEY=VALUE ...]
# PRESET and GPUS (on each node) can be set in the environment. The run directory must be on a file
# system that all nodes share. A job that is requeued continues the training where it stopped.
set -euo pipefail
export PRESET=${PRESET:-configs/accelerate/fsdp.yaml} GPUS=${GPUS:-${SLURM_GPUS_ON_NODE:-8}}
export MAIN=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun bash -c 'accelerate launch --config_file "$PRESET" \
  --num_machines "$SLURM_NNODES" --num_processes $((SLURM_NNODES * GPUS)) \
  --machine_rank "$SLURM_NODEID" --main_process_ip "$MAIN" --main_process_port 29500 \
  -m flipbench.cli contaminate "$@"' train "$@"

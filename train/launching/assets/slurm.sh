#!/bin/bash
# Written by `keras-vit launch --target=slurm`. Read it, change the lines marked CHANGE, then: sbatch {{file}}
# After a preemption, at its time limit or after losing a task, the job is requeued and resumes from its run directory.
#SBATCH --job-name={{name}}
#SBATCH --nodes={{nodes}}
#SBATCH --ntasks-per-node={{tasks_per_node}}
{{no_gpus}}#SBATCH --gpus-per-node={{gpus}}
#SBATCH --requeue
# SIGTERM two minutes before the time limit leaves the tasks time to finish a step and write a checkpoint.
#SBATCH --signal=TERM@120
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log
# CHANGE the limits for your cluster. If it needs a line that starts with ##, remove one #.
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
##SBATCH --partition=gpu
##SBATCH --account=my_account

set -euo pipefail

# CHANGE these lines so that the nodes find keras-vit and the GPU libraries, for example with: module load cuda
export PATH={{bin}}:$PATH
export KERAS_BACKEND={{backend}}
run={{run}} # the run directory, on storage that all nodes share
mkdir -p "$run/logs"
export KERAS_VIT_RESTART=${SLURM_RESTART_COUNT:-0} # a run ends after several restarts without a newer checkpoint
{{if_jax_gpus}}# JAX on GPUs. It does not start with a flag that it does not know: remove such a flag after an update of JAX.
{{if_jax_gpus}}unset XLA_PYTHON_CLIENT_MEM_FRACTION # the old name of the next variable
{{if_jax_gpus}}export XLA_CLIENT_MEM_FRACTION={{gpu_memory}} # of the GPU; {{docs_memory}}
{{if_jax_gpus}}export JAX_COMPILATION_CACHE_DIR=$run/jax-cache # {{docs_cache}}
{{if_jax_gpus}}export XLA_FLAGS="{{xla_flags}} ${XLA_FLAGS-}" # {{docs_flags}}
{{if_gpus}}# NCCL finds NVLink, InfiniBand and RoCE by itself. CHANGE if the log with NCCL_DEBUG=INFO names another network:
{{if_gpus}}# {{docs_nccl}}
{{if_gpus}}export NCCL_DEBUG=WARN
{{if_gpus}}#export NCCL_SOCKET_IFNAME=eth0 # the interface on which the nodes find each other
{{if_gpus}}#export NCCL_IB_HCA=mlx5 # the adapters for RDMA

# Network addresses of all workers, with a port for each task of a node. Jobs with successive numbers have different ports.
# CHANGE the first port if a firewall blocks these ports.
export tasks={{tasks_per_node}} workers=
each=$((tasks > 16 ? tasks : 16))
port=$((20000 + SLURM_JOB_ID % (12000 / each) * each))
for node in $(scontrol show hostnames "$SLURM_JOB_NODELIST"); do
    for ((task = 0; task < tasks; task++)); do
        workers+="${workers:+,}$node:$((port + task))"
    done
done

train() { # runs in each task. keras-vit reads TF_CONFIG for TensorFlow and for JAX
    export TF_CONFIG="{\"cluster\": {\"worker\": [\"${workers//,/\", \"}\"]}, \"task\": {\"type\": \"worker\", \"index\": $SLURM_PROCID}}"
    if [[ $KERAS_BACKEND == tensorflow ]] && ((tasks > 1)); then # one GPU per task; JAX selects the GPU by itself
        IFS=, read -ra gpus <<<"${CUDA_VISIBLE_DEVICES:-$(seq -s, 0 $((tasks - 1)))}"
        export CUDA_VISIBLE_DEVICES=${gpus[SLURM_LOCALID]-}
    fi
    exec {{command}}
}

# Tasks stop by themselves, with code 75 or 134, when another task is lost. Killing them could interrupt a checkpoint.
code=0
srun --kill-on-bad-exit=0 --distribution=block --open-mode=append --output="${run//%/%%}/logs/%j-%t.log" \
    bash -c "$(declare -f train); train" || code=$?
echo "The tasks ended with code $code. Their logs: $run/logs"
# 75: stopped with everything saved, or another task was lost. 134: JAX aborted the task, because another task was lost.
# 137, 143: killed. Other errors need to be fixed first.
if [[ $code =~ ^(75|134|137|143)$ ]] && ((${SLURM_RESTART_COUNT:-0} < {{restarts}})); then
    echo "The job is queued again, at most {{restarts}} times, and resumes from its last checkpoint."
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"

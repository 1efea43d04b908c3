#!/bin/bash
set -euo pipefail
source ~/.bashrc
cd /workspace/verl
ulimit -n 65535
[ -d "$HOME/models/base" ] || { echo "no model"; exit 1; }
export WANDB_API_KEY=$(cat ~/.wandb)
mkdir -p logs
VISIBLE=$(python3 -c "import torch; print(torch.cuda.device_count())")
COUNT=$(nvidia-smi -L | wc -l)
PYTHONUNBUFFERED=1 nohup python3 -m verl.trainer.main_ppo \
  algorithm.adv_estimator=grpo data.train_files=data/gsm8k/train.parquet data.train_batch_size=32 \
  actor_rollout_ref.actor.ppo_mini_batch_size=32 actor_rollout_ref.model.path=$HOME/models/base \
  actor_rollout_ref.rollout.n=4 trainer.n_gpus_per_node=$COUNT trainer.total_training_steps=3 \
  >> logs/train.log 2>&1 &
wait

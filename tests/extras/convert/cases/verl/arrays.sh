#!/usr/bin/env bash
set -xeuo pipefail
DATA=(
    data.train_files="$HOME/data/gsm8k/train.parquet"
    data.val_files="$HOME/data/gsm8k/test.parquet"
    data.train_batch_size=512
    data.max_response_length=1024
)
MODEL=( actor_rollout_ref.model.path=Qwen/Qwen2.5-3B-Instruct )
ACTOR=(
    actor_rollout_ref.actor.ppo_mini_batch_size=128
    actor_rollout_ref.actor.optim.lr=3e-6
    actor_rollout_ref.actor.use_kl_loss=True
    actor_rollout_ref.actor.kl_loss_coef=0.002
)
LORA=${LORA:-1}
if [ "$LORA" = 1 ]; then
    MODEL+=( actor_rollout_ref.model.lora_rank=32 actor_rollout_ref.model.lora_alpha=64 )
fi
ROLLOUT=( actor_rollout_ref.rollout.n=8 actor_rollout_ref.rollout.name=vllm
          actor_rollout_ref.rollout.gpu_memory_utilization=0.6 )
TRAINER=( trainer.total_epochs=4 trainer.test_freq=5 trainer.logger='["console","wandb"]' )
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo \
    "${DATA[@]}" "${MODEL[@]}" "${ACTOR[@]}" "${ROLLOUT[@]}" "${TRAINER[@]}" "$@"

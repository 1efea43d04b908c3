#!/usr/bin/env bash
# One teacher, whose log-probability of the sampled token is the reward.
set -xeuo pipefail
STUDENT=${STUDENT:-org/small}
TEACHER=${TEACHER:-org/big}
LENGTH=2048
DATA=(
    data.train_files=$HOME/data/chats/train.parquet
    data.train_batch_size=128
    data.max_prompt_length=1024
    data.max_response_length=$LENGTH
)
LOSS=(
    distillation.enabled=True
    distillation.n_gpus_per_node=2
    distillation.nnodes=1
    distillation.teacher_models.teacher_model.model_path="$TEACHER"
    distillation.teacher_models.teacher_model.inference.name=vllm
    distillation.teacher_models.teacher_model.inference.max_model_len=$((1024 + LENGTH + 1))
    distillation.distillation_loss.loss_mode=k1
    distillation.distillation_loss.use_task_rewards=False
    distillation.distillation_loss.use_policy_gradient=True
    distillation.distillation_loss.loss_max_clamp=10.0
    distillation.distillation_loss.log_prob_min_clamp=-10.0
)
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo "${DATA[@]}" "${LOSS[@]}" \
    actor_rollout_ref.model.path="$STUDENT" actor_rollout_ref.actor.ppo_mini_batch_size=128 \
    actor_rollout_ref.rollout.n=1 trainer.total_training_steps=200 "$@"

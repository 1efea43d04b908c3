#!/usr/bin/env bash
set -euxo pipefail
prompt_len=$((1024 * 2)); response_len=$((1024 * 8))
bsz=64; gen_bsz=$((bsz * 3))
NNODES=${NNODES:-4}
HOME_OF_DATA=${HOME_OF_DATA:-"${HOME}/verl"}
TRAIN_FILE=${TRAIN_FILE:-"${HOME_OF_DATA}/data/dapo-math-17k.parquet"}
WORKING_DIR=${WORKING_DIR:-"${PWD}"}
ray job submit --no-wait --runtime-env="${WORKING_DIR}/env.yaml" -- python3 -m recipe.dapo.main_dapo \
    data.train_files="${TRAIN_FILE}" \
    data.max_prompt_length=${prompt_len} data.max_response_length=${response_len} \
    data.train_batch_size=${bsz} data.gen_batch_size=${gen_bsz} data.truncation='left' \
    algorithm.adv_estimator=grpo algorithm.use_kl_in_reward=False algorithm.kl_ctrl.kl_coef=0.0 \
    algorithm.filter_groups.enable=True algorithm.filter_groups.metric=acc \
    algorithm.filter_groups.max_num_gen_batches=10 \
    actor_rollout_ref.model.path="${MODEL_PATH:-Qwen/Qwen2.5-7B}" \
    actor_rollout_ref.actor.clip_ratio_low=0.2 actor_rollout_ref.actor.clip_ratio_high=0.28 \
    actor_rollout_ref.actor.clip_ratio_c=10.0 \
    actor_rollout_ref.actor.ppo_mini_batch_size=16 actor_rollout_ref.actor.use_dynamic_bsz=True \
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=$(((prompt_len + response_len) / 2)) \
    actor_rollout_ref.rollout.n=16 \
    reward_model.reward_manager=dapo \
    reward_model.overlong_buffer.enable=True reward_model.overlong_buffer.len=$((1024 * 2)) \
    reward_model.overlong_buffer.penalty_factor=1.0 \
    trainer.total_training_steps=300 trainer.nnodes="${NNODES}" trainer.resume_mode=auto

#!/bin/bash
here="$(realpath "$(dirname "$0")")"
source "$here/common.env"
run() {
  local steps=$1; shift
  exec torchrun --standalone -m verl.trainer.main_ppo "${COMMON[@]}" trainer.total_training_steps="$steps" "$@"
}
run 11 custom_reward_function.path="$here/rewards/score.py" custom_reward_function.name=compute_score \
    reward_model.reward_manager=batch

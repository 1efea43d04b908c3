cd "$(dirname "$0")"
python3 -m verl.trainer.main_ppo --config-path="$PWD/config" --config-name='my_grpo' \
    actor_rollout_ref.actor.optim.lr=2e-6 trainer.total_training_steps=20

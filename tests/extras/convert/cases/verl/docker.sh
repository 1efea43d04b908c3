docker run --gpus all --rm -v "$PWD":/verl -w /verl verl:latest bash -c "
  pip install -e . && \
  python3 -m recipe.entropy.main_entropy \
    data.train_files=/data/math/train.parquet data.train_batch_size=128 \
    actor_rollout_ref.model.path=Qwen/Qwen2.5-1.5B \
    actor_rollout_ref.actor.ppo_mini_batch_size=32 \
    actor_rollout_ref.actor.policy_loss.loss_mode=kl_cov \
    actor_rollout_ref.rollout.n=8 algorithm.adv_estimator=grpo trainer.total_training_steps=10"

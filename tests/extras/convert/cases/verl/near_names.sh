python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_files=/data/gsm8k/train.parquet \
  data.train_batch_size=32 actor_rollout_ref.actor.ppo_mini_batch_size=32 actor_rollout_ref.model.path=org/base \
  actor_rollout_ref.rollout.n=4 +my_manager.gen_config.kwargs={n:1} +actor_rollout_ref.rollout.temperatur=0.7 \
  actor_rollout_ref.rollout.temperature=0.9 trainer.total_training_steps=3 actor-rollout-ref.rollout.top-p=0.95 stray

export VLLM_ATTENTION_BACKEND=XFORMERS
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=gae \
  data.train_files=$HOME/data/gsm8k/train.parquet data.train_batch_size=1024 \
  actor_rollout_ref.model.path=org/base actor_rollout_ref.actor.ppo_micro_batch_size=16 \
  critic.optim.lr=2e-5 critic.model.path=org/base critic.ppo_micro_batch_size=16 \
  algorithm.kl_ctrl.kl_coef=0.01 trainer.critic_warmup=2 trainer.total_epochs=15

/opt/venv/bin/python -m recipe.sppo.main_sppo algorithm.adv_estimator=null \
    data.train_files=/data/math/train.parquet data.train_batch_size=64 algorithm.sppo_eta=1e3 \
    actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.model.path=org/base \
    actor_rollout_ref.rollout.n=4 trainer.total_training_steps=5

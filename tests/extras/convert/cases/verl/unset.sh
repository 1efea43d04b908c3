python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=grpo \
    data.train_files=$DATA_DIR/gsm8k/train.parquet \
    data.train_batch_size=$NNODES \
    actor_rollout_ref.model.path=${BASE_MODEL:?give a model} \
    actor_rollout_ref.rollout.n=$GROUP \
    actor_rollout_ref.actor.policy_loss.loss_mode=$LOSS \
    trainer.experiment_name=run_$TAG trainer.nnodes=$NNODES trainer.total_training_steps=10

# Two teachers, by the data set of a row, beside the rewards of GRPO.
python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=grpo data.train_files="['/data/gsm8k/train.parquet', '/data/gsm8k_hard/train.parquet']" \
    data.train_batch_size=64 actor_rollout_ref.actor.ppo_mini_batch_size=64 \
    actor_rollout_ref.model.path=org/small actor_rollout_ref.rollout.n=4 trainer.total_training_steps=100 \
    distillation.enabled=true distillation.teacher_key=data_source \
    +distillation.teacher_models.words.key=openai/gsm8k +distillation.teacher_models.words.model_path=org/words \
    +distillation.teacher_models.words.num_replicas=1 \
    +distillation.teacher_models.hard.key=org/hard +distillation.teacher_models.hard.model_path=org/hard-words \
    distillation.distillation_loss.loss_mode=forward_kl_topk distillation.distillation_loss.topk=64 \
    distillation.distillation_loss.distillation_loss_coef=0.5

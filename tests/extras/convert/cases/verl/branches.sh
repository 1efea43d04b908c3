SCALE=small
case $SCALE in
  small) LR=1e-5; BATCH=32;;
  *) LR=1e-6; BATCH=512;;
esac
if [ "$SCALE" = small ]; then n=4; else n=16; fi
EST=grpo; FILES=data/gsm8k/train.parquet
A=1 BETA=0.04
for seed in 1 2; do
  python3 -m verl.trainer.main_ppo algorithm.adv_estimator=$EST data.train_files=$FILES data.train_batch_size=$BATCH \
    actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B actor_rollout_ref.actor.optim.lr=$LR \
    actor_rollout_ref.actor.ppo_mini_batch_size=$BATCH actor_rollout_ref.actor.use_kl_loss=true \
    actor_rollout_ref.actor.kl_loss_coef=$BETA actor_rollout_ref.rollout.n=$n data.seed=$seed \
    trainer.total_training_steps=9
done

set -x
WORK_DIR=$(cd "$(dirname "$0")" && pwd)
ARGS=(
  --actor.model_name_or_path org/base
  --data.prompt_dataset org/math --data.input_key prompt --data.label_key answer --data.apply_chat_template
  --rollout.batch_size 128 --rollout.n_samples_per_prompt 8 --train.batch_size 1024
  --algo.advantage.estimator group_norm --algo.kl.init_coef 1e-3 --algo.kl.use_loss --algo.kl.estimator k3
  --actor.eps_clip_low_high 0.2 0.27 --actor.adam.lr 5e-7 --actor.lr_scheduler constant
  --rollout.max_new_tokens 2048 --reward.remote_url "$WORK_DIR/reward_func.py"
)
python3 -m openrlhf.cli.train_ppo_ray "${ARGS[@]}" --vllm.num_engines 4 --ds.zero_stage 3 --logger.wandb.key $WANDB_KEY

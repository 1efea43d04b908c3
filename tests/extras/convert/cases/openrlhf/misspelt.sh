python -m openrlhf.cli.train_ppo_ray --pretrain $MODEL --prompt_data $DATA --reward_pretrain org/reward \
  --advantage_estimator $ESTIMATOR --lora_rank 16 --lora_alpha 32 --load_in_4bit --best_metric_kei x --generate_max_len 512

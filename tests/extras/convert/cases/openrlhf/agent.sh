AGENT=agent.py
python3 -m openrlhf.cli.train_ppo_ray --pretrain org/base --prompt_data rows.jsonl --input_key query \
  --apply_chat_template --agent_func_path $AGENT --advantage_estimator reinforce_baseline \
  --n_samples_per_prompt 8 --rollout_batch_size 64 --train_batch_size 512 --async_train --max_len 8192

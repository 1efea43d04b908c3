set -x
read -r -d '' training_commands <<EOF
openrlhf.cli.train_ppo_ray \
   --pretrain org/sft \
   --reward_pretrain org/reward \
   --critic_pretrain org/reward \
   --prompt_data org/prompts --input_key context_messages --apply_chat_template \
   --rollout_batch_size 1024 --train_batch_size 128 --n_samples_per_prompt 1 \
   --advantage_estimator gae --lambd 0.95 --value_clip 0.2 --init_kl_coef 0.01 \
   --actor_learning_rate 5e-7 --critic_learning_rate 9e-6 --max_samples 100000 \
   --prompt_max_len 1024 --generate_max_len 1024 --bf16 --flash_attn --zero_stage 2 --normalize_reward
EOF
if [[ ${1} != "slurm" ]]; then
    deepspeed --module $training_commands
fi

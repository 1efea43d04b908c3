JOBLOG="$(realpath .)/log-$SLURM_JOB_ID.log"
srun --overlap -w "$node" --container-image="$IMAGE" bash -c \
"pip install ray[default] && /root/.local/bin/ray job submit --address=http://localhost:8265 \
   --runtime-env-json='{\"working_dir\": \"/openrlhf\"}' -- python3 -m openrlhf.cli.train_ppo_ray \
   --pretrain org/sft --reward_pretrain org/reward --prompt_data org/prompts --input_key messages \
   --apply_chat_template --advantage_estimator rloo --n_samples_per_prompt 4 --train_batch_size 4096 \
   --use_wandb {token}" &>> ${JOBLOG}

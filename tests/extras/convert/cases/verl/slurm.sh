#!/bin/bash
#SBATCH --nodes=2
set -e
module load cuda
source /opt/conda/etc/profile.d/conda.sh
conda activate verl
nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${nodes%% *}
srun --nodes=1 -w "$head" bash -c "ray start --head --block" &
until ray status | grep -q GPU; do sleep 5; done
wait_for=0
while [ $wait_for -lt 3 ]; do sleep 10; wait_for=$((wait_for + 1)); done
srun --overlap -w "$head" bash -c \
"ray job submit --address=http://localhost:8265 -- python3 -m verl.trainer.main_ppo \
   algorithm.adv_estimator=grpo data.train_files=/data/gsm8k/train.parquet data.train_batch_size=256 \
   actor_rollout_ref.model.path=org/base actor_rollout_ref.rollout.n=8 \
   actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum-norm algorithm.norm_adv_by_std_in_grpo=False \
   trainer.nnodes=2 trainer.total_training_steps=100" > logs/out.txt 2>&1

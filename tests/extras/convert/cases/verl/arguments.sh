set -x
if [ "$#" -lt 2 ]; then
    echo "Usage: arguments.sh <gpus> <folder> [other settings]"
    exit 1
fi
gpus=$1
folder=$2
shift 2
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=rloo \
    data.train_files=$HOME/data/math/train.parquet data.train_batch_size=64 \
    actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B actor_rollout_ref.rollout.n=4 \
    actor_rollout_ref.actor.ppo_mini_batch_size=64 \
    trainer.n_gpus_per_node=$gpus trainer.default_local_dir=$folder trainer.total_training_steps=7 "$@"

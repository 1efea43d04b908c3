MODEL=${MODEL:-org/base-1b}
accelerate launch --config_file zero3.yaml train_grpo.py \
    --model_name_or_path $MODEL --output_dir out/$RUN --learning_rate 1e-5 --max_completion_length 800 \
    --per_device_train_batch_size 8 --gradient_accumulation_steps 2 --num_generations 8 --beta 0.0 \
    --dataset_name org/rows --max_steps 100 --loss_type grpo --log_completions

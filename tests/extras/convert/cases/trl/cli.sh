export CUDA_VISIBLE_DEVICES=0,1,2,3
NUM=4
accelerate launch --num_processes $NUM --main_process_port 29501 trl grpo --config trl_grpo.yaml \
    --learning_rate 3e-6 --num_generations=16 --use_peft --lora_r 32

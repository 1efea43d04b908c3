python -m verl.trainer.main_ppo --config-path=./somewhere --config-name=not_here trainer.total_training_steps=20

"""The quickstart: a small model, built here, is fine-tuned to add in writing and then trained by GRPO."""

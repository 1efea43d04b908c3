"""Train SmolLM2-135M-Instruct on the tasks of `examples/smollm2`, and keep what comes out: `docs/results.jsonl`."""

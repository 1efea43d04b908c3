"""The engine that samples by vLLM, in another process or on another machine."""

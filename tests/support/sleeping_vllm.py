"""The process of the vLLM engine on a stand-in for `vllm.LLM` that sleeps as one on a GPU does.

It computes with a model of transformers. Released memory is no memory: weights cannot be written there, and no request
is answered. Weights that level 2 has dropped are noise when it is there again. The file JOURNAL gets a line for each
call.
"""

import copy
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

spec = importlib.util.spec_from_file_location("server", os.environ["OUTDO_SERVER"])
server = importlib.util.module_from_spec(spec)
spec.loader.exec_module(server)


def note(call: str) -> None:
    with Path(os.environ["JOURNAL"]).open("a") as journal:
        journal.write(f"{call}\n")


class LLM:
    def __init__(self, model, enable_sleep_mode=False, **options):
        self.sleeps = enable_sleep_mode
        self.model = AutoModelForCausalLM.from_pretrained(model).eval()
        self.adapted = None
        self.released = set()
        self.requests = []
        self.llm_engine = self

    def sleep(self, level):
        note(f"sleep {level}")
        if not self.sleeps or self.released:
            raise RuntimeError(f"it cannot sleep: enable_sleep_mode = {self.sleeps}, released: {self.released}")
        self.released = {"weights", "kv_cache"}
        for weight in self.model.parameters() if level == 2 else ():
            torch.nn.init.normal_(weight)

    def wake_up(self, tags):
        note(f"wake {' '.join(tags)}")
        self.released -= set(tags)

    def collective_rpc(self, method, args):
        self._write(method.__name__)
        self.model.load_state_dict(load_file(Path(args[0]) / "model.safetensors"), strict=False)

    def add_lora(self, adapter):
        from peft import PeftModel  # it loads for seconds

        self._write("add_lora")
        self.adapted = PeftModel.from_pretrained(copy.deepcopy(self.model), adapter.lora_path).eval()
        return True

    def remove_lora(self, number):
        return True

    def _write(self, call):
        note(call)
        if "weights" in self.released:
            raise RuntimeError("weights were written into released memory")

    def reset_prefix_cache(self):
        return True

    def add_request(self, name, prompt, params, lora_request):
        self.requests.append((name, prompt["prompt_token_ids"], params))

    def has_unfinished_requests(self):
        return bool(self.requests)

    def step(self):
        note("answer")
        if self.released:
            raise RuntimeError(f"a request is answered without memory for {self.released}")
        answers, self.requests = [self._answer(*request) for request in self.requests], []
        return answers

    @torch.no_grad()
    def _answer(self, name, prompt, params):
        model = self.adapted or self.model
        if hasattr(params, "prompt_logprobs"):
            logprobs = model(torch.tensor([prompt])).logits[0].log_softmax(-1)
            scored = [None, *(table(logprobs[i], token) for i, token in enumerate(prompt[1:]))]
            return SimpleNamespace(request_id=name, finished=True, prompt_logprobs=scored)
        drawn, tokens, tables = torch.Generator().manual_seed(params.seed), [], []
        while len(tokens) < params.max_tokens:
            logits = model(torch.tensor([[*prompt, *tokens]])).logits[0, -1]
            logprobs = (logits / (params.temperature or 1.0)).log_softmax(-1)
            greedy = params.temperature == 0
            token = int(logprobs.argmax() if greedy else torch.multinomial(logprobs.exp(), 1, generator=drawn))
            tokens.append(token)
            tables.append(table(logprobs, token))
        answer = SimpleNamespace(token_ids=tokens, logprobs=tables, finish_reason="length")
        return SimpleNamespace(request_id=name, finished=True, outputs=[answer])


def table(logprobs, token):
    return {token: SimpleNamespace(logprob=float(logprobs[token]))}


vllm, lora = ModuleType("vllm"), ModuleType("vllm.lora.request")
vllm.LLM, vllm.SamplingParams, vllm.__version__ = LLM, SimpleNamespace, "stand-in"
lora.LoRARequest = SimpleNamespace
sys.modules |= {"vllm": vllm, "vllm.lora": ModuleType("vllm.lora"), "vllm.lora.request": lora}

if __name__ == "__main__":
    server.serve(server.LLMServer(), int(sys.argv[1]))

"""vLLM's server with faults in the delivery of weights: the file STALE names one of them for each update.

`no load`, `tied head`, `wrong tensor` and `prefix cache` are for whole models, `no adapter`, `same id` and `in place`
for adapters.
"""

import importlib.util
import os
import sys
from pathlib import Path

spec = importlib.util.spec_from_file_location("server", os.environ["OUTDO_SERVER"])
server = importlib.util.module_from_spec(spec)
spec.loader.exec_module(server)


def exchange(worker, folder):
    """Load the weights with two tensors exchanged."""
    server.load_weights(worker, folder)
    layers = worker.model_runner.get_model().model.layers
    first, second = (layers[place].input_layernorm.weight.data for place in (0, 1))
    kept = first.clone()
    first.copy_(second)
    second.copy_(kept)


class StaleEngine(server.LLMServer):
    """An engine whose updates have faults."""

    def update(self, version, folder, is_adapter):
        fault = Path(os.environ["STALE"]).read_text()
        self.version = version
        reset = True
        if fault in ("no load", "no adapter"):
            return {"version": version}
        if fault == "same id":
            self.llm.llm_engine.add_lora(self.adapter)
        elif fault == "in place":
            self._reload_in_place(folder)
            reset = False
        elif fault == "tied head":
            self.llm.collective_rpc("reload_weights", kwargs={"weights_path": folder})
        elif fault == "wrong tensor":
            self.llm.collective_rpc(exchange, args=(folder,))
        elif fault == "prefix cache":
            self.llm.collective_rpc(server.load_weights, args=(folder,))
            reset = False
        else:
            return super().update(version, folder, is_adapter)
        if reset:
            self.llm.reset_prefix_cache()
        return {"version": version}

    def _reload_in_place(self, folder):
        """Load another adapter under the name, the number and the folder of the first."""
        from vllm.lora.request import LoRARequest

        known = self.adapter
        again = LoRARequest(known.lora_name, known.lora_int_id, folder, load_inplace=True)
        self.llm.llm_engine.add_lora(again)


if __name__ == "__main__":
    server.serve(StaleEngine(), int(sys.argv[1]))

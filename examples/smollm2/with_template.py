"""Save a model with another chat template: python examples/smollm2/with_template.py MODEL TEMPLATE FOLDER

A model whose template writes no tools into the prompt, and no calls, needs one that does, and then examples of calls.
"""

import sys
from pathlib import Path

import outdo

if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("usage: python examples/smollm2/with_template.py MODEL TEMPLATE FOLDER")
    model, template, folder = sys.argv[1:]
    policy = outdo.Policy.load(model)
    policy.tokenizer.chat_template = Path(template).read_text(encoding="utf-8")
    policy.save(folder)

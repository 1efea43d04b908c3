"""The settings of the first job, and what they were chosen by.

With a share of careless demonstrations the model learns the method and the slips alike: sampled, it is right less than
half of the time, although its likeliest answer mostly is. Reinforcement removes the slips. A clean warm start of the
same length lands anywhere between 5 and 80 %, by the seed.
"""

from outdo.optimiser import OptimiserSettings

QUESTIONS = 6000  # to learn from and to train on
CARELESS = 0.5  # share of the demonstrations with a slip

WARM_START_STEPS = 200
WARM_START_PAIRS = 64  # per step
WARM_START = OptimiserSettings(lr=2e-3, warmup=10, schedule="linear", total=WARM_START_STEPS, beta2=0.99)

RECIPE = """\
# What `outdo quickstart` trains by. Change a line, and: outdo train THIS_FILE
model = "{model}"
seed = {seed}
steps = 120
rewards = "exact"             # the text after `#` has to be the answer

[data]
path = "{questions}"
eval_path = "{held_out}"

[sampling]
max_tokens = 48

[train]
prompts = 32
group = 8
objective = {{name = "grpo", beta = 0.0}}

[optim]
lr = 2e-4
warmup = 10
schedule = "linear"

[eval]
rows = 512
samples = 4

[checkpoint]
every = 40
"""

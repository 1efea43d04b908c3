from run_cases import *
import time
def test_a(home, straight, six_steps):
    print((home/"straight.log").read_text())
    print(metrics(straight)[-1], saved(straight))
    print(metrics(straight)[2]["seconds"])
    t=time.time(); print(outdo_(home, "train", "recipe.toml", "run=./x", "steps=3")); print(time.time()-t)
    assert 0

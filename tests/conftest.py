"""For every test: one thread, for what is tested is small, and a second one waits longer than it helps."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is first imported, here and in every command started

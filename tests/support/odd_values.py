"""Values that a setting of a configuration may have, and most settings should not."""

import math
from typing import Any

ODD: tuple[Any, ...] = (
    *(None, "", "x", 'a"\n\\', True, 0, -1, 10**30, 1e-300, math.inf, math.nan, [], [1, "a"], {"a": 1}),
    *(False, 2, 4096, 0.5, "other", "User: {}", [0.8, 0.9], ["q_proj"], "a/b"),
    "math.parquet",
)

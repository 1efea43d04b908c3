"""How threads of OpenMP wait for each other: briefly at full speed, and then asleep.

torch's threads meet after every operation. By default a thread that waits for the others repeats a loop for some
milliseconds, so that it goes on at once. As soon as another program wants a processor, that loop takes it away from the
very thread that is waited for. Sampling for 32 rows of SmolLM2-135M, two threads on two cores, milliseconds for each
token:

    GOMP_SPINCOUNT            AMD, AVX2, alone   beside a busy process   Intel, AVX-512, alone   beside a busy process
    unset                     302                972 to 1,054            124                     1,792
    10,000                    -                  -                       127                     303
    3,000                     261                492 to 512              135 to 137              220
    1,000                     -                  -                       142 to 145              203
    500                       292                430 to 445              -                       -
    OMP_WAIT_POLICY=PASSIVE   290                407                     -                       -

It decides when a thread goes on, not what it computes.
"""

import os

TURNS = "3000"
"""Turns of the loop: beside a busy process, a token takes less than twice its time."""


def wait_asleep() -> None:
    """Let the threads of this process, and those of processes that it starts, fall asleep soon when they wait.

    It has an effect only before torch is imported, and none where the user has chosen, by OMP_WAIT_POLICY or
    GOMP_SPINCOUNT. Only GNU's OpenMP, which torch for Linux comes with, reads it.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", TURNS)

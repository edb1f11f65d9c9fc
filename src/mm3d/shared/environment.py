"""What torch reads from the environment, once, when it is imported."""

import os

# Waiting threads must sleep: when another program used one of the cores, spinning threads took 40 times as long.
# Large tensors use large pages: with small ones, a fifth of the time of a full-size backbone went into getting memory.
# On a GPU of Apple, what torch cannot compute there is computed on the CPU.
FOR_TORCH = {"OMP_WAIT_POLICY": "PASSIVE", "THP_MEM_ALLOC_ENABLE": "1", "PYTORCH_ENABLE_MPS_FALLBACK": "1"}


def prepare_torch() -> None:
    """Set what the user did not set. It must come before torch is imported."""
    os.environ.update(FOR_TORCH | os.environ)

"""What a round of SmolLM2-135M-Instruct with its EAGLE-3 head costs: by batch and draft length.

python -m eval.calibrate --config=configs/calibrate_smollm2.py --workdir=runs/calibrate

Takes two minutes on two CPU cores (a batch size half a minute, most of it compilation). Expected
there at batch 1: 23 ms for a round without a draft, 32 ms for one of three tokens; at batch 8 draft
tokens cost nearly what tokens of the target do, and nothing can be gained.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.target = "smollm2"  # a folder, a hub id, or the default model
    config.head = "checkpoints/smollm2-135m-eagle3"  # "": prompt lookup
    config.k = 3
    config.batches = (1, 4, 8)
    config.contexts = (128, 1024)
    config.temperature = 0.0
    config.fresh = False  # True: not from the table on disk
    config.dtype = ""  # the device's: float32 on CPU, bfloat16 on accelerators
    return config.lock()

"""Where speculation stops paying for SmolLM2-135M-Instruct: batches of 1 to 32, two contexts.

python -m eval.batch_sweep --config=configs/batch_sweep_smollm2.py --workdir=runs/batch_sweep

Takes a quarter of an hour on two CPU cores, a few minutes less where the costs are on disk from an
earlier run. A look in two minutes:

    --config.batches="(1, 8)" --config.contexts="(64,)" --config.repeats=2 --config.min_prompts=2

By acceptance rate, of any head; and of a model that is not there, for an accelerator:

    --synthetic_alpha=0.5,0.7,0.9
    --random_weights=llama3-8b --config.ks="(1, 3, 5)"
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.target = "smollm2"  # a folder, a hub id, or the default model
    config.head = "checkpoints/smollm2-135m-eagle3"  # "": a random one, for synthetic acceptance
    config.random_weights = ""  # a shape of eval/shapes.py, instead of target and head
    config.synthetic_alpha = ()  # acceptance rates; (): verify
    config.ks = (1, 3)  # fixed draft lengths; the last is also the most of adaptive drafts
    config.batches = (1, 2, 4, 8, 16, 32)
    config.contexts = (64, 256)  # tokens of each prompt
    config.max_new_tokens = 24
    config.repeats = 5
    config.min_prompts = 8  # small batches are repeated until there were so many
    config.temperature = 0.0
    config.verifier = "block"  # at temperatures above 0
    config.prompts = ""  # the built-in set
    config.fresh = False  # True: calibrate again, not from the table on disk
    config.dtype = ""  # the device's: float32 on CPU, bfloat16 on accelerators
    config.seed = 0
    return config.lock()

"""Draft heads of SmolLM2-135M-Instruct: acceptance by position, rank and kind of prompt.

python -m eval.heads --config=configs/heads_smollm2.py --workdir=runs/heads --config.head=FOLDER

Takes about two minutes on two cores with the built-in prompts.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.target = "smollm2"  # a folder, a hub id, or the default model
    config.head = ""  # the folder of an EAGLE head or of Medusa heads, such as runs/eagle3/best
    config.k = 4  # at most one for each Medusa head
    config.prompts = ""  # a prompt file; "": the built-in set
    config.prompts_per_category = 0  # the first so many; 0: all
    config.max_new_tokens = 128
    config.batch = 8
    config.seed = 0
    return config.lock()

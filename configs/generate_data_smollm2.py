"""Training data: SmolLM2-135M-Instruct's own answers to the built-in prompts.

python -m scripts.generate_data --config=configs/generate_data_smollm2.py --workdir=runs/data

Goes on where it was stopped. 4,000 answers are about 0.6 million tokens: an hour on two idle cores
(an estimate: 85 to 110 ms a round of 32 rows, and as much for every 64 tokens of a prompt).
"""

import ml_collections
from ml_collections import config_dict


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.target = "smollm2"  # a folder, a hub id, or the default model
    config.prompts = ""  # a .jsonl file or a data set on the hub; "": the built-in prompts
    config.responses = ""  # a .jsonl file of ready answers, which are only tokenised
    config.count = 4_000  # conversations; 0: all of a file
    config.temperatures = (0.0, 0.8)  # in turn
    # Filters of the answers above temperature 0; None: none.
    config.top_k = config_dict.placeholder(int)
    config.top_p = config_dict.placeholder(float)
    config.min_p = config_dict.placeholder(float)
    config.max_new_tokens = 288
    config.max_length = 1_024  # longer prompts are left out
    config.batch = 32
    config.rounds = 64
    config.shard_tokens = 4_000_000
    config.seed = 0
    config.dtype = ""  # the device's: float32 on CPU, bfloat16 on accelerators
    config.smoke = False  # 8 conversations, 24 new tokens: under a minute
    return config.lock()

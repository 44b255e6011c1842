"""The cost of each rule at SmolLM2's vocabulary.

python -m eval.rule_cost --config=configs/rule_cost.py --workdir=runs/rule_cost

Takes 15 s. Expected on two CPU cores, at best: 0.2 ms a round for greedy, 0.6 to 0.9 for token,
block and the lossy rules, 2 to 4 for match and coupled, which draw noise for every node and id.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.vocab = 49_152
    config.k = 5
    config.batch = 1
    config.repeats = 500
    config.seed = 0
    return config.lock()

"""The cost of each rule at SmolLM2's vocabulary.

python -m eval.rule_cost --config=configs/rule_cost.py --workdir=runs/rule_cost

Takes 10 s. Expected on two CPU cores, at best: 0.3 ms a round for greedy, 0.7 to 1.0 for token,
block and the lossy rules, 3.5 for match and coupled, which draw noise for every node and id.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.vocab = 49_152
    config.k = 5
    config.batch = 1
    config.repeats = 200
    config.seed = 0
    return config.lock()

"""The cost of each rule at SmolLM2's vocabulary.

python -m eval.rule_cost --config=configs/rule_cost.py --workdir=runs/rule_cost

Takes half a minute. Expected on two CPU cores: about a millisecond a round; match and coupled,
which draw noise for every node and id, several.
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

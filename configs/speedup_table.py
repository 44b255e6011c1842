"""What the formulas promise, for a cheap (c = 0.05) and a dear draft model (c = 0.2).

python -m eval.speedup_table --config=configs/speedup_table.py --workdir=runs/speedup_table

Takes 2 s. Expected: at alpha = 0.8 the best is 3.09x (k = 8) with the cheap one, 1.87x (k = 4)
with the dear one. With a measured pass-cost curve, such as

    --config.pass_widths="(1, 2, 5, 8, 16)" --config.pass_costs="(1.0, 1.15, 1.24, 1.5, 2.15)"
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.costs = (0.05, 0.2)
    config.alphas = (0.5, 0.6, 0.7, 0.8, 0.9)
    config.ks = (1, 2, 3, 4, 5, 6, 8)
    config.max_k = 20
    config.pass_widths = ()  # (): a pass costs the same at every width
    config.pass_costs = ()
    return config.lock()

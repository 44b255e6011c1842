"""Acceptance and tokens per target pass on the toy language, by draft length.

python -m eval.acceptance --config=configs/acceptance.py --workdir=runs/acceptance

Takes 22 s on two cores. Expected: alpha of 0.779 to 0.784; 1.78 tokens a pass at k=1, 4.06 at k=8;
within 0.6% of the exact figures beside them, and of the formula.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.ks = (1, 2, 3, 4, 6, 8)
    config.batch = 500
    config.rounds = 100  # a row: 50,000 in all
    config.seed = 0
    return config.lock()

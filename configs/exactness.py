"""Every rule against the exact probabilities of the toy language.

python -m eval.exactness --config=configs/exactness.py --workdir=runs/exactness

Takes a minute on two cores. Expected: total variation below 0.01 at 400,000 samples for every
lossless rule (perfect samples show about 0.008), 0.107 for the wrong example.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.rules = (
        "plain", "match", "coupled", "token", "block", "typical", "relaxed", "wrong",
    )  # fmt: skip
    config.sizes = (1_000, 10_000, 100_000, 400_000)
    config.k = 3
    config.batch = 50_000
    config.seed = 0
    return config.lock()

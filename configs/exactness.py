"""Every rule against the exact probabilities of the toy language.

python -m eval.exactness --config=configs/exactness.py --workdir=runs/exactness

Takes 35 s of processor time; a minute on two cores that had other work to do. Expected: total
variation of 0.0075 to 0.0088 at 400,000 samples for the lossless rules (perfect samples show about
0.008), 0.106 for the wrong example, 0.25 and 0.32 for the lossy rules.
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

"""Greedy decoding and coupled sampling of SmolLM2 against plain decoding, token for token.

python -m eval.determinism --config=configs/determinism.py --workdir=runs/determinism

Takes 15 minutes of processor time, most of it compilation (24 minutes on two cores beside
three other jobs). Expected: every output identical, but for first differences at near-ties (margins
below 1e-3).
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.model = "smollm2"  # a folder, a hub id, or the default model
    config.prompts = 6  # in one batch
    config.alone = 2  # so many of them alone too
    config.max_new_tokens = 64
    config.temperatures = (0.0, 1.0)
    config.ngram_ks = (4, 10)
    config.model_ks = (2, 5)
    config.noise = 0.1  # share of noise in the draft model's weights, so that it errs
    config.seed = 0
    return config.lock()

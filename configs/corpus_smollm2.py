"""The corpus table of SmolLM2-135M-Instruct's own text.

python -m scripts.build_corpus --config=configs/corpus_smollm2.py --workdir=runs/corpus
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.target = "smollm2"  # a folder, a hub id, or the default model
    config.data = ("runs/data",)  # folders of token shards, from scripts/generate_data.py
    config.documents = 0  # of each shard; 0: all
    config.orders = 5  # the longest context, in tokens
    config.ranks = 4  # continuations of a context
    config.min_count = 1
    config.megabytes = 8.0
    config.held_out = 0.03
    config.seed = 0
    return config.lock()

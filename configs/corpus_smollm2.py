"""The corpus table of SmolLM2-135M-Instruct that is in checkpoints/smollm2-135m-corpus.

python -m scripts.build_corpus --config=configs/corpus_smollm2.py --workdir=runs/corpus
    --config.data="('runs/data', ...)"

Takes 15 seconds for 0.75M tokens of answers, those of configs/eagle3_smollm2.py. Result: 297,608
contexts; of held-out answers the longest known context says the next token in 32% (its card says
more).
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
    config.megabytes = 4.0  # docs/drafters.md says what size is worth
    config.held_out = 0.03
    config.seed = 0
    return config.lock()

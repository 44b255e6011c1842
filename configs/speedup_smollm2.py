"""The main job: SmolLM2-135M-Instruct, plain against every drafter there is for it.

make speedup, or
python -m eval.speedup --config=configs/speedup_smollm2.py --workdir=runs/speedup

Takes ten minutes on two CPU cores. Expected there, greedy, over all prompts: prompt lookup 1.1 to
1.2 times as fast as plain decoding (3.5 in code edits, 2 in extraction, 1.0 in stories), suffix
decoding 1.2, the corpus table 1.1, Medusa 1.05, the draft model 1.0, EAGLE-3 1.1 (1.5 in
arithmetic), the first that is sure among lookup, corpus and EAGLE-3 1.3, the same by measured cost
1.2 to 1.3; every greedy output that of plain decoding. Few modes, and more of each:

    --config.modes="('plain', 'eagle')" --config.max_new_tokens=128
"""

import ml_collections
from ml_collections import config_dict


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.target = "smollm2"  # a folder, a hub id, or the default model
    config.draft = "checkpoints/smollm2-135m-draft"  # "": a second copy of the target, as a check
    # Names out of eval/modes.py.
    config.modes = (
        "plain", "prompt_lookup", "suffix", "corpus", "medusa", "draft_model", "eagle", "first_of",
        "adaptive",
    )  # fmt: skip
    config.temperatures = (0.0, 1.0)
    config.sampled_modes = ("adaptive",)  # above temperature 0, to save time; (): all
    config.verifier = "block"  # at temperatures above 0
    config.k = 5  # most draft tokens of the draft model
    config.draft_min_prob = 0.25  # it goes on while a draft is at least this probable

    config.ngram = ngram = ml_collections.ConfigDict()
    ngram.k = 10
    ngram.n_max = 8
    ngram.n_min = 2
    ngram.k_short = 4  # after a match of fewer than n_max tokens
    ngram.match = "recent"

    config.short_lookup = short = ml_collections.ConfigDict()  # the last in first_of, if anywhere
    short.k = 4
    short.n_max = 1
    short.n_min = 1
    short.k_short = 4
    short.match = "recent"

    config.eagle = eagle = ml_collections.ConfigDict()
    eagle.folder = "checkpoints/smollm2-135m-eagle3"
    eagle.k = 3
    eagle.min_prob = 0.25
    eagle.max_entropy = 0.0  # in nats; 0: no such threshold

    config.medusa = medusa = ml_collections.ConfigDict()
    medusa.folder = "checkpoints/smollm2-135m-medusa"
    medusa.k = 2
    medusa.min_prob = 0.25
    medusa.max_entropy = 0.0

    config.corpus = corpus = ml_collections.ConfigDict()
    corpus.folder = "checkpoints/smollm2-135m-corpus"
    corpus.k = 4
    corpus.min_prob = 0.15  # a draft goes on as long as it is at least this probable
    corpus.min_first = 0.0
    corpus.min_count = 1
    corpus.sampled = True  # above temperature 0

    config.suffix = suffix = ml_collections.ConfigDict()
    suffix.k = 4
    suffix.n_max = 8
    suffix.n_min = 2
    suffix.growth = 2
    suffix.min_prob = 0.2
    suffix.capacity = 2**15  # tokens of earlier prompts' outputs

    config.first_of = in_turn = ml_collections.ConfigDict()
    in_turn.modes = ("prompt_lookup", "corpus", "eagle", "short_lookup")
    in_turn.n_min = 3  # of prompt lookup; what is shorter goes to the next
    in_turn.min_first = 0.45  # what the corpus is less sure of, likewise

    config.adaptive = adaptive = ml_collections.ConfigDict()
    adaptive.modes = ("first_of",)  # asked in turn, each for as much as pays
    adaptive.acceptance = 0.6  # of a draft token, before it has seen any
    adaptive.fresh = False  # True: calibrate again, not from the table on disk

    config.max_new_tokens = 26
    config.repeats = 1
    config.article_new_tokens = 64  # the two prompts of the project's article
    config.article_repeats = 1
    config.sampled_per_category = 1  # 0: all
    config.copy_prompts = 1

    config.prompts = ""  # the built-in set
    config.turns = 1
    config.seed = 0
    config.dtype = ""  # the device's: float32 on CPU, bfloat16 on accelerators
    config.synthetic_alpha = config_dict.placeholder(float)
    return config.lock()

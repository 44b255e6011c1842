"""Llama-3.1-8B-Instruct with Llama-3.2-1B-Instruct as draft.

python -m eval.speedup --config=configs/speedup_llama3.py --workdir=runs/speedup_llama3

Needs an accelerator with 24 GB, 19 GB of disk, and an account that accepted both licences
(huggingface.co/meta-llama/Llama-3.1-8B-Instruct and .../Llama-3.2-1B-Instruct), its token in
HF_TOKEN. Not run by `make`. Expected: minutes once the models are there; a draft step costs about
0.15 of a target pass by the bytes of the weights, which allows up to 2 times at 0.8 acceptance.
"""

import ml_collections

from configs import speedup_smollm2


def get_config() -> ml_collections.ConfigDict:
    config = speedup_smollm2.get_config()
    config.modes = ("plain", "prompt_lookup", "draft_model")
    config.target = "meta-llama/Llama-3.1-8B-Instruct"
    config.draft = "meta-llama/Llama-3.2-1B-Instruct"
    config.draft_min_prob = 0.0
    config.sampled_modes = ()
    # An accelerator has time for more of everything.
    config.max_new_tokens = 192
    config.repeats = 3
    config.sampled_per_category = 0
    return config

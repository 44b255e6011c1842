"""SmolLM2-360M-Instruct with SmolLM2-135M-Instruct as draft: the pair of the project's article.

python -m eval.speedup --config=configs/speedup_smollm2_360m.py --workdir=runs/speedup_360m

Downloads 1 GB from the Hugging Face hub (HF_HOME says where to). Not run by `make`. Expected on a
GPU: minutes, and a warning that passes this small are launch-bound; on two CPU cores: about half an
hour (an estimate), and the most from prompt lookup where the answer copies the prompt.
"""

import ml_collections

from configs import speedup_smollm2


def get_config() -> ml_collections.ConfigDict:
    config = speedup_smollm2.get_config()
    config.modes = ("plain", "prompt_lookup", "draft_model")
    config.target = "HuggingFaceTB/SmolLM2-360M-Instruct"
    config.draft = "HuggingFaceTB/SmolLM2-135M-Instruct"
    config.draft_min_prob = 0.0
    config.sampled_modes = ()
    return config

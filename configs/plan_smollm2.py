"""Whether an EAGLE head pays for SmolLM2-135M, by the device's bandwidth and arithmetic.

python -m eval.plan --config=configs/plan_smollm2.py --workdir=runs/plan

Takes seconds. Expected on two CPU cores: it pays from alpha 0.1 on in one row, from 0.6 to 0.8 on
in 16. That is a roofline, the best case; with measured costs, --config.table=FILE
(specjax.calibrate gives a table, its save() writes it), it is what to expect. Other targets and
devices, such as an EAGLE-3 head for Llama-3.1-8B:

    --config.target=llama3-8b --config.draft_vocab=32000 --config.device=h100
"""

import ml_collections
from ml_collections import config_dict


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.target = "smollm2"  # a shape of eval/shapes.py, a folder or a hub id
    config.dtype = ""
    config.device = ""  # this one; or a datasheet, such as h100, l4, tpu-v5e
    config.efficiency = 0.7  # of what a datasheet promises
    config.table = ""  # a cost table's file, of this target and device; "": a roofline
    config.draft_params = config_dict.placeholder(float)  # millions; None: of an EAGLE-3 head
    config.draft_vocab = 8192  # of that head
    config.draft_layers = 1
    config.draft_cost = config_dict.placeholder(float)  # None: from the table, or the above
    config.batches = (1, 2, 4, 8, 16, 32, 64)
    config.contexts = (1024,)
    config.alphas = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    config.max_k = 8
    return config.lock()

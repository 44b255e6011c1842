"""An EAGLE-3 head for SmolLM2-135M-Instruct (none is shipped yet).

python -m train.eagle_head --config=configs/eagle3_smollm2.py --workdir=runs/eagle3

Not run to its end yet. On two cores that had other work, with 0.5M tokens of data: top-1 agreement
at position one .25, .33 and .39 after 40, 80 and 160 steps (19 minutes); from there, with
--config.steps=3 --config.start=FOLDER --config.loop.lr=0.01, accept length at k=3 from .41 to .47
in 30 steps. Features take 4.6 kB a token on disk.
"""

import ml_collections

from train import loop


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.target = "smollm2"  # a folder, a hub id, or the default model
    config.data = "runs/data"  # token shards, from scripts/generate_data.py
    config.version = 3
    config.layers = (10, 20, 29)
    config.draft_vocab_size = 8192  # 97% of what the target says
    config.own_head = False  # the target's rows, which are not shipped
    config.ffn_width = 0  # the target's
    config.norm_features = False
    config.norm_output = False
    config.norm_before_residual = False
    config.start = "target"  # or "random", or the folder of a head to go on from

    config.features = "cached"  # or "online"
    config.feature_store = ""  # in the workdir
    config.supervise = "answers"  # or "all": prompts too
    config.length = 768
    config.batch = 4
    config.held_out = 0.03
    config.held_out_rows = 16

    config.steps = 1  # training-time test
    config.eval_steps = 3
    config.loss = "ce"
    config.decay = 0.8
    config.feature_weight = 0.0
    config.seed = 0
    config.smoke = False

    config.mesh = ""  # "data:8" splits each batch over 8 devices
    config.loop = loop.defaults()
    config.loop.mesh = config.get_ref("mesh")
    config.loop.optimizer = "muon"
    config.loop.lr = 0.02
    config.loop.adam_lr = 1e-3
    config.loop.adam_names = ("head",)
    config.loop.steps = 600
    config.loop.warmup_steps = 20
    config.loop.eval_every = 100
    config.loop.checkpoint_every = 200
    return config.lock()

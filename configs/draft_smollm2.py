"""A draft model for SmolLM2-135M-Instruct, distilled from it (none is shipped yet).

python -m train.draft_model --config=configs/draft_smollm2.py --workdir=runs/draft

Two blocks of the target's, 7.1M parameters, 14.2 MB in bfloat16: its embedding and output rows are
the target's own, and not shipped. The first block is what turns tokens into what the others read,
the last one what turns that into words. Not run yet. With a store of features that was made for
configs/eagle3_smollm2.py, say --config.feature_store=runs/eagle3/features
--config.cached_layers="(10, 20, 29, -1)".
"""

import ml_collections

from train import loop


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.target = "smollm2"  # a folder, a hub id, or the default model
    config.data = "runs/data"  # token shards, from scripts/generate_data.py
    config.layers = (0, 29)  # the target's blocks it begins as
    config.draft_vocab_size = 8192  # 97% of what the target says
    config.start = "target"  # or "random", or the folder of a draft model to go on from

    config.features = "cached"  # or "online"
    config.feature_store = ""  # in the workdir
    config.cached_layers = (-1,)  # the streams in the store; the last one is read
    config.supervise = "answers"  # or "all": prompts too
    config.length = 768
    config.batch = 4
    config.held_out = 0.03
    config.held_out_rows = 16

    config.loss = "kl"
    config.positions = 3  # drafts that accept_length is about
    config.seed = 0
    config.smoke = False

    config.mesh = ""  # "data:8" splits each batch over 8 devices
    config.loop = loop.defaults()
    config.loop.mesh = config.get_ref("mesh")
    config.loop.optimizer = "muon"
    config.loop.lr = 0.02
    config.loop.adam_lr = 1e-3
    config.loop.steps = 600
    config.loop.warmup_steps = 20
    config.loop.eval_every = 100
    config.loop.checkpoint_every = 200
    return config.lock()

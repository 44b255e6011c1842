"""The Medusa heads for SmolLM2-135M-Instruct that are in checkpoints/smollm2-135m-medusa.

python -m train.medusa_heads --config=configs/medusa_smollm2.py --workdir=runs/medusa
    --config.data=runs/data

The shipped ones were made in two runs, on two halves of their data (A: 1,600 conversations, B:
2,076; a folder and a feature store for each):

    B  --config.loop.steps=300
    A  --config.start=B/best --config.loop.lr=0.014 --config.loop.final_lr=0.02
       --config.loop.warmup_steps=5 --config.loop.steps=260

37 minutes on two CPU cores that had other work. Results: top-1 agreement .37, .21, .14 and .12 of
heads 1 to 4 on held-out answers, 1.55 tokens a pass in greedy chains of four there (its card says
more). The cache of an EAGLE head's features, made from the same data and length, serves here too:

    --config.feature_store=runs/eagle3/features --config.cached_layers="(10, 20, 29, -1)"
"""

import ml_collections

from train import loop


def get_config() -> ml_collections.ConfigDict:
    config = ml_collections.ConfigDict()
    config.target = "smollm2"  # a folder, a hub id, or the default model
    config.data = "runs/data"  # token shards, from scripts/generate_data.py
    config.num_heads = 4
    config.num_blocks = 3  # residual blocks a head
    config.draft_vocab_size = 8192  # 97% of what the target says
    config.projection = "target"  # its rows, not shipped; an own matrix is 28M parameters a head
    config.tree = ()  # rank paths, for a token tree; a chain needs none
    config.start = "target"  # or the folder of heads to go on from

    config.features = "cached"  # or "online"
    config.feature_store = ""  # in the workdir
    config.cached_layers = (-1,)  # what is in it; the heads read the last
    config.supervise = "all"  # prompts too; or "answers"
    config.length = 768
    config.batch = 4
    config.held_out = 0.03
    config.held_out_rows = 16

    config.loss = "ce"
    config.decay = 0.8
    config.seed = 0
    config.smoke = False

    config.mesh = ""  # "data:8": over 8 devices; config.batch must be a multiple of 8
    config.loop = loop.defaults()
    config.loop.mesh = config.get_ref("mesh")
    config.loop.optimizer = "muon"
    config.loop.lr = 0.02
    config.loop.adam_lr = 1e-3
    config.loop.steps = 300
    config.loop.warmup_steps = 20
    config.loop.eval_every = 50
    config.loop.checkpoint_every = 100
    return config.lock()

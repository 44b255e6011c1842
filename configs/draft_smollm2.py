"""The draft model for SmolLM2-135M-Instruct that is in checkpoints/smollm2-135m-draft.

python -m train.draft_model --config=configs/draft_smollm2.py --workdir=runs/draft
    --config.data=runs/data

Two blocks of the target's, 7.1M parameters, 14.2 MB in bfloat16: its embedding and output rows are
the target's own, and not shipped. The first block is what turns tokens into what the others read,
the last one what turns that into words. The shipped one was made in two runs, on two halves of its
data (A: 1,600 conversations, B: 2,076; a folder and a feature store for each):

    B  --config.loop.steps=280 --config.loop.final_lr=0.4
    A  --config.start=B/best --config.loop.lr=0.009 --config.loop.final_lr=0.02
       --config.loop.warmup_steps=5 --config.loop.steps=300      (best/, of step 225)

43 minutes on two CPU cores that had other work. Results: top-1 agreement .40 on held-out answers,
1.69 tokens a pass at k = 3 in greedy simulation (its card says more). The cache of an EAGLE head's
features, made from the same data and length, serves here too:

    --config.feature_store=runs/eagle3/features --config.cached_layers="(10, 20, 29, -1)"
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
    config.supervise = "all"  # prompts too; or "answers"
    config.length = 768
    config.batch = 4
    config.held_out = 0.03
    config.held_out_rows = 16

    config.loss = "kl"
    config.positions = 3  # drafts that accept_length is about
    config.seed = 0
    config.smoke = False

    config.mesh = ""  # "data:8": over 8 devices; config.batch must be a multiple of 8
    config.loop = loop.defaults()
    config.loop.mesh = config.get_ref("mesh")
    config.loop.optimizer = "muon"
    config.loop.lr = 0.02
    config.loop.adam_lr = 1e-3
    config.loop.steps = 280
    config.loop.warmup_steps = 20
    config.loop.eval_every = 70
    config.loop.checkpoint_every = 140
    return config.lock()

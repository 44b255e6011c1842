"""The settings of the training loop, and their defaults."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

OPTIMIZERS = ("adamw", "muon")
DTYPES = ("", "float32", "bfloat16")
SMOKE_STEPS = 6


@dataclasses.dataclass(frozen=True)
class LoopSettings:
    """What a run of the loop does; a config embeds ``defaults()`` as ``config.loop``.

    Attributes:
      steps: optimizer steps of the whole run; a resumed run counts the steps before it.
      accumulation: microbatches a step's batch is cut into; must divide its first axis.
      optimizer: "adamw", or "muon" (matrices by Muon, everything else by AdamW).
      lr: peak learning rate; with "muon" the matrices'.
      adam_lr: peak learning rate of what AdamW updates beside Muon.
      adam_names: with "muon", matrices whose path holds one of these are AdamW's all the same:
        embeddings and output matrices usually are, which the default names in every head here.
      muon_rms: 0 scales Muon's update by ``sqrt(max(1, out / in))``; 0.2 makes it as large as
        AdamW's update usually is, so that AdamW's learning rates carry over (arXiv:2502.16982).
      warmup_steps: steps until the peak; the first step already moves.
      final_lr: what the cosine ends at, as a fraction of the peak.
      weight_decay: decoupled (times the learning rate), of matrices only.
      b1: AdamW's decay of the first moment.
      b2: AdamW's decay of the second moment.
      eps: AdamW's.
      clip_norm: the gradient's global norm is cut to this; 0: never.
      dtype: what the loss is computed in ("float32", "bfloat16"); master weights and optimizer
        state are float32 always. "": float32 on CPU, bfloat16 on accelerators.
      mesh: "" for one device, or "data:N": the batch is split over N devices (of all processes).
      eval_every: steps between evaluations on held-out batches; 0: only at the end.
      checkpoint_every: steps between checkpoints; 0: only by time and at the end.
      checkpoint_seconds: seconds between checkpoints; 0: only by steps.
      keep_last: how many of the newest checkpoints stay, besides the best one.
      log_every: steps between lines of metrics.jsonl, each the mean of these steps.
      max_seconds: stop after so many seconds, saved and resumable; 0: never. Time counts from
        this process's first step.
      profile: "START:N" traces N steps from step START on into the workdir's profile/; "": none.
      seed: of the initial weights and of all noise.
    """

    steps: int = 1000
    accumulation: int = 1
    optimizer: str = "adamw"
    lr: float = 3e-4
    adam_lr: float = 3e-4
    adam_names: tuple[str, ...] = ("embed", "head", "projection")
    muon_rms: float = 0.0
    warmup_steps: int = 50
    final_lr: float = 0.1
    weight_decay: float = 0.01
    b1: float = 0.9
    b2: float = 0.95
    eps: float = 1e-8
    clip_norm: float = 1.0
    dtype: str = ""
    mesh: str = ""
    eval_every: int = 200
    checkpoint_every: int = 200
    checkpoint_seconds: float = 300.0
    keep_last: int = 2
    log_every: int = 10
    max_seconds: float = 0.0
    profile: str = ""
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            whole = isinstance(getattr(type(self), name), int)
            kinds = (int,) if whole else (int, float)
            finite = isinstance(value, kinds) and not isinstance(value, bool)
            if not finite or not math.isfinite(value) or value < least:
                what = "an integer" if whole else "a number"
                raise ValueError(f"loop.{name}={value!r}; it must be {what} of at least {least}")
        if self.lr == 0:
            raise ValueError("loop.lr=0 trains nothing; it must be above 0, such as 3e-4")
        for name in ("final_lr", "b1", "b2"):
            value = getattr(self, name)
            if value > 1 or (value == 1 and name != "final_lr"):
                raise ValueError(f"loop.{name}={value!r}; it is a fraction: at least 0, below 1")
        for name, allowed in (("optimizer", OPTIMIZERS), ("dtype", DTYPES)):
            if getattr(self, name) not in allowed:
                given, known = getattr(self, name), " or ".join(map(repr, allowed))
                raise ValueError(f"loop.{name}={given!r}; it must be {known}")
        self.profile_range()
        self.mesh_size()

    def profile_range(self) -> range:
        """The steps to trace; empty for none."""
        if not self.profile:
            return range(0)
        start, colon, count = self.profile.partition(":")
        if not (colon and start.isdigit() and count.isdigit() and int(count)):
            raise ValueError(
                f"profile={self.profile!r}; it must be START:N, such as 20:5 (5 steps from 20 on)"
            )
        return range(int(start), int(start) + int(count))

    def mesh_size(self) -> int:
        """How many devices the batch is split over."""
        if not self.mesh:
            return 1
        axis, _, size = self.mesh.partition(":")
        if axis != "data" or not size.isdigit() or not int(size):
            raise ValueError(f"loop.mesh={self.mesh!r}; it must be data:N, such as data:8, or ''")
        return int(size)


# The least value of each numeric setting.
_LEAST: dict[str, float] = {
    "steps": 1, "accumulation": 1, "warmup_steps": 0, "eval_every": 0, "checkpoint_every": 0,
    "keep_last": 1, "log_every": 1, "seed": 0,
    "lr": 0, "adam_lr": 0, "muon_rms": 0, "final_lr": 0, "weight_decay": 0, "b1": 0, "b2": 0,
    "eps": 0, "clip_norm": 0, "checkpoint_seconds": 0, "max_seconds": 0,
}  # fmt: skip


def defaults() -> ConfigDict:
    """The defaults, for a config to embed: ``config.loop = settings.defaults()``."""
    return ConfigDict(dataclasses.asdict(LoopSettings()))


def smoke(loop: ConfigDict) -> None:
    """Shortens a config's loop, in place, to a run of seconds that still does everything once."""
    loop.update(
        steps=SMOKE_STEPS,
        warmup_steps=2,
        eval_every=3,
        checkpoint_every=3,
        log_every=2,
        checkpoint_seconds=0.0,
    )


def read(config: Mapping[str, Any] | LoopSettings) -> LoopSettings:
    """Settings from a mapping (a ``ConfigDict`` is fine); what isn't given keeps its default.

    Raises:
      ValueError: an unknown key or a value that can't be; names it.
    """
    if isinstance(config, LoopSettings):
        return config
    values = dict(config.items())
    known = [field.name for field in dataclasses.fields(LoopSettings)]
    for key in values:
        if key not in known:
            raise ValueError(f"loop.{key}: there is no such key, only {', '.join(known)}")
    values["adam_names"] = tuple(values.get("adam_names", LoopSettings.adam_names))
    return LoopSettings(**values)


def as_json(s: LoopSettings) -> dict[str, Any]:
    """Settings as they come back from a JSON file."""
    return {name: list(x) if isinstance(x, tuple) else x for name, x in vars(s).items()}


def changed(was: Mapping[str, Any], s: LoopSettings) -> list[tuple[str, Any, Any]]:
    """The settings that decide what is learned and differ: name, then, now.

    Args:
      was: ``as_json`` of earlier ones.
      s: the settings now.
    """
    now = as_json(s)
    return [
        (name, was[name], now[name]) for name in now
        if name in was and was[name] != now[name] and name not in _HARMLESS
    ]  # fmt: skip


# These change when and how a run is watched, not what it learns.
_HARMLESS = (
    "mesh", "eval_every", "checkpoint_every", "checkpoint_seconds", "keep_last", "log_every",
    "max_seconds", "profile",
)  # fmt: skip

"""What a model is made of: a frozen, hashable description read from a Hugging Face config.json."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

# Class defaults of the families where config.json leaves a field out.
_FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "smollm3")
_HINTS = {
    "specjax_student": " (a draft model that borrows its target's embedding is loaded beside it, "
    "with specjax.models.students)",
}
_TIED_BY_DEFAULT = ("smollm3",)
_ROPE_BASE = {"smollm3": 2_000_000.0}  # all others: 10000
_ROPE_TYPES = ("default", "linear", "llama3")
_ROPE_NUMBERS = ("rope_theta", "factor", "low_freq_factor", "high_freq_factor")

# What a field holds, where it is there.
_TYPES: dict[str, tuple[type | tuple[type, ...], str]] = {
    **dict.fromkeys(
        (
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
            "max_position_embeddings",
            "no_rope_layer_interval",
        ),
        (int, "an integer of at least 1"),
    ),
    **dict.fromkeys(("rms_norm_eps", "rope_theta"), ((int, float), "a number above 0")),
    **dict.fromkeys(("layer_types", "no_rope_layers"), ((list, tuple), "a list")),
    **dict.fromkeys(("rope_parameters", "rope_scaling"), (Mapping, "an object")),
}

# Settings of neighbouring families that change the mathematics; legal only at a neutral value.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "quantization_config": (None,),
    "num_experts": (None, 0),
    "num_local_experts": (None, 0),
    "n_routed_experts": (None, 0),
    "partial_rotary_factor": (None, 1.0),
    "attn_logit_softcapping": (None, 0.0),
    "final_logit_softcapping": (None, 0.0),
    "query_pre_attn_scalar": (None,),
    "clip_qkv": (None,),
    "logit_scale": (None, 1.0),
    "logits_scaling": (None, 1.0),
    "embedding_multiplier": (None, 1.0),
    "residual_multiplier": (None, 1.0),
    "attention_multiplier": (None,),
    "cross_attention_layers": (None, []),
}


@dataclasses.dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding.

    Attributes:
      base: wavelength base (``rope_theta``).
      scaling: ``default``, ``linear`` or ``llama3``.
      factor: how far the context was stretched; 1 for ``default``.
      low_freq_factor: ``llama3`` only.
      high_freq_factor: ``llama3`` only.
      original_positions: ``llama3`` only, the context before stretching.
    """

    base: float = 10_000.0
    scaling: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_positions: int = 8192


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """A decoder of the Llama family.

    Attributes:
      vocab_size: V, rows of the embedding.
      width: W, size of the residual stream.
      num_layers: L.
      num_heads: H query heads.
      num_kv_heads: K key-value heads; H is a multiple.
      head_dim: D.
      ffn_width: hidden size of the gated feed-forward block.
      norm_eps: epsilon of every RMS norm.
      rope: rotary embedding.
      rope_layers: which layers rotate (SmolLM3 leaves some out); empty means all.
      qkv_bias: bias on the query, key and value projections.
      out_bias: bias on the attention output projection.
      mlp_bias: bias on all three feed-forward projections.
      qk_norm: RMS norm over D of queries and keys, before the rotation.
      tied: the head is the embedding.
      max_positions: context the model was made for (information only; nothing is clamped to it).
      family: ``model_type`` of the file.
      draft_vocab_size: Vd, columns of the output matrix of a draft model that has fewer than V
        (``models.students``); 0 for every other model.
    """

    vocab_size: int
    width: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_width: int
    norm_eps: float = 1e-6
    rope: RopeConfig = RopeConfig()
    rope_layers: tuple[bool, ...] = ()
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    tied: bool = False
    max_positions: int = 2048
    family: str = "llama"
    draft_vocab_size: int = 0

    def __post_init__(self) -> None:
        for name in (
            "vocab_size",
            "width",
            "num_layers",
            "num_heads",
            "num_kv_heads",
            "head_dim",
            "ffn_width",
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be an int of at least 1, got {value!r}.")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads={self.num_heads} must be a multiple of "
                f"num_kv_heads={self.num_kv_heads}."
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim={self.head_dim} must be even: RoPE rotates pairs.")
        if self.rope_layers and len(self.rope_layers) != self.num_layers:
            raise ValueError(
                f"rope_layers has {len(self.rope_layers)} entries for num_layers={self.num_layers}."
            )

        most = 0 if self.tied else self.vocab_size
        if not 0 <= self.draft_vocab_size <= most:
            raise ValueError(
                f"draft_vocab_size={self.draft_vocab_size}; it must be 0 to vocab_size="
                f"{self.vocab_size}, and 0 where the head is the embedding (tied={self.tied})."
            )

    def rotates(self, layer: int) -> bool:
        """Whether this layer applies RoPE."""
        return self.rope_layers[layer] if self.rope_layers else True

    @property
    def num_logits(self) -> int:
        """Columns of the output matrix: V, or the size of the draft vocabulary."""
        return self.draft_vocab_size or self.vocab_size

    @property
    def num_parameters(self) -> int:
        """Number of weights, a tied head counted once."""
        w, f = self.width, self.ffn_width
        q, kv = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        layer = 2 * w + w * (q + 2 * kv) + q * w + 3 * w * f
        layer += (q + 2 * kv) * self.qkv_bias + w * self.out_bias
        layer += (2 * f + w) * self.mlp_bias + 2 * self.head_dim * self.qk_norm
        head = 0 if self.tied else self.num_logits * w
        return self.num_layers * layer + w + self.vocab_size * w + head

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> ModelConfig:
        """Reads a Hugging Face ``config.json`` (old and transformers 5 spellings).

        Args:
          config: the parsed file.

        Raises:
          ValueError: for a family or a setting this transformer does not implement, or a missing
            or impossible field; the message names the field and its value.
        """
        if not isinstance(config, Mapping):
            raise ValueError(f"this configuration is a {type(config).__name__}, not an object.")
        family = config.get("model_type")
        if family not in _FAMILIES:
            raise ValueError(
                f"model_type={family!r} is not supported; supported: {', '.join(_FAMILIES)}"
                f"{_HINTS.get(str(family), '')}."
            )
        _check_types(config)
        _check_supported(config, family)

        def need(name: str) -> Any:
            if config.get(name) is None:
                raise ValueError(f"config.json has no {name!r}, which a {family} model needs.")
            return config[name]

        heads, width = need("num_attention_heads"), need("hidden_size")
        layers = need("num_hidden_layers")
        head_dim = config.get("head_dim") or (128 if family == "qwen3" else None)
        if head_dim is None:
            if width % heads:
                raise ValueError(
                    f"hidden_size={width} is not a multiple of num_attention_heads={heads} and"
                    " config.json has no head_dim."
                )
            head_dim = width // heads
        reads_bias = family in ("llama", "qwen3", "smollm3")  # the others ignore the field
        attention_bias = bool(config.get("attention_bias", False)) and reads_bias
        return cls(
            vocab_size=need("vocab_size"),
            width=width,
            num_layers=layers,
            num_heads=heads,
            num_kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=head_dim,
            ffn_width=need("intermediate_size"),
            norm_eps=float(config.get("rms_norm_eps") or 1e-6),
            rope=read_rope(config, family),
            rope_layers=_rope_layers(config, layers) if family == "smollm3" else (),
            qkv_bias=attention_bias or family == "qwen2",
            out_bias=attention_bias,
            mlp_bias=bool(config.get("mlp_bias", False)) and family in ("llama", "smollm3"),
            qk_norm=family == "qwen3",
            tied=bool(config.get("tie_word_embeddings", family in _TIED_BY_DEFAULT)),
            max_positions=config.get("max_position_embeddings") or 2048,
            family=family,
        )


def _unsupported(field: str, value: Any, allowed: str) -> ValueError:
    return ValueError(f"{field}={value!r} is not supported; supported: {allowed}.")


def _check_types(config: Mapping[str, Any]) -> None:
    """Raises for a field that holds what it never can."""
    for field, (kind, words) in _TYPES.items():
        value = config.get(field)
        if value is None:
            continue
        fits = isinstance(value, kind) and not isinstance(value, bool)
        if not fits or (isinstance(value, int | float) and not value > 0):
            raise ValueError(f"{field}={value!r}; it must be {words}.")


def _check_supported(config: Mapping[str, Any], family: str) -> None:
    """Raises for settings that would change the mathematics."""
    for field, neutral in _NEUTRAL.items():
        if config.get(field) not in neutral:
            raise _unsupported(field, config[field], " or ".join(map(repr, neutral)))
    for field in ("hidden_act", "hidden_activation"):
        if config.get(field, "silu") not in ("silu", "swish"):
            raise _unsupported(field, config[field], "'silu'")
    for kind in config.get("layer_types") or ():
        if kind != "full_attention":
            raise _unsupported("layer_types", kind, "'full_attention'")
    # Mistral always uses its window, and 4096 is what an absent field means there. The others use
    # it only if use_sliding_window says so. A window no shorter than the context never acts.
    window = config.get("sliding_window", 4096 if family == "mistral" else None)
    in_use = family == "mistral" or config.get("use_sliding_window", False)
    if not in_use or window is None:
        return
    most = config.get("max_position_embeddings")
    if not isinstance(window, int) or most is None or window < most:
        raise _unsupported("sliding_window", window, "null, or at least max_position_embeddings")


def read_rope(config: Mapping[str, Any], family: str) -> RopeConfig:
    """RoPE from ``rope_parameters`` (transformers 5) or ``rope_theta`` and ``rope_scaling``."""
    new, old = config.get("rope_parameters") or {}, config.get("rope_scaling") or {}
    if new and old and any(new[k] != old[k] for k in new.keys() & old.keys()):
        raise ValueError(
            f"rope_parameters={new!r} and rope_scaling={old!r} disagree; keep one of them."
        )
    fields = {**old, **new}
    nested = [k for k, v in fields.items() if isinstance(v, Mapping)]
    if nested:
        raise _unsupported(
            "rope_parameters", {k: fields[k] for k in nested}, "one set for all layers"
        )
    scaling = fields.get("rope_type") or fields.get("type") or "default"
    if scaling not in _ROPE_TYPES:
        raise _unsupported("rope_type", scaling, ", ".join(_ROPE_TYPES))
    if fields.get("partial_rotary_factor") not in (None, 1.0):
        raise _unsupported("partial_rotary_factor", fields["partial_rotary_factor"], "1.0")

    theta, plain = fields.get("rope_theta"), config.get("rope_theta")
    if theta is not None and plain is not None and theta != plain:
        raise ValueError(
            f"rope_theta={plain!r} and rope_parameters['rope_theta']={theta!r} disagree."
        )
    for name in (*_ROPE_NUMBERS, "original_max_position_embeddings"):
        value = fields.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise ValueError(f"{name}={value!r}; it must be a number.")
    base = theta or plain or _ROPE_BASE.get(family, 10_000.0)

    def need(name: str, default: Any = None) -> float:
        value = fields.get(name, default)
        if value is None:
            raise ValueError(f"rope_type={scaling!r} needs {name!r}; got {fields!r}.")
        return value

    if scaling == "default":
        return RopeConfig(base=float(base))
    if scaling == "linear":
        return RopeConfig(base=float(base), scaling=scaling, factor=float(need("factor")))
    return RopeConfig(
        base=float(base),
        scaling=scaling,
        factor=float(need("factor")),
        low_freq_factor=float(need("low_freq_factor")),
        high_freq_factor=float(need("high_freq_factor")),
        original_positions=int(
            need("original_max_position_embeddings", config.get("max_position_embeddings"))
        ),
    )


def _rope_layers(config: Mapping[str, Any], layers: int) -> tuple[bool, ...]:
    """SmolLM3: 1 marks a layer *with* RoPE in ``no_rope_layers``, despite its name."""
    flags = config.get("no_rope_layers")
    if flags is None:
        interval = config.get("no_rope_layer_interval", 4)
        return tuple((layer + 1) % interval != 0 for layer in range(layers))
    if len(flags) < layers:
        raise ValueError(f"no_rope_layers has {len(flags)} entries for num_hidden_layers={layers}.")
    return tuple(bool(flag) for flag in flags[:layers])

"""A head's parameters as decoding wants them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from specjax.models.linear import PANEL, to_panels
from specjax.models.transformer import output_rows

Rows = tuple[Array, Array | None]


def prepared(
    head: Mapping[str, Any], ids: ArrayLike, target_params: Any, *, wants_rows: bool
) -> tuple[dict[str, Array], Array, Rows | None]:
    """A loaded head (``heads.formats.load``) in the target's dtype, and the target's rows.

    On CPU matrices are kept as panels too (see ``models.linear``).

    Args:
      head: its parameters.
      ids: int ``[Vd]``, its draft vocabulary.
      target_params: the target's parameters.
      wants_rows: it has no output matrix of its own.

    Returns:
      The parameters, int32 ``[Vd]``, and the target's output matrix at these ids, ``[W, Vd]``, with
      its panels or None; None where it isn't wanted.
    """
    ids = jnp.asarray(ids, jnp.int32)
    dtype = target_params["embed"].dtype
    cast = {name: jnp.asarray(value, dtype) for name, value in head.items()}
    rows = output_rows(target_params, ids) if wants_rows else None
    if jax.default_backend() != "cpu":
        return cast, ids, None if rows is None else (rows, None)
    panels = {f"{name}_panels": to_panels(x) for name, x in cast.items() if _fits(x)}
    if rows is None:
        return cast | panels, ids, None
    return cast | panels, ids, (rows, to_panels(rows) if _fits(rows) else None)


def _fits(x: Array) -> bool:
    return x.ndim == 2 and x.shape[1] % PANEL == 0

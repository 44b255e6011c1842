"""What a round costs on a device: the table that adaptive drafting and plans decide by.

``specjax.calibrate`` measures one, ``calibrate_all`` those of several drafters. Arrays here are
numpy's: a table is read on the host, and handed to the loop as numbers (``adaptive_params``).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import pathlib
from typing import Any

import jax
import numpy as np

from specjax import device
from specjax.draft import Drafter
from specjax.target import Target


@dataclasses.dataclass(frozen=True)
class Origin:
    """What a table was measured on; it says nothing about anything else.

    Attributes:
      device: the kind of device, and of which there may be several.
      dtype: of the caches, which by default is that of the weights.
      jax: its version.
      model: the target, and the shapes of its parameters (their values cost nothing).
      drafter: the same of the drafter; "" without one.
      verifier: the rule.
    """

    device: str
    dtype: str
    jax: str
    model: str
    drafter: str = ""
    verifier: str = "greedy"


@dataclasses.dataclass(frozen=True, eq=False)
class CostTable:
    """Seconds of the parts of a round.

    Attributes:
      origin: what it was measured on.
      batches: ascending batch sizes that were measured.
      contexts: ascending numbers of filled slots that were measured.
      widths: ascending tokens of a target pass; the last is N + 1.
      drafts: ascending draft lengths, from 0 to N; (0,) without a drafter.
      target_s: float64 ``[batches, contexts, widths]``, the target's side of a round: its pass,
        verification, and the commit.
      draft_s: float64 ``[batches, drafts]``, the drafter's side of a round in which it drafts so
        many tokens: propose and update. At 0 that is what keeping its state fresh costs.
    """

    origin: Origin
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    widths: tuple[int, ...]
    drafts: tuple[int, ...]
    target_s: np.ndarray
    draft_s: np.ndarray

    def __post_init__(self) -> None:
        for name, least in (("batches", 1), ("contexts", 2), ("widths", 1), ("drafts", 0)):
            axis = getattr(self, name)
            whole = all(isinstance(x, int) and not isinstance(x, bool) for x in axis)
            if not axis or not whole or list(axis) != sorted(set(axis)) or axis[0] < least:
                raise ValueError(f"{name} is {axis}; it must hold ascending integers from {least}")
        if self.drafts != (0,) and self.drafts[-1] != self.num_nodes:
            raise ValueError(f"drafts end at {self.drafts[-1]}, and widths at {self.widths[-1]}")
        shape = len(self.batches), len(self.contexts), len(self.widths)
        for name, values, wanted in (
            ("target_s", self.target_s, shape),
            ("draft_s", self.draft_s, (shape[0], len(self.drafts))),
        ):
            if values.shape != wanted:
                raise ValueError(f"{name} has shape {values.shape}; the table's is {wanted}")
            if not (np.all(np.isfinite(values)) and np.all(values >= 0)):
                worst = values[~(np.isfinite(values) & (values >= 0))][0]
                raise ValueError(f"{name} holds {worst}; costs are finite, 0 or more")

    @property
    def num_nodes(self) -> int:
        """N, the most tokens of a draft."""
        return self.widths[-1] - 1

    def target_seconds(self, batch: float, context: float, tokens: int) -> float:
        """The target's side of a round whose longest row has ``tokens`` tokens, 1 to N + 1.

        Between the batches and contexts of the table it is interpolated. A context outside them
        costs what the nearest one does.

        Raises:
          ValueError: a batch or a number of tokens outside the table.
        """
        if not 1 <= tokens <= self.widths[-1]:
            raise ValueError(f"tokens={tokens}; the table goes from 1 to {self.widths[-1]}")
        width = next(i for i, width in enumerate(self.widths) if width >= tokens)
        by_batch = [np.interp(context, self.contexts, row[:, width]) for row in self.target_s]
        return self._at_batch(batch, by_batch)

    def draft_seconds(self, batch: float, tokens: int) -> float:
        """The drafter's side of a round in which it drafts ``tokens``, 0 to N; interpolated."""
        if not 0 <= tokens <= self.num_nodes:
            raise ValueError(f"tokens={tokens}; the table goes from 0 to {self.num_nodes}")
        by_batch = [np.interp(tokens, self.drafts, row) for row in self.draft_s]
        return self._at_batch(batch, by_batch)

    def round_seconds(self, batch: float, context: float, tokens: int) -> float:
        """A whole round in which ``tokens`` are drafted, 0 to N."""
        mine = self.draft_seconds(batch, tokens)
        return mine + self.target_seconds(batch, context, tokens + 1)

    def _at_batch(self, batch: float, values: Any) -> float:
        if not self.batches[0] <= batch <= self.batches[-1]:
            raise ValueError(
                f"batch={batch}; the cost table was measured at {list(self.batches)}: calibrate "
                "with batches that enclose it"
            )
        return float(np.interp(batch, self.batches, values))

    def check(self, origin: Origin) -> None:
        """Raises ValueError where the table was measured on something else; names what differs."""
        for field in dataclasses.fields(Origin):
            theirs, ours = getattr(self.origin, field.name), getattr(origin, field.name)
            if theirs != ours:
                raise ValueError(
                    f"the cost table is of another {field.name}: {theirs!r}, and this is {ours!r}; "
                    "calibrate again"
                )

    def __str__(self) -> str:
        """The table for people, in milliseconds."""
        head = f"costs on {self.origin.device}, {self.origin.dtype}, {self.origin.model}"
        names = [f"{width} token{'s' if width > 1 else ''}" for width in self.widths]
        lines = ["batch  context  " + "  ".join(f"{name:>9}" for name in names)]
        for batch, rows in zip(self.batches, self.target_s, strict=True):
            for context, row in zip(self.contexts, rows, strict=True):
                cells = "  ".join(f"{1e3 * value:9.2f}" for value in row)
                lines.append(f"{batch:5}  {context:7}  {cells}")
        out = f"{head}\ntarget's side of a round, ms\n" + "\n".join(lines)
        if len(self.drafts) < 2:
            return out
        names = [f"{count} drafted" for count in self.drafts]
        lines = ["batch  " + "  ".join(f"{name:>10}" for name in names)]
        for batch, row in zip(self.batches, self.draft_s, strict=True):
            lines.append(f"{batch:5}  " + "  ".join(f"{1e3 * value:10.3f}" for value in row))
        return f"{out}\n{self.origin.drafter}'s side, ms\n" + "\n".join(lines)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the table as JSON, whole or not at all."""
        path = pathlib.Path(path)
        content = dataclasses.asdict(self)
        content |= {"target_s": self.target_s.tolist(), "draft_s": self.draft_s.tolist()}
        text = json.dumps(content, indent=1)
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            beside.write_text(text)
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)


def load(path: str | os.PathLike[str]) -> CostTable:
    """Reads a table that ``CostTable.save`` wrote.

    Raises:
      ValueError: no such table; names the file.
    """
    try:
        content = json.loads(pathlib.Path(path).read_text())
        values: dict[str, Any] = {name: tuple(value) for name, value in content.items()}
        for name in ("target_s", "draft_s"):
            values[name] = np.array(content[name], float)
        return CostTable(**values | {"origin": Origin(**content["origin"])})
    except (OSError, TypeError, KeyError, AttributeError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no cost table ({error}); calibrate again") from error


def origin_of(
    target: Target, params: Any, drafter: Drafter | None, drafter_params: Any, dtype: Any, rule: str
) -> Origin:
    """What a table of these parts would be measured on here."""
    return Origin(
        device=device.kind(),
        dtype=str(dtype),
        jax=jax.__version__,
        model=described(target.name, params),
        drafter=_of_drafter(drafter, drafter_params) if drafter else "",
        verifier=rule,
    )


def _of_drafter(drafter: Drafter, params: Any) -> str:
    text = f"{described(drafter.name, params)}, N={drafter.num_nodes}"
    return f"{text} ({drafter.settings})" if drafter.settings else text


def described(name: str, params: Any) -> str:
    """A model as ``Origin`` has it: its name, and what its parameters' shapes and dtypes come to.

    Args:
      name: of the target or the drafter.
      params: its parameters; ``jax.ShapeDtypeStruct`` will do.
    """
    # A parameter may be a plain number.
    leaves = [x if hasattr(x, "dtype") else np.asarray(x) for x in jax.tree.leaves(params)]
    shapes = [(leaf.shape, str(leaf.dtype)) for leaf in leaves]
    digest = hashlib.sha256(repr(shapes).encode()).hexdigest()[:8]
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    return f"{name} ({size / 1e6:.3g} MB, {digest})"

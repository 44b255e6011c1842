"""Where arrays lie: parameters on every device, batches split over the mesh's data axis."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec


class Mesh:
    """A mesh with one axis, data, over the devices of all processes.

    Args:
      size: devices; with several processes all of them.

    Raises:
      ValueError: there aren't so many, or with several processes some would be left out.
    """

    def __init__(self, size: int):
        have = jax.device_count()
        if size > have or (jax.process_count() > 1 and size != have):
            raise ValueError(
                f"loop.mesh asks for {size} device(s), but there are {have} in "
                f"{jax.process_count()} process(es): take loop.mesh=data:{have}"
            )
        self.size = size
        mesh = jax.make_mesh(
            (size,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:size]
        )
        self.replicated = NamedSharding(mesh, PartitionSpec())
        self._rows = NamedSharding(mesh, PartitionSpec("data"))
        self._micro = NamedSharding(mesh, PartitionSpec(None, "data"))

    def replicate(self, tree: Any) -> Any:
        """A tree of equal arrays in every process, on every device."""
        return jax.tree.map(lambda x: _place(x, self.replicated), tree)

    def rows(self, batch: Any) -> Any:
        """A batch [size, ...], split over the devices where it can be, else on each of them."""
        whole = all(np.shape(x)[0] % self.size == 0 for x in jax.tree.leaves(batch))
        return jax.tree.map(lambda x: _place(x, self._rows if whole else self.replicated), batch)

    def microbatches(self, batch: Any, accumulation: int) -> Any:
        """A batch [size, ...] as [accumulation, size / accumulation, ...], the latter split.

        Raises:
          ValueError: the size isn't a multiple of accumulation times devices.
        """
        sizes = {np.shape(x)[:1] for x in jax.tree.leaves(batch)}
        if len(sizes) != 1 or () in sizes:
            found = ", ".join(str(list(size)) for size in sorted(sizes))
            raise ValueError(f"the arrays of a batch have first axes of {found}; they must agree")
        ((size,),) = sizes
        if size % (accumulation * self.size):
            raise ValueError(
                f"a batch of {size} can't be cut into accumulation * devices = "
                f"{accumulation} * {self.size} equal parts; change the batch size or "
                "loop.accumulation"
            )
        shape = accumulation, size // accumulation
        return jax.tree.map(
            lambda x: _place(np.reshape(x, (*shape, *np.shape(x)[1:])), self._micro), batch
        )


def _place(x: Any, sharding: NamedSharding) -> jax.Array:
    if jax.process_count() == 1:
        return jax.device_put(x, sharding)
    whole = np.asarray(x)  # the same in every process, which hands on the rows of its own devices
    return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])


class Prefetch:
    """Makes the next few batches in a thread while a step runs.

    Args:
      make: step -> batch, on the devices.
      start: the first step.
      stop: the step after the last.
      depth: how many batches ahead.
    """

    def __init__(self, make: Callable[[int], Any], start: int, stop: int, depth: int = 2):
        self._make, self._next, self._stop = make, start, stop
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "batches")
        self._ready: list[concurrent.futures.Future[Any]] = []
        for _ in range(depth):
            self._ask()

    def take(self) -> Any:
        """The next batch; raises what making it raised."""
        batch = self._ready.pop(0).result()
        self._ask()
        return batch

    def close(self) -> None:
        """Ends the thread; what it was making is dropped."""
        self._thread.shutdown(cancel_futures=True)

    def _ask(self) -> None:
        if self._next < self._stop:
            self._ready.append(self._thread.submit(self._make, self._next))
            self._next += 1

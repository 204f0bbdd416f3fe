# Groups of ranks that are JAX devices. SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import threading
from ctypes import c_int32, c_void_p
from typing import Any, Callable, Dict, List, Optional, Tuple

import jax
import jax.numpy as jnp
import numpy as np

from .. import group as _plain
from ..arrays import TYPE_NAMES
from ..comm import Comm
from ..errors import ArgumentError, EpxError, UnsupportedError
from ._ffi import library

# The numbers of Group.counts, in order.
COUNTS = ("routed", "skipped", "kept", "spilled", "dropped_sender", "dropped_receiver")

# Behind the bytes of a plan its array has room for the number of its route.
_TRAILER_BYTES = 64

Array = jax.Array


def _array(shape: Tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)  # type: ignore[no-untyped-call]


def _together(calls: List[Callable[[], Any]]) -> List[Any]:
    """Collective calls of ranks that are threads: all at once. Raises the error that tells most."""
    answers: List[Any] = [None] * len(calls)
    errors: List[Optional[BaseException]] = [None] * len(calls)

    def run(i: int) -> None:
        try:
            answers[i] = calls[i]()
        except BaseException as error:  # noqa: BLE001 - raised again below
            errors[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = [error for error in errors if error is not None]
    if found:
        for answer in answers:
            if answer is not None:
                answer.close()
        # A rank that fails ends the others with PEER or ABORTED; its own error says why.
        raise min(found, key=lambda e: -e.status if isinstance(e, EpxError) else -100)
    return answers


def _places(mesh: jax.sharding.Mesh, axis: str) -> Dict[Any, Tuple[int, int]]:
    """For each device of the mesh: which group of the axis it is in, and its rank there."""
    if axis not in mesh.axis_names:
        raise ArgumentError(f"the mesh has no axis {axis!r}; it has {', '.join(map(str, mesh.axis_names))}")
    along = np.moveaxis(mesh.devices, mesh.axis_names.index(axis), -1)
    rows = along.reshape(-1, along.shape[-1])
    return {rows[g, r]: (g, r) for g in range(rows.shape[0]) for r in range(rows.shape[1])}


def _ordinal(device: Any) -> int:
    """The number by which XLA tells a custom call where it runs: a GPU's among this process's, a processor's among
    those of all processes."""
    return int(device.id if device.platform == "cpu" else device.local_hardware_id)


def _named(options: Dict[str, Any], group: int, groups: int) -> Dict[str, Any]:
    """Groups beside each other have different names, by which their statistics are told apart."""
    return {**options, "name": f"{options['name']}-{group}"} if groups > 1 else options


def _open_here(devices: List[Any], places: Dict[Any, Tuple[int, int]], options: Dict[str, Any]) -> List[_plain.Group]:
    """All devices are this process's: ranks are threads."""
    ranks = 1 + max(rank for _, rank in places.values())
    groups = 1 + max(group for group, _ in places.values())
    comms = [Comm.threads(ranks) for _ in range(groups)]

    def opener(device: Any) -> Callable[[], _plain.Group]:
        group, rank = places[device]

        def open_() -> _plain.Group:
            if options["device"] == "cuda":
                _plain.use_device("cuda", device.local_hardware_id)
            return _plain.Group(comms[group][rank], **_named(options, group, groups))

        return open_

    return _together([opener(device) for device in devices])


def _open_as_process(device: Any, places: Dict[Any, Tuple[int, int]], options: Dict[str, Any]) -> List[_plain.Group]:
    """One device in each process: ranks are processes."""
    group, rank = places[device]
    part = Comm.world().split(group, rank)
    assert part is not None
    if options["device"] == "cuda":
        _plain.use_device("cuda", device.local_hardware_id)
    if part.rank != rank:
        raise ArgumentError(
            f"this process is rank {part.rank} of its group by its launcher and rank {rank} by the mesh; start one "
            "process for each device, with the launcher's variables that JAX was initialised with"
        )
    groups = 1 + max(number for number, _ in places.values())
    return [_plain.Group(part, **_named(options, group, groups))]


class Group:
    """Expert-parallel groups along one axis of a mesh: a group for each index of the other axes.

    Options are those of epx.Group. Opening is collective over the processes of the mesh. The devices' ranks are
    threads of this process where it has all of them, else each process has one device and the library's launcher
    variables (EPX_RANK, ..., mpirun, srun, torchrun) say which.
    """

    def __init__(self, mesh: jax.sharding.Mesh, axis: str, **options: Any) -> None:
        places = _places(mesh, axis)
        mine = [device for device in places if device.process_index == jax.process_index()]
        platform = mine[0].platform if mine else "none"
        options.setdefault("device", {"cpu": "host", "gpu": "cuda", "cuda": "cuda"}.get(platform))
        options.setdefault("name", f"jax-{axis}")
        self.batch_in_caller = bool(options.setdefault("batch_in_caller", True))
        if options.get("origin") or options.get("aux_bytes") or options.get("batch") == "indexed":
            raise UnsupportedError("epx.jax hands over expanded batches without origin and aux")
        if len(mine) == len(places):
            self._groups = _open_here(mine, places, options)
        elif len(mine) == 1:
            self._groups = _open_as_process(mine[0], places, options)
        else:
            raise UnsupportedError(
                f"this process has {len(mine)} of {len(places)} devices; it must have all of them, or one"
            )
        info = self._groups[0].info()
        if info.waves == 0:
            self._close_groups()
            raise UnsupportedError("EPX_OVERFLOW=extra_wave decides its waves in each step, which XLA cannot compile")
        self.axis = axis
        self.ranks, self.experts, self.top_k, self.width = info.ranks, info.experts, info.top_k, info.width
        self.waves, self.rows, self.tokens_max = info.waves, info.batch_rows_max, info.tokens_max
        self.transport, self.fabric, self.device, self.lanes = info.transport, info.fabric, info.device, info.lanes
        self.row_dtype = jnp.dtype(TYPE_NAMES[self._groups[0].row_type])
        self.out_dtype = jnp.dtype(TYPE_NAMES[self._groups[0].out_type])
        self.owner = info.owner
        sizes = {len(group.info().local_experts) for group in self._groups}
        if len(sizes) != 1 or self.experts % self.ranks != 0:
            self._close_groups()
            raise UnsupportedError(
                f"{self.experts} experts over {self.ranks} ranks: under one compiled program every rank must own as many"
            )
        self.local_experts = sizes.pop()
        self.plan_bytes = self._groups[0].plan_bytes + _TRAILER_BYTES
        self._number = self._add(mine)

    def _add(self, devices: List[Any]) -> int:
        n = len(self._groups)
        ordinals = (c_int32 * n)(*[_ordinal(device) for device in devices])
        handles = (c_void_p * n)(*[group.handle.value for group in self._groups])
        number = int(library.epx_jax_table_add(n, ordinals, handles))
        if number < 0:
            self._close_groups()
            raise EpxError(library.epx_jax_table_error().decode())
        return number

    def _close_groups(self) -> None:
        for group in self._groups:
            group.close()

    @property
    def members(self) -> List[_plain.Group]:
        """The ranks of this process, as epx.Group: info (bytes moved, transport), step, check, abort."""
        return list(self._groups)

    def check(self) -> None:
        """Raises what a GPU has found wrong with a route that no call has told yet, or why the group has ended.

        For after a step: it sees what the GPU has done by then, and waits for nothing. All ranks of this process are
        asked, so that the next step does not tell what another one of them has found; the first error is raised.
        """
        found: Optional[EpxError] = None
        for member in self._groups:
            try:
                member.check()
            except EpxError as error:
                found = found or error
        if found is not None:
            raise found

    def close(self) -> None:
        """Waits for nobody. No program that uses the group may be running."""
        if self._number >= 0:
            library.epx_jax_table_remove(self._number)
            self._number = -1
            self._close_groups()

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __hash__(self) -> int:
        return hash(("epx.jax.Group", self._number))

    def __eq__(self, other: object) -> bool:
        return self is other

    # ---- custom calls: inside shard_map, on one rank's arrays -------------------------------------------------------

    def _call(
        self, name: str, results: List[jax.ShapeDtypeStruct], operands: List[Array], lane: int, wave: int = 0,
        aliases: Optional[Dict[int, int]] = None,
    ) -> List[Array]:  # fmt: skip
        call = jax.ffi.ffi_call(
            f"epx_jax_{name}", [*results, _TOKEN], input_output_aliases=aliases, vmap_method=None
        )
        numbers = {"group": np.int64(self._number), "lane": np.int64(lane), "wave": np.int64(wave)}
        return list(call(*operands, **numbers))

    def _plan(self) -> jax.ShapeDtypeStruct:
        return _array((self.plan_bytes,), jnp.uint8)

    def _batch(self) -> List[jax.ShapeDtypeStruct]:
        count = _array((self.local_experts, 2), jnp.int32)
        return [_array((self.rows, self.width), self.row_dtype), count, count]

    def _check_rows(self, array: Array, what: str, dtype: Any, rows: Optional[int] = None) -> None:
        if array.dtype != dtype or array.ndim != 2 or array.shape[1] != self.width or rows not in (None, array.shape[0]):
            raise ArgumentError(
                f"{what} is {array.dtype}{list(array.shape)}; it must be {dtype}[{rows or 'tokens'}, {self.width}]"
            )

    def route(self, ids: Array, weights: Array, token: Array, lane: int = 0) -> Tuple[Array, Array]:
        """ids [T, K] int32 or int64 (-1: none), weights [T, K] float32 -> plan, token. The plan goes through all calls
        of the pass; a backward pass may use what the last combine gives."""
        if ids.ndim != 2 or ids.shape[1] != self.top_k or ids.shape != weights.shape:
            raise ArgumentError(f"ids {ids.shape} and weights {weights.shape} must both be [tokens, {self.top_k}]")
        if ids.shape[0] > self.tokens_max:
            raise ArgumentError(f"{ids.shape[0]} tokens; the group was opened for at most {self.tokens_max}")
        if ids.dtype not in (jnp.int32, jnp.int64) or weights.dtype != jnp.float32:
            raise ArgumentError(f"ids are {ids.dtype}, weights {weights.dtype}; they must be int32 or int64, float32")
        plan, token = self._call("route", [self._plan()], [ids, weights, token], lane)
        return plan, token

    def dispatch(
        self, plan: Array, x: Array, token: Array, wave: int, lane: int = 0
    ) -> Tuple[Array, Array, Array, Array, Array]:
        """x [T, width] -> rows [R, width], start [El], count [El] (int32), plan, token."""
        self._check_rows(x, "x", self.row_dtype)
        rows, start, count, plan, token = self._call(
            "dispatch", [*self._batch(), self._plan()], [plan, x, token], lane, wave, {0: 3}
        )
        return rows, start[:, 0], count[:, 0], plan, token

    def dispatch_start(self, plan: Array, x: Array, token: Array, wave: int, lane: int = 0) -> Array:
        """The first half of dispatch; give x to dispatch_done too, which keeps it alive. The group must have been
        opened with batch_in_caller=False: until the second half the rows that come need a place."""
        if self.batch_in_caller:
            raise ArgumentError("dispatch_start: open the group with batch_in_caller=False")
        self._check_rows(x, "x", self.row_dtype)
        return self._call("dispatch_start", [], [plan, x, token], lane, wave)[0]

    def dispatch_done(
        self, plan: Array, x: Array, token: Array, wave: int, lane: int = 0
    ) -> Tuple[Array, Array, Array, Array, Array]:
        """The second half: as dispatch."""
        rows, start, count, plan, token = self._call(
            "dispatch_done", [*self._batch(), self._plan()], [plan, x, token], lane, wave, {0: 3}
        )
        return rows, start[:, 0], count[:, 0], plan, token

    def _sum(self, total: Array) -> jax.ShapeDtypeStruct:
        return _array(total.shape, total.dtype)

    def combine(
        self, plan: Array, y: Array, total: Array, token: Array, wave: int, lane: int = 0
    ) -> Tuple[Array, Array, Array]:
        """y [R, width], total [T, width] of the out type (what earlier waves gave) -> total, plan, token."""
        self._check_rows(y, "y", self.row_dtype, self.rows)
        self._check_rows(total, "total", self.out_dtype)
        results = [self._sum(total), self._plan()]
        total, plan, token = self._call("combine", results, [plan, y, total, token], lane, wave, {2: 0, 0: 1})
        return total, plan, token

    def combine_start(self, plan: Array, y: Array, token: Array, wave: int, lane: int = 0) -> Array:
        """The first half of combine; give y to combine_done too, which keeps it alive."""
        self._check_rows(y, "y", self.row_dtype, self.rows)
        return self._call("combine_start", [], [plan, y, token], lane, wave)[0]

    def combine_done(
        self, plan: Array, y: Array, total: Array, token: Array, wave: int, lane: int = 0
    ) -> Tuple[Array, Array, Array]:
        """The second half: as combine."""
        results = [self._sum(total), self._plan()]
        total, plan, token = self._call("combine_done", results, [plan, y, total, token], lane, wave, {2: 0, 0: 1})
        return total, plan, token

    def combine_backward(
        self, plan: Array, dout: Array, y: Array, token: Array, wave: int, lane: int = 0
    ) -> Tuple[Array, Array, Array, Array]:
        """dout [T, width], y as given to combine -> dy [R, width], start, count, token."""
        self._check_rows(dout, "dout", self.row_dtype)
        dy, start, count, token = self._call("combine_backward", self._batch(), [plan, dout, y, token], lane, wave)
        return dy, start[:, 0], count[:, 0], token

    def dispatch_backward(
        self, plan: Array, dx_rows: Array, dx: Array, dweights: Array, token: Array, wave: int, lane: int = 0
    ) -> Tuple[Array, Array, Array]:
        """dx_rows [R, width], dx [T, width] and dweights [T, K] of earlier waves -> dx, dweights, token."""
        self._check_rows(dx_rows, "dx_rows", self.row_dtype, self.rows)
        results = [self._sum(dx), self._sum(dweights)]
        operands = [plan, dx_rows, dx, dweights, token]
        dx, dweights, token = self._call("dispatch_backward", results, operands, lane, wave, {2: 0, 3: 1})
        return dx, dweights, token

    def counts(self, plan: Array, token: Array, lane: int = 0) -> Tuple[Array, Array]:
        """What became of this rank's last routing, int32 [6] in the order of COUNTS, complete after a pass."""
        counts, token = self._call("counts", [_array((len(COUNTS), 2), jnp.int32)], [plan, token], lane)
        return counts[:, 0], token


_TOKEN = _array((1,), jnp.int32)

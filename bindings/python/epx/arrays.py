# Addresses of arrays of any framework. SPDX-License-Identifier: Apache-2.0
"""An array is anything that tells its address: a numpy array, a PyTorch tensor, an object with
`__cuda_array_interface__` or `__array_interface__`. Arrays must be contiguous, row-major."""

from __future__ import annotations

from typing import Any, NamedTuple

from .errors import ArgumentError

FP32, BF16, FP16, INT32, INT64 = 1, 2, 3, 4, 5

TYPE_NAMES = {FP32: "float32", BF16: "bfloat16", FP16: "float16", INT32: "int32", INT64: "int64"}
TYPES = {name: code for code, name in TYPE_NAMES.items()}
TYPE_BYTES = {FP32: 4, BF16: 2, FP16: 2, INT32: 4, INT64: 8}

# Two-byte types that numpy knows only by their bytes.
_INTERFACE_TYPES = {"<f4": FP32, "<f2": FP16, "<i4": INT32, "<i8": INT64, "<V2": BF16}


class View(NamedTuple):
    """Where an array is and what it holds. `kind` is the device: host or cuda."""

    address: int
    shape: tuple[int, ...]
    type: int
    kind: str


# Types that have been asked about: names are slow to find.
_CODES: dict[Any, int] = {}
_KINDS = {"cpu": "host"}


def type_code(value: Any) -> int:
    """EPX_FP32 ... of a name ("bfloat16"), a numpy, ml_dtypes, JAX or PyTorch type."""
    code = _CODES.get(value)
    if code is None:
        code = _CODES[value] = _find_type_code(value)
    return code


def _find_type_code(value: object) -> int:
    name = value if isinstance(value, str) else getattr(value, "name", None) or str(value)
    code = TYPES.get(str(name).rsplit(".", 1)[-1])
    if code is None:
        raise ArgumentError(f"{value!r} is no type of epx; it knows {', '.join(TYPES)}")
    return code


def _view_of_tensor(tensor: Any, what: str) -> View:
    if not tensor.is_contiguous():
        raise ArgumentError(f"{what} is not contiguous; call .contiguous() on it")
    kind = tensor.device.type
    kind = _KINDS.get(kind, kind)
    return View(int(tensor.data_ptr()), tuple(tensor.shape), type_code(tensor.dtype), kind)


def _view_of_interface(interface: dict[str, Any], kind: str, array: Any, what: str) -> View:
    shape = tuple(interface["shape"])
    code = _INTERFACE_TYPES.get(interface["typestr"])
    dtype = getattr(array, "dtype", None)
    if code is None or (interface["typestr"] == "<V2" and getattr(dtype, "name", "bfloat16") != "bfloat16"):
        raise ArgumentError(f"{what} holds {dtype or interface['typestr']}; epx knows {', '.join(TYPES)}")
    strides = interface.get("strides")
    if strides is not None and 0 not in shape:
        want = TYPE_BYTES[code]
        for length, stride in zip(reversed(shape), reversed(strides)):
            if length != 1 and stride != want:
                raise ArgumentError(f"{what} is not contiguous; copy it")
            want *= length
    return View(int(interface["data"][0] or 0), shape, code, kind)


def view(array: Any, what: str) -> View:
    """Where `array` is; `what` is its name in messages."""
    if hasattr(array, "data_ptr"):
        return _view_of_tensor(array, what)
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is not None:
        return _view_of_interface(interface, "cuda", array, what)
    interface = getattr(array, "__array_interface__", None)
    if interface is not None:
        return _view_of_interface(interface, "host", array, what)
    raise ArgumentError(f"{what} is a {type(array).__name__}, which tells no address; give a numpy array or a tensor")


def address(array: Any, what: str, device: str, type_: int, shape: tuple[int | None, ...]) -> int | None:
    """The address of an array that must be on `device`, of a type and a shape (None in front: any length)."""
    if array is None:
        return None
    pointer = getattr(array, "data_ptr", None)
    if pointer is not None:  # a tensor that is as it must be, without a detour
        kind, lengths = array.device.type, array.shape
        if (
            _KINDS.get(kind, kind) == device and type_code(array.dtype) == type_ and array.is_contiguous()
            and (lengths == shape or (shape[0] is None and lengths[1:] == shape[1:]))
        ):  # fmt: skip
            return int(pointer())
    at, has, code, kind = view(array, what)
    if kind != device:
        raise ArgumentError(f"{what} is on {kind}; the group's device is {device}")
    if code != type_:
        raise ArgumentError(f"{what} holds {TYPE_NAMES[code]}; it must hold {TYPE_NAMES[type_]}")
    if has != shape and not _fits(has, shape):
        wanted = ", ".join("any" if n is None else str(n) for n in shape)
        raise ArgumentError(f"{what} has shape {has}; it must be ({wanted})")
    return at


def _fits(has: tuple[int, ...], shape: tuple[int | None, ...]) -> bool:
    return len(has) == len(shape) and all(w is None or n == w for n, w in zip(has, shape))

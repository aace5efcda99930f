"""Operators as bytes that another process can load: functions of notebooks and scripts, lambdas and closures included.

The one place that knows cloudpickle, which stores by value what another process could not import. What would make a
worker import jax is refused here, before anything starts: a worker that does may claim the accelerator of the trainer.
"""

from __future__ import annotations

import dis
import io
import pickle
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from zephon_jax.errors import ConfigurationError

__all__ = ["packed", "ship", "ship_within", "unpacked"]

_DEVICE_LIBRARIES = frozenset({"jax", "jaxlib"})
_PART_BYTES = 1 << 16


class _MentionsJax(Exception):
    """What was pickled would import jax."""


class _TooLarge(Exception):
    """More bytes than allowed."""


def _cloudpickle() -> Any:
    try:
        import cloudpickle
    except ImportError as error:
        raise ConfigurationError(
            "operators are sent to other processes with cloudpickle, which is not installed: pip install cloudpickle, or use "
            'options(executor="threads")'
        ) from error
    return cloudpickle


class _Bounded(io.RawIOBase):
    """Bytes, up to so many."""

    def __init__(self, most: int | None):
        self._most, self._size, self._parts = most, 0, list[bytes]()

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        self._size += memoryview(data).nbytes
        if self._most is not None and self._size > self._most:
            raise _TooLarge
        self._parts.append(bytes(data))
        return memoryview(data).nbytes

    def content(self) -> bytes:
        return b"".join(self._parts)


def ship(value: Any, what: str) -> bytes:
    """`value` for `pickle.loads` in another process.

    Raises:
        ConfigurationError: It cannot be pickled, or loading it would import jax; `what` names it.
    """
    try:
        return _shipped(value, None)
    except _MentionsJax as error:
        raise ConfigurationError(
            f"{what} uses {error}, and a worker process must not import jax: it could take the accelerator from the trainer. "
            f"Use NumPy in it, or keep it in a thread: options(executors={{{what!r}: 'threads'}})"
        ) from None
    except ConfigurationError:
        raise
    except Exception as error:
        raise ConfigurationError(
            f"{what} cannot be sent to a worker process: {type(error).__name__}: {error}. Make what it holds picklable (open "
            f"files and connections when they are first used), or keep it in a thread: options(executors={{{what!r}: 'threads'}})"
        ) from error


def ship_within(value: Any, most_bytes: int) -> bytes | None:
    """As `ship`, None where it cannot be done, or not in so many bytes."""
    try:
        return _shipped(value, most_bytes)
    except ConfigurationError:
        raise
    except Exception:  # no error: whoever asks has another way
        return None


def _shipped(value: Any, most: int | None) -> bytes:
    base: Any = _cloudpickle().Pickler

    class Pickler(base):  # pyright: ignore[reportUntypedBaseClass]
        def reducer_override(self, obj: Any) -> Any:
            if (name := _device_library(obj)) is not None:
                raise _MentionsJax(name)
            if isinstance(obj, types.CodeType):  # with its file, which tracebacks are to show
                made, arguments = self.dispatch_table[types.CodeType](obj)
                return made, tuple(obj.co_filename if a == "<dynamic-code>" else a for a in arguments)
            return super().reducer_override(obj)

    file = _Bounded(most)
    Pickler(file, protocol=5).dump(value)
    return file.content()


def _device_library(obj: Any) -> str | None:
    """The name of what would import jax if another process loaded this object."""
    if isinstance(obj, types.ModuleType):
        return obj.__name__ if _is_device(obj.__name__) else None
    if isinstance(obj, types.FunctionType) and not _is_device(obj.__module__):
        return next(_used(obj.__code__, obj.__globals__), None)
    owner: Any = obj if isinstance(obj, (type, types.FunctionType)) else type(obj)
    module: Any = getattr(owner, "__module__", None)
    return f"{module}.{owner.__qualname__}" if _is_device(module) else None


def _used(code: types.CodeType, names: dict[str, Any]) -> Iterator[str]:
    """What a function takes of jax: by its module's names, or by an import of its own."""
    for name in code.co_names:
        found = names.get(name)
        module = found.__name__ if isinstance(found, types.ModuleType) else getattr(found, "__module__", None)
        if _is_device(module):
            yield name if isinstance(found, types.ModuleType) else f"{name} of {module}"
    for instruction in dis.get_instructions(code):
        if instruction.opname == "IMPORT_NAME" and _is_device(instruction.argval):
            yield f"an import of {instruction.argval}"
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _used(inner, names)


def _is_device(module: Any) -> bool:
    return isinstance(module, str) and module.split(".")[0] in _DEVICE_LIBRARIES


def packed(value: Any) -> list[Any]:
    """A value as a pickle and the buffers of its arrays, which are not copied: they may be views of live arrays."""
    buffers: list[pickle.PickleBuffer] = []
    file = io.BytesIO()
    collect: Callable[[pickle.PickleBuffer], None] = buffers.append
    _cloudpickle().Pickler(file, protocol=5, buffer_callback=collect).dump(value)
    return [file.getvalue(), *(buffer.raw() for buffer in buffers)]


def unpacked(parts: Sequence[Any]) -> Any:
    """The value again; its arrays are views of the parts, writable where these are."""
    return pickle.loads(parts[0], buffers=parts[1:])

"""Jobs: what is compiled, and what a user asks of a source of kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from .shape import Shape, kernel_label
from .tokens import Range


@dataclass(frozen=True)
class Options:
    """What a user asks of a source beside its default; what each may be is the source's to say, empty is its default.

    ``kinds`` are families of kernels, ``dtypes`` output types, ``models`` lists of shapes (their ids).
    """

    kinds: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    models: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As the manifest holds them."""
        return {name: list(values) for name, values in asdict(self).items()}

    @classmethod
    def from_json(cls, value: Mapping[str, Sequence[str]]) -> Options:
        """The inverse of :meth:`to_json`; what is missing is empty."""
        return cls(**{field.name: tuple(value.get(field.name, ())) for field in fields(cls)})


NO_OPTIONS: Final = Options()
"""A source's own choice in everything."""


@dataclass(frozen=True, slots=True)
class Job:
    """One compile: a kernel name and the arguments that enter its cache key.

    ``shape.cu_num`` is 0: a kernel is the same on every partition of a GPU. ``tokens`` are the token ranges that it
    serves, and ``cu_num`` the numbers of compute units whose rows lead to it (0: the heuristic, on GPUs without rows;
    None: not from a table), for the manifest; they enter no key. ``arguments`` is what else the source needs, in its
    own words.
    """

    source: str
    arch: str
    name: str
    shape: Shape
    tokens: tuple[Range, ...]
    options: Options = NO_OPTIONS
    arguments: str = ""
    cu_num: tuple[int, ...] | None = None

    @property
    def label(self) -> str:
        """What the kernel is called in messages and results (:func:`.shape.kernel_label`)."""
        return kernel_label(self.name, **self.shape.layer())

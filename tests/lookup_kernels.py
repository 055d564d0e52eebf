"""Kernels whose trace reads all that a trace can read, for the tests of the look-up table."""

from __future__ import annotations

import os

import flydsl.compiler as flyc
import flydsl.expr as fx
import lookup_helper

WIDTH = 2
OFFSETS = [1, 2]


def local_step(thread):
    return lookup_helper.step(thread) + OFFSETS[0]


DATA = "/etc/hostname"


class Plain:
    scale = 3


class Settings:
    def __init__(self, scale):
        self.scale = scale


@flyc.kernel
def work(data: fx.Pointer, rows: fx.Int32):
    at = local_step(fx.Int32(fx.thread_idx.x)) * WIDTH
    fx.rocdl.sched_barrier(0)
    (data + at).store(fx.Uint8(7))


@flyc.jit
def plain(data: fx.Pointer, rows: fx.Int32, stream: fx.Stream):
    work(data, rows).launch(grid=(rows, 1, 1), block=(64, 1, 1), stream=stream)


@flyc.jit
def constant(data: fx.Pointer, rows: fx.Int32, stream: fx.Stream, n: fx.Constexpr[int]):
    work(data, rows).launch(grid=(rows, n, 1), block=(64, 1, 1), stream=stream)


def built(n, kind=Plain):
    """A launcher that closes over a number and a class or an object."""

    @flyc.kernel
    def inner(data: fx.Pointer, rows: fx.Int32):
        (data + fx.Int32(fx.thread_idx.x) * kind.scale).store(fx.Uint8(n))

    @flyc.jit
    def closing(data: fx.Pointer, rows: fx.Int32, stream: fx.Stream):
        inner(data, rows).launch(grid=(rows, 1, 1), block=(64, 1, 1), stream=stream)

    return closing


@flyc.kernel
def asking(data: fx.Pointer, rows: fx.Int32):
    (data + fx.Int32(fx.thread_idx.x)).store(fx.Uint8(int(os.environ.get("LOOKUP_TEST_BYTE", "5"))))


@flyc.jit
def environment(data: fx.Pointer, rows: fx.Int32, stream: fx.Stream):
    asking(data, rows).launch(grid=(rows, 1, 1), block=(64, 1, 1), stream=stream)


@flyc.kernel
def opening(data: fx.Pointer, rows: fx.Int32):
    with open(DATA) as file:
        (data + fx.Int32(fx.thread_idx.x)).store(fx.Uint8(len(file.readline())))


@flyc.jit
def reading(data: fx.Pointer, rows: fx.Int32, stream: fx.Stream):
    opening(data, rows).launch(grid=(rows, 1, 1), block=(64, 1, 1), stream=stream)


class Owner:
    """A launcher that is a method: its object has no name."""

    step = 2

    @flyc.jit
    def method(self, data: fx.Pointer, rows: fx.Int32, stream: fx.Stream):
        work(data, rows).launch(grid=(rows, self.step, 1), block=(64, 1, 1), stream=stream)


def arguments(element=fx.Uint8, rows=3, align=16):
    return flyc.from_c_void_p(element, 4096, assumed_align=align), rows, fx.Stream(0)

"""Launchers of every shape that a host function has, for FlyDSL from 0.3.1 on: arguments, grids, LDS, streams."""

import ctypes

import flydsl.compiler as flyc
import flydsl.expr as fx


@flyc.kernel
def one(data: fx.Pointer, count: fx.Int32):
    fx.thread_idx.x  # noqa: B018


@flyc.kernel
def many(a: fx.Pointer, b: fx.Pointer, n: fx.Int64, m: fx.Int32, f: fx.Float32, k: fx.Int32):
    fx.thread_idx.x  # noqa: B018


@flyc.kernel
def alone(n: fx.Int64):
    fx.thread_idx.x  # noqa: B018


@flyc.jit
def launch_one(data: fx.Pointer, count: fx.Int32, stream: fx.Stream):
    one(data, count).launch(grid=(count, 1, 1), block=(64, 1, 1), stream=stream)


@flyc.jit
def launch_computed(data: fx.Pointer, count: fx.Int32, stream: fx.Stream):
    one(data, count).launch(grid=((count + 127) // 128, 7, count * 3), block=(256, 2, 1), smem=4096, stream=stream)


@flyc.jit
def launch_many(a: fx.Pointer, b: fx.Pointer, n: fx.Int64, m: fx.Int32, f: fx.Float32, k: fx.Int32, stream: fx.Stream):
    many(a, b, n, m, f, k).launch(grid=(m, k, 1), block=(64, 1, 1), stream=stream)


@flyc.jit
def launch_without_stream(data: fx.Pointer, count: fx.Int32):
    one(data, count).launch(grid=(count, 1, 1), block=(64, 1, 1))


@flyc.jit
def launch_two(data: fx.Pointer, count: fx.Int32, n: fx.Int64, stream: fx.Stream):
    one(data, count).launch(grid=(count, 1, 1), block=(64, 1, 1), stream=stream)
    alone(n).launch(grid=(2, 1, 1), block=(128, 1, 1), stream=stream)


def pointer():
    return flyc.from_c_void_p(fx.Uint8, 0, assumed_align=16)


CALLS = {
    "launch_one": lambda: launch_one(pointer(), 3, fx.Stream(0)),
    "launch_computed": lambda: launch_computed(pointer(), 3, fx.Stream(0)),
    "launch_many": lambda: launch_many(pointer(), pointer(), fx.Int64(1), 2, 0.5, 4, fx.Stream(0)),
    "launch_without_stream": lambda: launch_without_stream(pointer(), 3),
    "launch_two": lambda: launch_two(pointer(), 3, fx.Int64(9), fx.Stream(0)),
}

P, I32, I64, F32 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_float


def arguments(name, count):
    """The storage that FlyDSL's CallState fills for a launcher; the stream comes last."""
    stream = P(0x5000 + count)
    data = [P(0x1000 + count), I32(count)]
    return {
        "launch_one": [*data, stream],
        "launch_computed": [*data, stream],
        "launch_many": [P(0x1000), P(0x2000), I64(-count), I32(count), F32(count / 3), I32(count + 1), stream],
        "launch_without_stream": [*data, P(None)],
        "launch_two": [*data, I64(count << 40), stream],
    }[name]


SIZES = {"one": [8, 4], "many": [8, 8, 8, 4, 4, 4], "alone": [8]}

"""The smallest kernel that every FlyDSL from 0.3.1 compiles: as a script it makes one cache entry and prints its keys.

COMPILE_ONLY=1 FLYDSL_GPU_ARCH=gfx950 ROCM_PATH=… FLYDSL_RUNTIME_CACHE_DIR=… python tiny.py
"""

import json

import flydsl.compiler as flyc
import flydsl.expr as fx


@flyc.kernel  # type: ignore[untyped-decorator]
def tiny_kernel(data: fx.Pointer, count: fx.Int32) -> None:
    fx.thread_idx.x  # noqa: B018


@flyc.jit  # type: ignore[untyped-decorator]
def tiny(data: fx.Pointer, count: fx.Int32, stream: fx.Stream) -> None:
    tiny_kernel(data, count).launch(grid=(count, 1, 1), block=(64, 1, 1), stream=stream)


if __name__ == "__main__":
    import flydsl.compiler.jit_function as jit

    tiny(flyc.from_c_void_p(fx.Uint8, 0, assumed_align=16), 5, fx.Stream(0))
    last = getattr(tiny, "_last_compiled", (None, None))
    print(
        json.dumps({"toolchain_key": jit._flydsl_key(), "artifact_key": last[0] if isinstance(last[0], str) else None})
    )

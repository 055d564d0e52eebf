"""The processes of test_lookup.py: ``record TABLE`` compiles and notes, ``try TABLE`` tries to have the table be wrong.

``try`` runs each case in a fork of its own, with the table in front of FlyDSL, and prints for each the calls that were
found in the table, the reasons why others were not, and whether the artifact is that of a trace with nothing in front.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

CASES: dict[str, Callable[[], Any]] = {}


def case(function: Callable[[], Any]) -> Callable[[], Any]:
    CASES[function.__name__] = function
    return function


def launches() -> list[tuple[Any, tuple[Any, ...]]]:
    import lookup_kernels as k

    args = k.arguments()
    return [
        (k.plain, args),
        (k.constant, (*args, 4)),
        (k.built(2), args),
        (k.built(2, k.Settings(4)), args),
        (k.environment, args),
        (k.reading, args),
    ]


def record(path: str) -> None:
    import lookup_kernels as k

    from aiter_flydsl_prebuild.builder.call_keys import make_table, recorded_calls

    with recorded_calls() as calls:
        for launcher, args in launches():
            launcher(*args)
        k.Owner().method(*k.arguments())
    Path(path).write_text(json.dumps(make_table(calls, str(sys.implementation.cache_tag))))
    print(json.dumps([[call.launcher, call.problem] for call in calls]))


def call(launcher: Any, *args: Any, **kwargs: Any) -> str:
    """Call, and give the key of the artifact that was taken."""
    launcher(*args, **kwargs)
    key: str = launcher._last_compiled[0]
    return key


# ---- cases: each changes something and returns the launcher and arguments to call --------------------------------


@case
def nothing() -> Any:
    import lookup_kernels as k

    return k.plain, k.arguments()


@case
def other_rows() -> Any:
    import lookup_kernels as k

    return k.plain, k.arguments(rows=77)


@case
def second_call() -> Any:
    import lookup_kernels as k

    call(k.plain, *k.arguments())
    return k.plain, k.arguments()


@case
def after_a_trace() -> Any:
    import lookup_kernels as k

    call(k.built(9), *k.arguments())
    return k.plain, k.arguments()


@case
def closure() -> Any:
    import lookup_kernels as k

    return k.built(2), k.arguments()


@case
def in_a_thread() -> Any:
    import lookup_kernels as k

    threads = [threading.Thread(target=call, args=(k.plain, *k.arguments())) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    return k.plain, k.arguments()


@case
def patched_by_watch() -> Any:
    import lookup_kernels as k

    import aiter_flydsl_prebuild

    monitor = aiter_flydsl_prebuild.watch()
    call(k.plain, *k.arguments())
    call(k.built(7), *k.arguments())
    assert (monitor.table, monitor.traces) == (1, 1)
    return k.plain, k.arguments()


@case
def global_changed() -> Any:
    import lookup_kernels as k

    k.WIDTH = 3
    return k.plain, k.arguments()


@case
def global_changed_after_a_call() -> Any:
    import lookup_kernels as k

    call(k.plain, *k.arguments())
    k.WIDTH = 3
    return k.plain, k.arguments()


@case
def list_changed_after_a_call() -> Any:
    import lookup_kernels as k

    call(k.plain, *k.arguments())
    k.OFFSETS[0] = 5
    return k.plain, k.arguments()


@case
def helpers_global_changed() -> Any:
    import lookup_helper
    import lookup_kernels as k

    lookup_helper.STRIDE = 5
    return k.plain, k.arguments()


@case
def helper_replaced() -> Any:
    import lookup_helper
    import lookup_kernels as k

    lookup_helper.step = lookup_helper.other_step
    return k.plain, k.arguments()


@case
def helper_replaced_under_its_name() -> Any:
    import lookup_helper
    import lookup_kernels as k

    space: dict[str, Any] = {"__name__": "lookup_helper"}
    exec("def step(thread):\n    return thread * 16\n", space)
    lookup_helper.step = space["step"]
    return k.plain, k.arguments()


@case
def helpers_code_replaced_after_a_call() -> Any:
    import lookup_helper
    import lookup_kernels as k

    call(k.plain, *k.arguments())
    lookup_helper.step.__code__ = lookup_helper.other_step.__code__
    return k.plain, k.arguments()


@case
def builtin_shadowed() -> Any:
    import lookup_kernels as k

    k.int = lambda text: 9
    return k.environment, k.arguments()


@case
def source_changed_before_import() -> Any:
    import lookup_helper

    path = Path(lookup_helper.__file__)
    path.write_text(path.read_text().replace("thread * STRIDE", "thread * STRIDE * 2"))
    import lookup_kernels as k

    importlib.reload(lookup_helper)
    return k.plain, k.arguments()


@case
def kernels_source_changed_and_imported_anew() -> Any:
    import lookup_kernels as k

    path = Path(k.__file__)
    path.write_text(path.read_text().replace("fx.Uint8(7)", "fx.Uint8(8)"))
    k = importlib.reload(k)
    return k.plain, k.arguments()


@case
def source_changed_after_import() -> Any:
    """What is in memory counts: FlyDSL reads a source when it decorates, so a new launcher is another."""
    import lookup_kernels as k

    path = Path(k.__file__)
    path.write_text(path.read_text().replace("fx.Uint8(n)", "fx.Uint8(1)"))
    return k.built(2), k.arguments()


@case
def flydsl_function_replaced() -> Any:
    import flydsl.expr as fx
    import lookup_kernels as k

    fx.rocdl.sched_barrier = lambda mask: None
    return k.plain, k.arguments()


@case
def flydsl_function_replaced_after_a_call() -> Any:
    import flydsl.expr as fx
    import lookup_kernels as k

    call(k.plain, *k.arguments())
    fx.rocdl.sched_barrier = lambda mask: None
    return k.plain, k.arguments()


@case
def flydsl_method_replaced() -> Any:
    import lookup_kernels as k
    from flydsl.expr.typing import Pointer

    real = Pointer.store
    Pointer.store = lambda self, value, *a, **kw: real(self + 1, value, *a, **kw)
    return k.plain, k.arguments()


@case
def flydsl_operator_replaced() -> Any:
    import lookup_kernels as k
    from flydsl.expr.utils.arith import ArithValue

    ArithValue.__mul__ = ArithValue.__add__
    return k.plain, k.arguments()


@case
def flydsl_operator_hidden_by_a_subclass() -> Any:
    import flydsl.expr as fx
    import lookup_kernels as k

    fx.Int32.__mul__ = fx.Int32.__add__
    return k.plain, k.arguments()


@case
def flydsl_operation_replaced() -> Any:
    import lookup_kernels as k
    from flydsl._mlir.dialects import _fly_ops_gen as ops

    real = ops.AddOffsetOp.__init__
    ops.AddOffsetOp.__init__ = lambda self, *a, **kw: real(self, *a, **kw)
    return k.plain, k.arguments()


@case
def flydsl_native_function_replaced() -> Any:
    import lookup_kernels as k
    from flydsl._mlir import ir

    real = ir.IntegerType.get_signless
    ir.IntegerType.get_signless = lambda width, *a, **kw: real(width, *a, **kw)
    return k.plain, k.arguments()


@case
def flydsl_pipeline_replaced() -> Any:
    import lookup_kernels as k
    from flydsl.compiler.backends.rocm import RocmBackend

    real = RocmBackend.pipeline_fragments
    RocmBackend.pipeline_fragments = lambda self, **kw: [*real(self, **kw)[:-1], "cse", real(self, **kw)[-1]]
    return k.plain, k.arguments()


@case
def hint() -> Any:
    import lookup_kernels as k

    k.plain.compile_hints["waves_per_eu"] = 2
    return k.plain, k.arguments()


@case
def hint_of_a_thread() -> Any:
    import lookup_kernels as k
    from flydsl.compiler.kernel_function import CompilationContext

    CompilationContext._compile_hints.data = {"fast_fp_math": True}
    return k.plain, k.arguments()


@case
def tracing_context_around_the_call() -> Any:
    import lookup_kernels as k
    from flydsl.expr.meta import tracing_context

    context = tracing_context(fastmath="fast")
    context.__enter__()
    k.kept = context
    return k.plain, k.arguments()


@case
def element_type() -> Any:
    import flydsl.expr as fx
    import lookup_kernels as k

    return k.plain, k.arguments(element=fx.Int8)


@case
def alignment() -> Any:
    import lookup_kernels as k

    return k.plain, k.arguments(align=4)


@case
def constexpr() -> Any:
    import lookup_kernels as k

    return k.constant, (*k.arguments(), 8)


@case
def constexpr_of_another_type() -> Any:
    import lookup_kernels as k

    return k.constant, (*k.arguments(), True)


@case
def other_closure() -> Any:
    import lookup_kernels as k

    return k.built(3), k.arguments()


@case
def class_in_a_closure() -> Any:
    import lookup_kernels as k

    class Plain:
        scale = 5

    Plain.__qualname__, Plain.__module__ = "Plain", "lookup_kernels"
    return k.built(2, Plain), k.arguments()


@case
def object_in_a_closure() -> Any:
    import lookup_kernels as k

    return k.built(2, k.Settings(4)), k.arguments()


@case
def attribute_of_an_object_in_a_closure() -> Any:
    import lookup_kernels as k

    settings = k.Settings(4)
    launcher = k.built(2, settings)
    call(launcher, *k.arguments())
    settings.scale = 5
    return launcher, k.arguments()


@case
def attribute_of_a_class_in_a_closure() -> Any:
    import lookup_kernels as k

    k.Plain.scale = 6
    return k.built(2), k.arguments()


@case
def variable_that_the_trace_read() -> Any:
    import lookup_kernels as k

    os.environ["LOOKUP_TEST_BYTE"] = "6"
    return k.environment, k.arguments()


@case
def variable_set_after_a_call() -> Any:
    import lookup_kernels as k

    call(k.environment, *k.arguments())
    os.environ["LOOKUP_TEST_BYTE"] = "6"
    return k.environment, k.arguments()


@case
def keyed_variable() -> Any:
    import lookup_kernels as k

    os.environ["FLYDSL_COMPILE_OPT_LEVEL"] = "1"
    return k.plain, k.arguments()


@case
def debug_info() -> Any:
    import lookup_kernels as k

    os.environ["FLYDSL_DEBUG_ENABLE_DEBUG_INFO"] = "1"
    return k.plain, k.arguments()


@case
def other_arch() -> Any:
    import lookup_kernels as k

    os.environ["FLYDSL_GPU_ARCH"] = "gfx942"
    return k.plain, k.arguments()


@case
def reading_a_file() -> Any:
    import lookup_kernels as k

    return k.reading, k.arguments()


@case
def method() -> Any:
    import lookup_kernels as k

    return k.Owner().method, k.arguments()


def run(name: str, table: str) -> dict[str, Any]:
    """One case, in this process."""
    import flydsl.compiler.jit_function as jit

    from aiter_flydsl_prebuild.flydsl import lookup

    door = jit.JitFunction._compile_or_execute
    lookup.Lookup([lookup.Table(Path(table).read_text())], "on").install(jit)
    launcher, args = CASES[name]()
    before = lookup.counts.table
    function = getattr(launcher, "func", launcher)
    owner = function.__self__ if hasattr(function, "__self__") else launcher
    launcher(*args)
    found = owner._last_compiled[0]
    in_table = lookup.counts.table - before
    # The same call with nothing in front.
    jit.JitFunction._compile_or_execute = door
    launcher(*args)
    return {"table": in_table, "reasons": lookup.counts.left, "same": owner._last_compiled[0] == found}


def main() -> None:
    if sys.argv[1] == "record":
        return record(sys.argv[2])
    import lookup_helper
    import lookup_kernels

    sources = {Path(module.__file__): Path(module.__file__).read_text() for module in (lookup_helper, lookup_kernels)}
    results = {}
    for name in sys.argv[3:] or CASES:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                result = run(name, sys.argv[2])
            except BaseException as error:
                result = {"error": f"{type(error).__name__}: {error}"}
            os.write(write, json.dumps(result).encode())
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as pipe:
            results[name] = json.loads(pipe.read() or '{"error": "died"}')
        os.waitpid(child, 0)
        for path, text in sources.items():
            path.write_text(text)
    print(json.dumps(results))
    return None


if __name__ == "__main__":
    main()

"""What is wrapped around FlyDSL's functions, with the FlyDSL that is installed, in processes of their own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from processes import ROOT, SUPPORT, flydsl_environment, run_python

NAMES = """
import flydsl.compiler.jit_function as jit
from aiter_flydsl_prebuild.flydsl import listen

CALL = listen.CALL if listen.has(listen.CALL) else listen.OLD_CALL
NAMES = [CALL, *filter(listen.has, (listen.LOOKUP, listen.COMPILE, listen.CACHE_MANAGER, listen.DISK_KEY))]

def kept(name):
    *classes, last = name.split(".")
    return vars(getattr(jit, *classes) if classes else jit)[last]
"""

RESTORED = (
    NAMES
    + """
before = [kept(name) for name in NAMES]
around = lambda original, *arguments, **named: original(*arguments, **named)
for name, was in zip(NAMES, before):
    first, second = listen.wrap(name, around), listen.wrap(name, around)
    first()
    assert kept(name) is not was
    second()
    first()
    assert kept(name) is was
with listen.while_wrapped(listen.COMPILE, around):
    assert kept(listen.COMPILE) not in before
print([kept(name) for name in NAMES] == before)
"""
)

EVENTS = (
    NAMES
    + """
import os, sys
sys.path.insert(0, sys.argv[1])
import tiny, flydsl.compiler as flyc, flydsl.expr as fx
events = []
def called(proceed, launcher, arguments, named):
    events.append(f"call {launcher.func.__name__} {arguments[1]}")
    return proceed()
def compiled(proceed, module, launcher):
    result = proceed()
    events.append(f"compile {launcher or 'tiny'} {'tiny_kernel' in str(module)}")
    return result
def looked(proceed, manager, key):
    found = proceed()
    events.append(f"look {found is not None}")
    return found
took = [listen.around_calls(called), listen.around_compiles(compiled), listen.around_lookups(looked)]
listen.follow_cache_folder()
def call():
    tiny.tiny(flyc.from_c_void_p(fx.Uint8, 0, assumed_align=16), 5, fx.Stream(0))
with listen.recorded_artifact_keys() as keys:
    call()
print(events, len(keys) == listen.has(listen.DISK_KEY))
events.clear()
os.environ["FLYDSL_RUNTIME_CACHE_DIR"] += "-second"  # the launcher outlives it, and its kernel is not there
call()
print([event for event in events if event.startswith("compile")])
events.clear()
for restore in took:
    restore()
call()
print(events)
"""
)


def test_what_was_replaced_is_put_back(toolchain: Any, tmp_path: Path) -> None:
    run = run_python(["-c", RESTORED], flydsl_environment(toolchain, tmp_path / "cache"))
    assert run.returncode == 0, run.stderr
    assert run.stdout.split()[-1] == "True"


@pytest.mark.slow
def test_calls_looks_compiles_and_keys(toolchain: Any, tmp_path: Path) -> None:
    run = run_python(["-c", EVENTS, str(SUPPORT)], flydsl_environment(toolchain, tmp_path / "cache"))
    assert run.returncode == 0, run.stderr
    first, second, last = run.stdout.splitlines()[-3:]
    assert re.fullmatch(r"\['call tiny 5',( 'look False',)+ 'compile tiny True'\] True", first)
    assert second == "['compile tiny True']"
    assert last == "[]"


def test_a_flydsl_without_the_function_is_one_message(toolchain: Any, tmp_path: Path) -> None:
    """A FlyDSL to come: watch() says what is missing, vLLM's plugin logs it, and nothing stays replaced."""
    script = (
        NAMES + "import aiter_flydsl_prebuild as p\n"
        "from aiter_flydsl_prebuild.startup import vllm_plugin\n"
        "del jit.MlirCompiler.compile\n"
        "call = kept(CALL)\n"
        "for _ in range(2):\n"
        "    try: p.watch()\n"
        "    except Exception as error: print(type(error).__name__, error)\n"
        "print(kept(CALL) is call)\n"
        "vllm_plugin()\n"
    )
    environment = flydsl_environment(toolchain, tmp_path / "cache", AITER_FLYDSL_PREBUILD_LOG=str(tmp_path / "log"))
    run = run_python(["-c", script], environment)
    assert run.returncode == 0, run.stderr
    message = (
        r"flydsl \S+ has no MlirCompiler.compile in compiler/jit_function.py: this project knows FlyDSL 0.3.1 to 0.5"
    )
    assert re.fullmatch(rf"(PrebuildError {message}\n){{2}}True\n", run.stdout)
    (line,) = run.stderr.splitlines()
    assert re.search(rf"AITER_FLYDSL_PREBUILD_LOG is set, and nothing is watched: {message}$", line)


def test_nothing_else_replaces_an_attribute_of_flydsl() -> None:
    """Sources are read: `jit.X = …`, `setattr(jit, …)` and the like stand in one module alone."""
    replacing = re.compile(r"setattr\((jit|flydsl|flyc|fx)\b|^\s*(jit|flydsl|flyc|fx)\.[\w.]+ = ", re.MULTILINE)
    package = ROOT / "aiter_flydsl_prebuild"
    assert [p.name for p in package.rglob("*.py") if replacing.search(p.read_text()) and p.name != "listen.py"] == []

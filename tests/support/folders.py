"""What FlyDSL does for another user in cache folders of root's: a line of JSON for each folder. Needs root.

COMPILE_ONLY=1 FLYDSL_GPU_ARCH=gfx950 ROCM_PATH=… python folders.py ROOT

In each folder NAME below ROOT lies what cases() makes of the entry that root's call left. ``real`` is what became of
the other user's call: ``found``, ``compiled``, or the error's name. ``said`` is what the loader says beforehand.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import flydsl.compiler as flyc
import flydsl.compiler.jit_function as jit
import flydsl.expr as fx

from aiter_flydsl_prebuild.places import choose
from tiny import tiny

NOBODY = 65534


class Compiled(Exception):
    """FlyDSL came as far as compiling."""


def call() -> None:
    """The call of a process that has called nothing yet."""
    tiny._mem_cache.clear()
    tiny.cache_manager = tiny.manager_key = None
    getattr(tiny, "_call_state_cache", {}).clear()
    tiny(flyc.from_c_void_p(fx.Uint8, 0, assumed_align=16), 5, fx.Stream(0))


def cases(root: Path) -> Iterator[tuple[str, Path]]:
    """Folders as images and administrators leave them. ``locked``: root also called FlyDSL there, not only seeded."""

    def made(name: str, *commands: str, locked: bool = False) -> tuple[str, Path]:
        folder = root / name.translate({ord(" "): "-", ord(","): None})
        shutil.copytree(root / "entries", folder, ignore=None if locked else shutil.ignore_patterns("*.lock"))
        for command in commands:
            subprocess.run(command.format(f=folder), shell=True, check=True)
        return name, folder

    yield made("private to root")
    yield made("empty", "rm -r {f}/*", "chmod 755 {f}")
    yield made("given away", f"chown -R {NOBODY} {{f}}")
    yield made("given away, but used by root", f"chown -R {NOBODY} {{f}}", "chown -R 0 {f}/*/*.lock", locked=True)
    yield made("of the group", f"chgrp -R {NOBODY} {{f}}", "chmod -R g=u {f}")
    yield made(
        "of the group, but used by root",
        f"chgrp -R {NOBODY} {{f}}",
        "chmod -R g=u {f}",
        "chmod 644 {f}/*/*.lock",
        locked=True,
    )
    yield made("folders open, entries not", "chmod -R a+rwX {f}", "chmod 600 {f}/*/*.pkl")
    yield made("read only, locks open", "chmod -R a+rX {f}", "chmod 666 {f}/*/*.lock", locked=True)
    yield made("a file", "rm -r {f}", "touch {f}")
    yield made("a link to nothing", "rm -r {f}", "ln -s /nonexistent/cache {f}")
    yield (
        made("below their own", f"rm -r {{f}}; mkdir {{f}}; chown {NOBODY} {{f}}")[0],
        root / "below-their-own" / "new",
    )


def attempt(folder: Path) -> str:
    os.environ["FLYDSL_RUNTIME_CACHE_DIR"] = str(folder)

    def compiling(*args: object, **kwargs: object) -> None:
        raise Compiled

    jit.MlirCompiler.compile = compiling  # the other user may be shut out of the linker
    try:
        call()
    except Compiled:
        return "compiled"
    except OSError as error:
        return type(error).__name__
    return "found"


def main() -> None:
    """Try all folders."""
    root = Path(sys.argv[1])
    os.environ["FLYDSL_RUNTIME_CACHE_DIR"] = str(root / "entries")
    os.umask(0o022)
    call()
    os.chmod(root / "entries", 0o700)
    for path in (root / "entries").glob("*"):
        path.chmod(0o700)
    choose(os.environ, None)
    for name, folder in cases(root):
        if os.fork() == 0:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.environ["FLYDSL_RUNTIME_CACHE_DIR"] = str(folder)
            said = choose(os.environ, None)
            print(
                json.dumps({"name": name, "real": attempt(folder), "usable": said.usable, "said": said.problems}),
                flush=True,
            )
            os._exit(0)
        os.wait()


if __name__ == "__main__":
    main()

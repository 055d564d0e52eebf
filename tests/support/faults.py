"""The fault suite: seeding under what a cluster does to it, with real processes.

    python tests/support/faults.py [--short] [SCENARIO ...]

Prints one line per scenario with what was done how often; ends with 1 where anything went wrong, 0 otherwise. Mounts
and other users need root: without it those scenarios are left out, with the reason. ``--short`` does less of the same.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import functools
import hashlib
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from aiter_flydsl_prebuild import entries, files, seed, seeding
from aiter_flydsl_prebuild.discovery import STAMPS, TEMPORARY
from aiter_flydsl_prebuild.marker import marker_path
from packs import closed_to_others, make_compiled, make_pack

KERNELS = 40
NOBODY = 65534


class Skip(Exception):
    """This scenario cannot be had here; the message says why."""


class Bench:
    """A folder to work in, a pack of kernels, and what the cache holds when all is well."""

    def __init__(self, root: Path) -> None:
        self.root = root
        # Text that does not compress to nothing, alike from kernel to kernel as real ones are.
        rng = random.Random(0)
        body = "".join(rng.choice("0123456789abcdef") for _ in range(8000))
        kernels = [make_compiled(f"k{i}", f"module {{ {i} {body} }}") for i in range(KERNELS)]
        self.pack = make_pack(root / "a.fkpack", kernels)
        # Every process is a fork of this one: what they need is loaded here, since some of them are other users.
        logging.getLogger("aiter_flydsl_prebuild").addHandler(logging.NullHandler())
        seeding.seed(packs=[str(self.pack)], environ=self.environ(root / "model"))
        self.wanted = contents(root / "model")
        expect(len(self.wanted) == KERNELS, "the model is not complete")
        self.rng = random.Random(1)

    def environ(self, folder: Path | None = None, **more: str) -> dict[str, str]:
        """The environment of a server on this machine; without ``folder``, FlyDSL's folder is the home's."""
        environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.root / "home"),
            "TMPDIR": str(self.root / "tmp"),
            "AITER_FLYDSL_PREBUILD_ARCH": "gfx950",
            "AITER_FLYDSL_PREBUILD_PACKS": str(self.pack),
            "ROCM_PATH": str(self.root / "rocm"),
        }
        if folder is not None:
            environ["FLYDSL_RUNTIME_CACHE_DIR"] = str(folder)
        return environ | more

    def fresh(self, name: str) -> Path:
        """A path below the root where nothing is."""
        folder = self.root / name
        shutil.rmtree(folder, ignore_errors=True)
        return folder

    def faults(self, folder: Path, *, all_there: bool = True) -> list[str]:
        """What is wrong with a cache folder: lost or foreign files, torn ones, and what was left behind."""
        found = contents(folder)
        faults = [f"torn or foreign: {name}" for name in found if self.wanted.get(name) != found[name]]
        if all_there:
            faults += [f"lost: {name}" for name in self.wanted.keys() - found.keys()]
            faults += [f"left behind: {path}" for path in leftovers(folder)]
        return faults


def contents(folder: Path) -> dict[str, str]:
    """Name -> hash of every file under a final name."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.glob("[!.]*/[!.]*")
    }


def leftovers(folder: Path) -> list[Path]:
    return list(folder.rglob(f"{TEMPORARY}*"))


def expect(condition: object, message: object) -> None:
    """End the scenario unless something holds. (assert would be gone under -O.)"""
    if not condition:
        raise AssertionError(message)


def clean(faults: Iterable[str]) -> None:
    """End the scenario with its faults, if there are any."""
    found = list(faults)
    expect(not found, f"{len(found)} faults: {'; '.join(found[:5])}")


def complete(report: dict[str, Any], what: str = "") -> None:
    """End the scenario unless a start found or put all in place, with nothing to say."""
    expect(report["kernels"] == KERNELS and not report["problems"], f"{what}: {report['problems']}")


# ---- processes -------------------------------------------------------------------------------------------------------


def fork(work: Callable[[], Any], environ: dict[str, str] | None = None) -> int:
    """A process that does ``work`` and ends, with 0 if it was done."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        if environ is not None:
            os.environ.clear()
            os.environ.update(environ)
        work()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def in_child(environ: dict[str, str], work: Callable[[], Any], user: int | None = None) -> Any:
    """What ``work`` returns, done in a process of its own, with an environment and perhaps as another user."""
    reading, writing = os.pipe()

    def task() -> None:
        if user is not None:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
        with open(writing, "w") as out:
            json.dump(work(), out)

    pid = fork(task, environ)
    os.close(writing)
    with open(reading) as pipe:
        text = pipe.read()
    _, status = os.waitpid(pid, 0)
    expect(status == 0, f"the process ended with {status}")
    return json.loads(text)


def start() -> dict[str, Any]:
    """What a server does at its start, and what became of it."""
    report = seed()
    return {**report.to_json(), "kernels": report.kernels, "written": report.written, "environ": dict(os.environ)}


def nothing_raised(pids: list[int]) -> None:
    statuses = [os.waitpid(pid, 0)[1] for pid in pids]
    expect(not any(statuses), f"{sum(map(bool, statuses))} processes failed")


@contextlib.contextmanager
def watched(bench: Bench, folder: Path) -> Iterator[Callable[[], int]]:
    """A process that reads all files under final names, over and over; its count of reads is what comes back."""
    reading, writing = os.pipe()
    stop = bench.root / "stop"
    stop.unlink(missing_ok=True)

    def read_on() -> None:
        reads = 0
        torn: list[str] = []
        while not stop.exists():
            for name, wanted in bench.wanted.items():
                try:
                    data = (folder / name).read_bytes()
                except OSError:
                    continue
                reads += 1
                if hashlib.sha256(data).hexdigest() != wanted:
                    torn.append(name)
        with open(writing, "w") as out:
            json.dump([reads, torn], out)

    pid = fork(read_on)
    os.close(writing)
    found: list[Any] = []

    def reads() -> int:
        stop.touch()
        with open(reading) as pipe:
            found.extend(json.loads(pipe.read()))
        os.waitpid(pid, 0)
        clean(f"read torn: {name}" for name in found[1])
        return int(found[0])

    try:
        yield reads
    finally:
        if not found:
            stop.touch()
            os.waitpid(pid, 0)


@contextlib.contextmanager
def mounted(folder: Path, *arguments: str) -> Iterator[None]:
    """Something mounted on a folder, for a while."""
    if os.geteuid() != 0:
        raise Skip("mounting needs root")
    folder.mkdir(parents=True, exist_ok=True)
    run = subprocess.run(["mount", *arguments, str(folder)], capture_output=True, text=True, check=False)
    if run.returncode:
        raise Skip(f"mount: {run.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


# ---- scenarios -------------------------------------------------------------------------------------------------------


def crowd(bench: Bench, short: bool) -> str:
    """64 processes seed one folder at once."""
    rounds, crowd_size = (3, 64) if short else (50, 64)
    written = 0
    folder = bench.root / "crowd"
    for number in range(rounds):
        bench.fresh("crowd")
        gate, opener = os.pipe()
        tally, teller = os.pipe()

        def task(gate: int = gate, opener: int = opener, teller: int = teller) -> None:
            os.close(opener)
            os.read(gate, 1)
            report = start()
            complete(report)
            # What this process will read, at the moment when it starts to.
            expect(contents(folder) == bench.wanted, "lost, torn or foreign files")
            os.write(teller, f"{report['written']}\n".encode())

        pids = [fork(task, bench.environ(folder)) for _ in range(crowd_size)]
        os.close(opener)
        nothing_raised(pids)
        os.close(gate)
        os.close(teller)
        with open(tally) as counts:
            written += sum(map(int, counts))
        clean(f"round {number}: {fault}" for fault in bench.faults(folder))
    return f"{rounds} rounds of {crowd_size} processes, {KERNELS} kernels: none lost, torn or double; {written} writes"


def killed(bench: Bench, short: bool) -> str:
    """SIGKILL at random points; the next start is complete."""
    kills = 60 if short else 500
    folder = bench.fresh("killed")
    begun = time.perf_counter()
    in_child(bench.environ(folder), start)
    usual = time.perf_counter() - begun
    midway = remains = 0
    with watched(bench, folder) as reads:
        for number in range(kills):
            bench.fresh("killed")
            pid = fork(start, bench.environ(folder))
            time.sleep(bench.rng.uniform(0, usual))
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            midway += folder.exists() and marker_path(str(folder)) not in map(str, folder.rglob("seeded-*"))
            remains += len(leftovers(folder))
            clean(bench.faults(folder, all_there=False))
            complete(in_child(bench.environ(folder), start), f"kill {number}")
            expect(contents(folder) == bench.wanted, f"kill {number}: lost files")
        count = reads()
    return (
        f"{kills} kills, {midway} of them amid the writing, {remains} half-written files left under temporary names; "
        f"every next start complete; {count} reads under final names, none torn"
    )


def full(bench: Bench, short: bool) -> str:
    """ENOSPC, at every point of a seeding."""
    folder = bench.fresh("full")
    ended: dict[str, int] = {}
    step = 48 if short else 6
    with mounted(folder, "-t", "tmpfs", "-o", "size=1m", "tmpfs"):
        for free in range(0, 560, step):
            for name in os.listdir(folder):
                shutil.rmtree(folder / name) if (folder / name).is_dir() else (folder / name).unlink()
            with contextlib.suppress(OSError), open(folder / "filler", "wb", buffering=0) as filler:
                filler.write(bytes(1024 * (1024 - free)))
            chosen = folder / "cache"
            report = in_child(bench.environ(chosen), start)
            clean(bench.faults(chosen, all_there=False))
            clean(f"left behind: {path}" for path in leftovers(folder))
            how = "complete"
            if report["kernels"] != KERNELS:
                how = "refused"
                (line,) = report["problems"]
                expect(os.strerror(errno.ENOSPC) in line and "kernels will be compiled" in line, line)
            ended[how] = ended.get(how, 0) + 1
            # The same where the folder is not the user's choice: another one takes it.
            bench.fresh("tmp").mkdir()
            elsewhere = in_child(bench.environ(HOME=str(folder)), start)
            expect(elsewhere["kernels"] == KERNELS, elsewhere["problems"])
            if elsewhere["problems"]:
                where = Path(elsewhere["cache_dir"])
                told = elsewhere["environ"].get("FLYDSL_RUNTIME_CACHE_DIR")
                expect(told == str(where), f"FlyDSL is told {told}")
                clean(bench.faults(where))
            (folder / "filler").unlink()
            complete(in_child(bench.environ(chosen), start), "with room again")
            clean(bench.faults(chosen))
    return f"{sum(ended.values())} sizes of a tmpfs: {ended}; none left a part of a file; complete once there was room"


def read_only(bench: Bench, short: bool) -> str:
    """A read-only bind mount with all kernels in it: FlyDSL cannot lock there, so it must not be taken."""
    source = bench.fresh("writable")
    home = bench.fresh("ro-home")
    (home / ".flydsl" / "cache").mkdir(parents=True)
    in_child(bench.environ(source), start)
    link = bench.root / "ro-link"
    link.symlink_to(home / ".flydsl" / "cache")
    checked = 0
    with mounted(home / ".flydsl" / "cache", "--bind", str(source)):
        complete(in_child(bench.environ(HOME=str(home)), start), "writable")
        remount = ["mount", "-o", "remount,ro,bind", str(home / ".flydsl" / "cache")]
        if subprocess.run(remount, check=False, capture_output=True).returncode:
            raise Skip("a bind mount cannot be made read-only here")
        # With its marker, with its stamps alone, and empty-handed.
        for gone in ("", "seeded-*", "*"):
            for path in (source / STAMPS).glob(gone) if gone else ():
                path.unlink()
            # FlyDSL's own folder is nobody's choice, also where the variable names it, as vLLM sets it.
            for chosen in (None, home / ".flydsl" / "cache", link):
                bench.fresh("tmp").mkdir()
                report = in_child(bench.environ(chosen, HOME=str(home)), start)
                checked += 1
                (line,) = report["problems"]
                expect(os.strerror(errno.EROFS) in line, line)
                expect(report["kernels"] == (0 if chosen == link else KERNELS), f"{report['kernels']} kernels: {line}")
                if chosen != link:
                    clean(bench.faults(Path(report["cache_dir"])))
                    shutil.rmtree(report["cache_dir"])
    return f"{checked} starts: the user's choice refused with one line, another folder taken where it was nobody's"


def other_user(bench: Bench, short: bool) -> str:
    """Folders of root's, seen by another user."""
    if os.geteuid() != 0:
        raise Skip("needs root, to become another user")
    if why := closed_to_others():
        raise Skip(why)
    for folder in (bench.root, bench.root.parent):
        folder.chmod(folder.stat().st_mode | 0o055)
    bench.pack.chmod(0o644)
    starts = 0
    for mode in (0o700, 0o755, 0o777):
        for seeded in (False, True):
            home = bench.fresh("root-home")
            folder = home / ".flydsl" / "cache"
            folder.mkdir(parents=True)
            if seeded:
                in_child(bench.environ(HOME=str(home)), start)
            for path in (folder, folder.parent, home):
                path.chmod(mode)
            before = {path: path.stat().st_mtime_ns for path in home.rglob("*")} if seeded else {}
            bench.fresh("tmp").mkdir()
            (bench.root / "tmp").chmod(0o1777)
            report = in_child(bench.environ(HOME=str(home)), start, user=NOBODY)
            starts += 1
            what = f"mode {mode:o}, {'seeded' if seeded else 'empty'}"
            expect(report["kernels"] == KERNELS, f"{what}: {report['problems']}")
            expect(report["problems"], f"{what}: no word of it")
            private = bench.root / "tmp" / f"aiter-flydsl-prebuild-{NOBODY}"
            if mode == 0o777 and not seeded:
                expect("belongs to another user" in report["problems"][0], report["problems"])
            else:
                taken = Path(report["cache_dir"])
                expect(taken != folder and (taken == private or mode == 0o777), f"{what}: {taken}")
                clean(bench.faults(taken))
                expect(taken.stat().st_mode & 0o777 == 0o700, f"{what}: mode {taken.stat().st_mode:o}")
            changed = [p for p, stamp in before.items() if p.stat().st_mtime_ns != stamp and p.is_file()]
            clean(f"{what}: changed {path}" for path in changed)
    # Somebody else's link in the shared temporary folder, to a folder of the victim's own.
    victim = bench.fresh("precious")
    victim.mkdir(mode=0o700)
    bench.fresh("tmp").mkdir()
    (bench.root / "tmp" / f"aiter-flydsl-prebuild-{os.geteuid()}").symlink_to(victim)
    blocked = bench.root / "blocked"
    blocked.touch()
    report = in_child(bench.environ(HOME=str(blocked / "me")), start)
    expect(report["kernels"] == KERNELS and not list(victim.iterdir()), "a planted link was followed")
    expect(report["cache_dir"].endswith(f"-{os.geteuid()}-1"), report["cache_dir"])
    return f"{starts} starts as another user: root's files untouched, a private folder taken; a planted link refused"


def corrupted(bench: Bench, short: bool) -> str:
    """A byte of the pack is another: nothing of it is loaded."""
    places = 60 if short else 200
    whole = bench.pack.read_bytes()
    spoiled = bench.root / "spoiled.fkpack"
    folder = bench.fresh("corrupted")
    environ = bench.environ(folder, AITER_FLYDSL_PREBUILD_PACKS=str(spoiled))
    try:
        for _ in range(places):
            at = bench.rng.randrange(len(whole))
            spoiled.write_bytes(whole[:at] + bytes([whole[at] ^ bench.rng.randrange(1, 256)]) + whole[at + 1 :])
            report = in_child(environ, start)
            expect(not report["kernels"] and not folder.exists(), f"byte {at} was taken")
            expect(len(report["problems"]) == 1, f"byte {at}: {report['problems']}")
        # A sound one beside it is no worse for it, and puts right what was seeded before.
        both = {**environ, "AITER_FLYDSL_PREBUILD_PACKS": f"{spoiled}:{bench.pack}"}
        report = in_child(both, start)
        expect(report["kernels"] == KERNELS and len(report["problems"]) == 1, report["problems"])
        clean(bench.faults(folder))
    finally:
        spoiled.unlink()
    return f"{places} packs with one byte changed: each refused with one line, nothing written; its neighbour seeded"


def clock(bench: Bench, short: bool) -> str:
    """Clocks in the past and the future: live temporary files stay, dead ones go."""
    year = 365 * 86400
    folder = bench.fresh("clock")
    in_child(bench.environ(folder), start)
    launcher = folder / next(iter(bench.wanted)).split("/")[0]

    def start_at(shift: float) -> dict[str, Any]:
        real = time.time
        time.time = lambda: real() + shift
        return start()

    checked = 0
    for shift in (0, -10 * year, 10 * year, -time.time()):
        for age, stays in ((0, True), (600, True), (-600, True), (7200, False), (-7200, False), (20 * year, False)):
            for place in (launcher, folder / STAMPS):
                left = place / f"{TEMPORARY}0.tmp"
                left.write_bytes(b"half")
                os.utime(left, (time.time() - age, time.time() - age))
                report = in_child(bench.environ(folder), functools.partial(start_at, shift))
                checked += 1
                complete(report, "clock")
                what = f"clock {shift:+.0f} s, file aged {age} s, in {place.name}"
                expect(left.exists() == stays, f"{what}: {'swept while alive' if stays else 'stays'}")
                left.unlink(missing_ok=True)
        clean(bench.faults(folder))

    # The clock is set while a file is half-written: another start sweeps it, and its writer writes it again.
    swept = 0

    def overtaken() -> dict[str, Any]:
        replace = os.replace
        count = 0

        def late(source: str, target: str) -> None:
            nonlocal count
            count += 1
            if count % 7 == 0:
                os.utime(source, (0, 0))
                there = os.path.dirname(source)
                nothing_raised([fork(lambda: files.sweep(there, os.listdir(there)))])
            replace(source, target)

        os.replace = late  # type: ignore[assignment]
        report = start()
        return {**report, "swept": count // 7}

    for _ in range(1 if short else 5):
        report = in_child(bench.environ(bench.fresh("clock")), overtaken)
        swept += report["swept"]
        complete(report, "clock set amid the writing")
        clean(bench.faults(folder))
    return (
        f"{checked} starts under four clocks: live files stay, dead ones go; {swept} live files that a set clock made "
        "look dead were swept and written again"
    )


def deleted(bench: Bench, short: bool) -> str:
    """The folder goes away while it is seeded."""
    rounds = 20 if short else 200
    folder = bench.fresh("deleted")

    def start_with_accident(after: int) -> dict[str, Any]:
        create = files.create
        count = 0

        def create_and_lose(path: str, pieces: files.Pieces) -> None:
            nonlocal count
            count += 1
            if count == after:
                shutil.rmtree(folder)
            create(path, pieces)

        vars(entries)["create"] = create_and_lose
        return start()

    for number in range(rounds):
        bench.fresh("deleted")
        after = 1 + number % KERNELS
        report = in_child(bench.environ(folder), functools.partial(start_with_accident, after))
        complete(report, f"lost at {after}")
        clean(f"lost at {after}: {fault}" for fault in bench.faults(folder))

    # Somebody keeps deleting it: no process falls over, and the first start afterwards is complete.
    told = whole = 0
    stop = bench.root / "stop-deleting"

    def delete_on() -> None:
        while not stop.exists():
            shutil.rmtree(folder, ignore_errors=True)
            time.sleep(0.002)

    stop.unlink(missing_ok=True)
    pid = fork(delete_on)
    try:
        for _ in range(rounds):
            report = in_child(bench.environ(folder), start)
            told += bool(report["problems"])
            whole += report["kernels"] == KERNELS
            expect(report["problems"] or report["kernels"] == KERNELS, "no kernels and no word of it")
    finally:
        stop.touch()
        os.waitpid(pid, 0)
    complete(in_child(bench.environ(folder), start), "left in peace")
    clean(bench.faults(folder))
    return (
        f"{rounds} folders deleted once amid the writing: all complete; {rounds} starts against a process that deletes "
        f"all the time: {whole} complete, {told} said so in one line; then complete"
    )


SCENARIOS = {
    function.__name__: function for function in (crowd, killed, full, read_only, other_user, corrupted, clock, deleted)
}


def run(names: list[str], short: bool) -> Iterator[tuple[str, str, str]]:
    """``(scenario, ok | skipped | FAILED, what was done)`` for each, as it ends."""
    for name in names:
        with tempfile.TemporaryDirectory(prefix=f"faults-{name}-") as folder:
            begun = time.perf_counter()
            try:
                bench = Bench(Path(folder))
                result = "ok", SCENARIOS[name](bench, short)
            except Skip as reason:
                result = "skipped", str(reason)
            except Exception as error:
                result = "FAILED", f"{type(error).__name__}: {error}"
            yield name, result[0], f"{result[1]} ({time.perf_counter() - begun:.1f} s)"


def main() -> int:
    """Run the scenarios that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"of {', '.join(SCENARIOS)} (default: all)")
    parser.add_argument("--short", action="store_true", help="less of the same, in under a minute")
    options = parser.parse_args()
    if unknown := set(options.scenarios) - SCENARIOS.keys():
        parser.error(f"no such scenario: {', '.join(sorted(unknown))}")
    failed = False
    for name, result, text in run(options.scenarios or list(SCENARIOS), options.short):
        print(f"{result:8}{name:12}{text}", flush=True)
        failed |= result == "FAILED"
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

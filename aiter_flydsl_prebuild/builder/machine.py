"""How much of this machine a build may use: cores and memory, cgroup limits included."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


def default_workers(memory_per_worker: float = 0.7, *, root: Path = Path("/")) -> int:
    """How many workers this machine can feed, at least 1: no more than cores, nor than free memory allows.

    ``memory_per_worker`` is in GB (10^9 bytes): torch and FlyDSL loaded, plus one compile. Cores are those this process
    may run on, less under a cgroup's CPU quota; free memory is MemAvailable, less under a cgroup's limit. ``root`` is
    where ``proc`` and ``sys`` are, for tests.
    """
    by_memory = available_memory(root) / (memory_per_worker * 1e9)
    return max(1, int(min(len(os.sched_getaffinity(0)), *_cpu_quotas(root), by_memory)))


def available_memory(root: Path = Path("/")) -> float:
    """Bytes that new processes can have: MemAvailable, less under a cgroup's limit; infinite where nothing says."""
    found = [float("inf")]
    with contextlib.suppress(OSError, StopIteration, ValueError):
        lines = (root / "proc" / "meminfo").read_text().splitlines()
        found.append(float(next(line.split()[1] for line in lines if line.startswith("MemAvailable:"))) * 1024)
    for group in _cgroups(root, "memory"):
        for limit_name, usage_name, cache_name in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            with contextlib.suppress(OSError, ValueError):
                limit, usage = float((group / limit_name).read_text()), float((group / usage_name).read_text())
                statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
                # Page cache counts as usage, but the kernel gives it back when asked.
                found.append(limit - usage + float(statistics.get(cache_name, 0)))
    return max(0.0, min(found))


def _cpu_quotas(root: Path) -> Iterator[float]:
    """Cores by each cgroup's quota."""
    yield float("inf")
    for group in _cgroups(root, "cpu"):
        with contextlib.suppress(OSError, ValueError):
            quota, period = (float(word) for word in (group / "cpu.max").read_text().split())
            yield quota / period
        with contextlib.suppress(OSError, ValueError):
            quota = float((group / "cpu.cfs_quota_us").read_text())
            if quota > 0:
                yield quota / float((group / "cpu.cfs_period_us").read_text())


def _cgroups(root: Path, controller: str) -> Iterator[Path]:
    """The folders of this process's cgroup and of all above it, for cgroup v1 and v2.

    In a container /proc may name a path that is not mounted there, and its own group is then the mount's top.
    """
    mount = root / "sys" / "fs" / "cgroup"
    with contextlib.suppress(OSError):
        for line in (root / "proc" / "self" / "cgroup").read_text().splitlines():
            number, controllers, path = line.split(":", 2)
            if number != "0" and controller not in controllers.split(","):
                continue
            top = mount if number == "0" else mount / controller
            group = top / path.strip("/")
            yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(top))

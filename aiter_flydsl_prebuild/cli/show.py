"""Results for people; programs use ``--json``. Plain lines, which need nothing but the standard library."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..model.tokens import count, spelled
from ..report import covered

if TYPE_CHECKING:
    from ..builder.execution.running import Execution
    from ..builder.proof.proof import Proof
    from ..builder.proof.verifying import Verification
    from ..builder.reports.diffing import Difference
    from ..builder.reports.inspecting import Summary
    from ..builder.store.store import Statistics
    from ..dispatch.fromlog import Wanted
    from ..dispatch.reach import Reach
    from ..packs.manifest import LeftOut, PackedKernel
    from ..report import SeedReport
    from ..sources.planning import LayerPlan
    from ..warming import WarmReport

_LINES = 12

# By the reasons of reach.SkippedReach.
_WHY_SKIPPED = {
    "undecodable": "another library, by a row whose name AITER cannot decode",
    "unknown": "nothing that is built here: no kernel family known here has the name",
}


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print columns that are as wide as they need to be: the first flush left, the others flush right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, *rows):
        first, *others = zip(row, widths, strict=True)
        cells = [first[0].ljust(first[1]), *(text.rjust(width) for text, width in others)]
        print(" ".join(cells).rstrip())


def plan(reach: Reach, left_out: Sequence[LeftOut] = (), beside: int = 0) -> None:
    """A line for each shape and operand contract, the totals, and what is left out.

    0 CUs are every partition that no row is for; ``beside`` counts compiles that no table leads to.
    """
    from ..dispatch.reach import UNDECODABLE

    header = ("op", "arch", "CUs", "N", "K", "scales", "kernels", "other libraries", "uncovered")
    rows = []
    for one in reach.shapes:
        shape = one.shape
        other = ", ".join(f"{o.libtype} {count(o.tokens)}" for o in one.other)
        layer = (shape.op, shape.gfx, str(shape.cu_num), str(shape.n), str(shape.k))
        uncovered = str(count(one.uncovered)) if one.uncovered else "-"
        scales = shape.w_scale_block or shape.q_dtype_w or ""
        rows.append((*layer, scales, str(len(one.kernels)), other or "-", uncovered))
    _table(header, rows)
    skipped = ", ".join(f"{count} {reason}" for reason, count in reach.skipped_rows.items() if count) or "none"
    print(
        f"\n{reach.distinct_kernels} distinct kernels for tokens {reach.tokens[0]}..{reach.tokens[1]} "
        f"(rule {reach.rule}); rows without a kernel: {skipped}"
    )
    if beside:
        print(f"{beside} compiles beside the tables")
    if names := reach.skipped(UNDECODABLE):
        print(undecodable(list(names)))
    for lost in left_out:
        print(f"skipped: {lost}")


def layers(found: LayerPlan) -> None:
    """For each shape a line for every run of token counts, who serves it and why."""
    from ..model.tokens import without

    for entry in found.reach.shapes:
        shape = entry.shape
        where = f"{shape.cu_num} CUs" if shape.cu_num else "any number of CUs"
        scales = f", scales {shape.w_scale_block}" if shape.w_scale_block else ""
        print(f"{shape.op}, {shape.gfx}, {where}: N={shape.n}, K={shape.k}{scales}")
        picked = found.heuristic[shape]
        runs = []
        for kernel in entry.kernels:
            tuned = without(kernel.tokens, picked)
            runs += [(run, f"{kernel.name}, by a table") for run in tuned]
            runs += [(run, f"{kernel.name}, by the heuristic") for run in without(kernel.tokens, tuned)]
        runs += [(run, f"{other.libtype}, by a table") for other in entry.other for run in other.tokens]
        runs += [(run, f"{_WHY_SKIPPED[one.reason]}: {one.name}") for one in entry.skipped for run in one.tokens]
        runs += [(run, "no row, and no heuristic with a FlyDSL kernel") for run in entry.uncovered]
        for (first, last), what in sorted(runs):
            print(f"  {first}..{last}  {what}" if last > first else f"  {first}  {what}")
    for lost in found.left_out:
        print(f"skipped: {lost}")
    if not found.reach.shapes:
        print("no op that could serve such a layer is usable here")


def undecodable(names: Sequence[str]) -> str:
    """One line on names of the tables for which there is nothing to compile."""
    few = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
    return f"no kernels of {len(names)} names that AITER cannot decode, for which it runs another library: {few}"


def log(found: Sequence[Wanted]) -> None:
    """A line for each launcher and weight that servers compiled, and which token counts the tables have no row for."""
    rows = []
    for one in found:
        lost = [m for m, name in one.rows.items() if name is None]
        layer = (one.launcher, *(str(value or "?") for value in (one.n, one.k)))
        rows.append((*layer, str(one.compiles), f"{one.seconds:.1f}", _few(one.tokens), _few(lost)))
    _table(("launcher", "N", "K", "compiles", "seconds", "tokens", "without a row"), rows)


def _few(counts: Sequence[int]) -> str:
    return ", ".join(map(str, counts)) if len(counts) <= 6 else f"{counts[0]}, … {counts[-1]} ({len(counts)})"


def build(result: dict[str, Any]) -> None:
    """The wheel and what it cost."""
    from ..packs.manifest import LeftOut

    proof = result["proof"]
    print(result["wheel"] or result["part"])
    print(
        f"{result['kernels']} kernels for {result['shapes']} shapes in {result['seconds']} s "
        f"(compiling {result['compile_seconds']} s), {result['bytes']} bytes, {result['bytes_per_kernel']} a kernel"
    )
    if result["reused"]:
        print(f"{result['compiled']} compiled, {result['reused']} out of the kernel store")
    if proof is None:
        print("not proven: a part of a build; merge joins all parts and proves them")
    else:
        print(
            f"proven: {proof['dispatches']} dispatches, {proof['calls']} calls, {proof['compiled']} compiles, "
            f"{proof['payloads']} payloads read by FlyDSL"
        )
    if result["uncovered"]:
        print(f"{result['uncovered']} token counts are served by no row of the tables (inspect lists them)")
    if result["undecodable"]:
        print(undecodable(result["undecodable"]))
    for one in result["left_out"]:
        print(f"skipped: {LeftOut(**one)}")
    if result["failed"]:
        print(f"left out, {len(result['failed'])} kernels:")
        for line in result["failed"]:
            print(f"  {line}")


def verification(found: Verification) -> None:
    """Each proof, with the names of its packs where there are several, and what is wrong with the wheel."""
    for one in found.proofs:
        if len(found.proofs) > 1:
            print(f"{', '.join(one.packs)}:")
        proof(one.proof)
    if found.wheel_problems:
        print("the wheel FAILED: pip would not install it right")
        for line in found.wheel_problems:
            print(f"  {line}")


def execution(found: Execution) -> None:
    """A line for each kernel that was executed, the totals, and what is wrong."""
    rows = [
        (
            one.candidate.job.label,
            "; ".join(outcome.label for outcome in one.outcomes) or "-",
            f"{sum(o.tiles for o in one.outcomes)} of {sum(o.of for o in one.outcomes)}",
            f"{one.worst:.3g}" if one.outcomes else "-",
            f"{sum(o.seconds for o in one.outcomes):.1f}" + (" (kept)" if one.kept else ""),
            one.status,
        )
        for one in found.kernels
        if one.status != "not chosen"
    ]
    if rows:
        _table(("kernel", "problems", "tiles", "error", "seconds", "result"), rows)
    total = found.to_json()
    print(
        f"{'executed' if found.ok else 'FAILED'} on the {found.on}: {total['equal']} kernels compute what they should, "
        f"{total['races']} only if they win a race, {total['wrong']} do not, "
        f"{total['not_executed']} could not be executed, {total['not_chosen']} were not chosen; {found.seconds:.1f} s"
    )
    lines = [*found.complaints(), *found.races()]
    for line in lines[:_LINES]:
        print(f"  {line}")
    if len(lines) > _LINES:
        print(f"  … and {len(lines) - _LINES} more (--json has all)")


def proof(found: Proof) -> None:
    """The verdict, the counts, and what is wrong."""
    kind = "cold run" if found.cold else "proof"
    print(
        f"{kind} {'holds' if found.ok else 'FAILED'}: {found.dispatches} dispatches, {found.calls} calls, "
        f"{found.kernels} kernels, {found.compiled} compiled, "
        f"{len(found.misses)} missed, {found.payloads} payloads read, {found.seconds:.1f} s"
    )
    lines = [] if found.ok else found.complaints()
    for line in lines[:_LINES]:
        print(f"  {line}")
    if len(lines) > _LINES:
        print(f"  … and {len(lines) - _LINES} more (--json has all)")
    if found.uncovered:
        total = sum(count([(r[0], r[1]) for r in one["tokens"]]) for one in found.uncovered)
        print(f"  {total} token counts are served by no row of the tables")


def packs(summaries: Sequence[Summary], written: Sequence[str]) -> None:
    """What is in each pack, a line for each device function of a kernel."""
    for pack in summaries:
        manifest = pack.manifest
        plan, flydsl = manifest.plan, manifest.flydsl
        print(
            f"{pack.file}: {len(manifest.kernels)} kernels for {manifest.arch}, flydsl {flydsl.version} "
            f"({', '.join(sorted(flydsl.identities))}), source {manifest.source.name}, {pack.bytes} bytes"
        )
        print(
            f"tokens {plan.tokens[0]}..{plan.tokens[1]}, rule {plan.rule}, linker {manifest.toolchain.linker}, "
            f"{len(manifest.missing)} missing"
        )
        if pack.shared:
            sharing = sum(map(len, pack.shared))
            print(f"{sharing} kernels share {len(pack.shared)} of {len(manifest.payloads)} payloads (column shared by)")
        print()
        _table(_KERNEL_COLUMNS, [row for kernel in manifest.kernels for row in _kernel_rows(pack, kernel)])
        for shape in plan.shapes:
            if shape.uncovered:
                print(f"no row: {shape.shape.label}, tokens {_ranges(shape.uncovered)}")
        for one in plan.left_out:
            print(f"skipped: {one}")
        for lost in manifest.missing:
            print(f"missing: {lost.label}: {(lost.reason.splitlines() or [''])[0]}")
    for path in written:
        print(path)


_KERNEL_COLUMNS = (
    *("kernel", "N", "K", "layer", "tokens", "VGPR", "AGPR", "SGPR", "LDS", "scratch", "spills", "code bytes"),
    "shared by",
)


def _kernel_rows(pack: Summary, kernel: PackedKernel) -> Iterator[tuple[str, ...]]:
    layer = " ".join(part for part in (kernel.w_scale_block, kernel.q_dtype_w, kernel.op) if part)
    sharing = pack.sharing.get(kernel.label)
    for code in kernel.code:
        yield (
            *(kernel.name, str(kernel.n), str(kernel.k), layer, _ranges(kernel.tokens)),
            *(str(number) for number in (code.vgpr, code.agpr, code.sgpr, code.lds, code.scratch, code.spills)),
            *(str(code.code_object_bytes), str(sharing) if sharing else "-"),
        )


def _ranges(ranges: Sequence[Sequence[int]]) -> str:
    texts = [spelled([run]) for run in ranges]
    return ", ".join(texts) if len(texts) <= 2 else f"{texts[0]}, … {texts[-1]} ({len(texts)})"


def difference(found: Difference) -> None:
    """The verdict, then a line for each kernel that is new, gone or changed, and for what describes the wheels."""
    words = "identical" if found.identical else "the same kernels" if found.same_kernels else "different kernels"
    old, new = found.bytes
    print(f"{words}; packs of {old} and {new} bytes ({new - old:+})")
    for name in found.only_old:
        print(f"- {name}")
    for name in found.only_new:
        print(f"+ {name}")
    for pack in found.packs:
        print(
            f"{pack.arch}, flydsl {pack.flydsl}: {len(pack.added)} added, {len(pack.dropped)} dropped, "
            f"{len(pack.changed)} changed, {pack.same} the same"
        )
        for name, (before, after) in pack.about.items():
            print(f"  {name}: {_value(before)} -> {_value(after)}")
        for kernel in pack.added:
            print(f"  + {kernel}")
        for kernel in pack.dropped:
            print(f"  - {kernel}")
        for change in pack.changed:
            what = ", ".join(_change(name, before, after) for name, (before, after) in change.changes.items())
            print(f"  ~ {change.kernel}: {what}")


def _change(name: str, before: Any, after: Any) -> str:
    if name == "tokens":
        return f"tokens {spelled(before, ' ')} -> {spelled(after, ' ')}"
    return f"{name} {before} -> {after}" if isinstance(before, int) else name


def _value(value: Any) -> str:
    text = "nothing" if value in (None, [], "") else str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def seeded(report: SeedReport, pruned: Sequence[str]) -> None:
    """One line on what was done, and one on what was removed."""
    if report.mode == "off":
        print("seeding is switched off (AITER_FLYDSL_PREBUILD=off)")
    elif not report.arches:
        print("nothing to do: no ROCm GPU here (AITER_FLYDSL_PREBUILD_ARCH names an arch by hand)")
    elif not report.packs and not report.problems:
        print("nothing to do: no pack of kernels is installed")
    elif report.cache_dir is None:
        print("nothing was seeded")
    else:
        print(
            f"{report.kernels} kernels in place in {report.cache_dir}, {report.written} files written, "
            f"{report.seconds * 1000:.0f} ms"
        )
        if built_for := covered([pack for pack in report.packs if pack.kernels]):
            print(built_for)
    if pruned:
        print(f"{len(pruned)} files removed that came from packs that are not installed any more")


def warmed(report: WarmReport) -> None:
    """What the first calls cost, the slowest ones, and what went wrong."""
    for problem in report.problems:
        print(problem)
    failed = [call for call in report.calls if call.error]
    for call in failed[:_LINES]:
        print(f"{call.kernel}: {call.error}")
    if report.calls:
        total = sum(call.seconds for call in report.calls)
        slowest = max(report.calls, key=lambda call: call.seconds)
        part = "" if report.launched else ", without the GPU's part: there is none here"
        print(f"{len(report.calls)} kernels called in {total:.1f} s, {total / len(report.calls):.3f} s each{part}")
        print(f"slowest: {slowest.kernel}, {slowest.seconds:.3f} s")
        print(f"{report.compiled} compiled, {len(failed)} failed")
    elif not report.problems:
        print("nothing to call: no installed pack has kernels for this machine")


def store(found: Statistics) -> None:
    """Where it is, and what is in it."""
    print(found.where)
    for kind in sorted(found.entries):
        print(f"{kind:8} {found.entries[kind]:8} entries {found.bytes[kind]:14} bytes")
    if found.oldest is None:
        print("nothing is in it")
    else:
        print(f"the longest unused entry was used {(time.time() - found.oldest) / 86400:.1f} days ago")


def state(found: dict[str, Any]) -> None:
    """The machine's state."""

    def arch(name: str) -> str:
        units = found["compute_units"].get(name)
        return f"{name} ({' and '.join(map(str, units))} compute units)" if units else name

    flydsl = found["flydsl"]
    known = "" if flydsl is None or flydsl["released_wheel"] else ", not a released wheel"
    print(f"arch    {', '.join(map(arch, found['arches'])) or 'none: no ROCm GPU here'}")
    if flydsl and flydsl["problem"]:
        print(f"flydsl  {flydsl['problem']}")
    else:
        print(f"flydsl  {flydsl['version'] + ' on ' + flydsl['abi'] + known if flydsl else 'not installed'}")
    print(f"cache   {found['cache_dir']}")
    print(f"mode    {found['mode']}")
    for note in [flydsl and flydsl["damage"], found["defeated_by"], *found["cautions"], *found["empty"]]:
        if note:
            print(f"note    {note}")
    if (first := found["first_calls"]) is not None:
        part = "" if first["launched"] else " on the host alone"
        print(
            f"calls   a kernel's first call takes {first['seconds'] / first['kernels']:.3f} s{part}, the slowest "
            f"{first['slowest_seconds']:.3f} s ({first['kernels']} kernels, flydsl {first['flydsl']}, "
            f"measured {first['age']:.0f} s ago)"
        )
    else:
        print("calls   what a kernel's first call still takes is not measured here: aiter-flydsl-prebuild warm")
    if not found["packs"]:
        print("packs   none installed")
    for pack in found["packs"]:
        if "problem" in pack:
            print(f"pack    {pack['problem']}")
            continue
        tokens = f" for tokens {pack['tokens']}" if pack["tokens"] else ""
        age = "" if pack["oldest"] is None else f", oldest {pack['oldest']:.0f} s old"
        print(
            f"pack    {pack['path']}: {pack['kernels']} kernels{tokens}, {pack['fitting']} fit, "
            f"{pack['in_place']} of {pack['files']} files in place{age}"
        )
        for one in pack["serving"] or ():
            print(f"        {one['kernels']} serve a GPU with {one['cu_num']} compute units")
        for line in [*pack["reasons"], *pack["notes"]]:
            print(f"        {line}")

"""The report of a build: one HTML file that needs no network, a PNG of the coverage map, a summary in Markdown.

All are made from a pack's manifest; what only the build knows (seconds, the proof, what failed) comes beside it. The
same input gives the same files.
"""

from __future__ import annotations

import colorsys
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ... import needs
from ...dispatch.reach import UNDECODABLE, UNKNOWN
from ...errors import InputError
from ...model.shape import Shape
from ...model.tokens import Range, count, without
from ...packs.format import Pack
from ...packs.manifest import CodeFacts, Manifest, PackedKernel, to_json
from ..execution.facts import executed, unexecuted, was_executed
from .occupancy import waves_per_simd

HTML, PNG, MARKDOWN = "report.html", "coverage.png", "summary.md"
_SLOWEST = 10
_NO_CODE = CodeFacts("", 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, "")
# What becomes of the token counts of a kernel that is not built, by the reason (reach.SkippedReach).
_SKIPPED = {
    UNDECODABLE: ("other", "AITER cannot decode the name, and runs another library"),
    UNKNOWN: ("uncovered", "no kernel family known here has such a name"),
}
# Of what is no kernel in the picture: colour and hatch.
_FILLS = {"uncovered": ("#d32f2f", "xxxx"), "other": ("#c8c8c8", "////")}


@dataclass(frozen=True)
class Subject:
    """What is reported: a manifest, the pack's bytes, and what the build knows.

    ``seconds`` are by label; ``proof`` is :meth:`proof.Proof.to_json`'s, None where nothing was proven; ``failed`` has
    a line for each kernel that was not built; ``size`` is None where no pack was written.
    """

    manifest: Manifest
    size: int | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    proof: dict[str, Any] | None = None
    failed: Sequence[str] = ()


def subject_of(pack: Pack) -> Subject:
    """A pack that was built before: without seconds and proof."""
    failed = [f"{lost.label}: {lost.reason}" for lost in pack.missing]
    return Subject(pack.manifest, len(pack.content), failed=failed)


@dataclass(frozen=True)
class Bar:
    """A run of token counts of one shape, of kind ``kernel``, ``other`` (another library) or ``uncovered``.

    ``number`` is the kernel's place among the ``of`` kernels of its shape.
    """

    tokens: Range
    kind: str
    name: str
    number: int
    of: int


@dataclass(frozen=True)
class Band:
    """One shape of the coverage map."""

    label: str
    bars: tuple[Bar, ...]
    kernels: int
    uncovered: int


@dataclass(frozen=True)
class Row:
    """A kernel of the table. Registers, LDS and spills are of its largest code object; None where there is none.

    ``sharing`` counts the kernels, this one included, that have its payload. ``executed`` tells on which problems it
    was executed, and the worst error in units of the tolerance, or why it was not; None where the build executed
    nothing.
    """

    name: str
    layer: str
    tokens: int
    sharing: int
    seconds: float | None
    code_bytes: int
    vgpr: int
    agpr: int
    sgpr: int
    lds: int
    scratch: int
    spills: int
    waves: int | None
    executed: str | None = None


def require() -> None:
    """Raise now, and not after a long build, where a library is missing.

    :raises MissingError: jinja2 or matplotlib is not installed.
    """
    needs.require("a report", "jinja2", "matplotlib")


def write(subject: Subject, folder: Path) -> list[Path]:
    """Write all three files into a folder, which is made; returns their paths.

    :raises MissingError: a library is not installed.
    :raises InputError: the folder cannot be written to.
    """
    require()
    # Everything is made before anything is written.
    contents: dict[str, bytes] = {
        HTML: html(subject).encode(),
        PNG: png(subject),
        MARKDOWN: markdown(subject).encode(),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            (folder / name).write_bytes(content)
    except OSError as error:
        raise InputError(f"{folder}: cannot be written to: {error.strerror or error}") from error
    return [folder / name for name in contents]


def bands(subject: Subject) -> list[Band]:
    """The coverage map: for each shape, every token count's fate, in runs."""
    by_layer: dict[tuple[Any, ...], list[PackedKernel]] = {}
    for kernel in subject.manifest.kernels:
        by_layer.setdefault(kernel.layer, []).append(kernel)
    found = []
    for shape in subject.manifest.plan.shapes:
        taken = list(shape.uncovered)
        bars = [Bar(run, "uncovered", "no row serves these", 0, 0) for run in taken]
        for other in shape.other:
            bars += [Bar(run, "other", f"{other.libtype} wins", 0, 0) for run in other.tokens]
            taken += other.tokens
        # A kernel's tokens are those of every partition of the GPU: what this one gives to others is not its own.
        kernels = sorted(by_layer.get(tuple(shape.shape.layer().values()), ()), key=lambda kernel: kernel.tokens)
        for number, kernel in enumerate(kernels):
            own = without(kernel.tokens, taken)
            bars += [Bar(run, "kernel", kernel.name, number, len(kernels)) for run in own]
        lost = count(shape.uncovered)
        found.append(Band(_layer(shape.shape), tuple(sorted(bars, key=lambda bar: bar.tokens)), len(kernels), lost))
    return found


def rows(subject: Subject) -> list[Row]:
    """The kernels, the slowest to compile first."""
    users = subject.manifest.users()
    found = []
    for kernel in subject.manifest.kernels:
        largest = max(kernel.code, key=lambda code: code.code_object_bytes, default=_NO_CODE)
        found.append(
            Row(
                name=kernel.name,
                layer=_layer(kernel),
                tokens=count(kernel.tokens),
                sharing=max((len(users[entry.payload]) for entry in kernel.entries), default=1),
                seconds=subject.seconds.get(kernel.label),
                code_bytes=sum(code.code_object_bytes for code in kernel.code),
                vgpr=largest.vgpr,
                agpr=largest.agpr,
                sgpr=largest.sgpr,
                lds=largest.lds,
                scratch=largest.scratch,
                spills=sum(code.spills for code in kernel.code),
                waves=waves_per_simd(
                    subject.manifest.arch, largest.vgpr, largest.lds, largest.workgroup, largest.wavefront
                ),
                executed=None if (run := executed(kernel)) is None else run.text,
            )
        )
    return sorted(found, key=lambda row: (-(row.seconds or 0.0), row.layer, row.name))


def verdict(subject: Subject) -> tuple[str, str]:
    """``good``, ``bad`` or ``open``, and why in a few words."""
    if subject.failed:
        return "bad", f"{len(subject.failed)} kernels could not be built"
    if subject.proof is None:
        return "open", "not proven here"
    if subject.proof["ok"]:
        return "good", f"proven: {subject.proof['dispatches']:,} dispatches, {subject.proof['compiled']} compiles"
    return "bad", "the proof failed"


def facts(subject: Subject) -> list[tuple[str, str]]:
    """The numbers at the top."""
    manifest, kernels = subject.manifest, len(subject.manifest.kernels)
    shared = [len(users) for users in manifest.users() if len(users) > 1]
    spilling = sum(row.spills > 0 for row in rows(subject))
    uncovered = sum(band.uncovered for band in bands(subject))
    first, last = manifest.plan.tokens
    found = [
        ("kernels", f"{kernels:,}"),
        ("shapes", f"{len(manifest.plan.shapes):,}"),
        ("token counts", f"{first:,} to {last:,}"),
    ]
    if subject.size is not None:
        found.append(("bytes of the pack", f"{subject.size:,}"))
        found.append(("bytes a kernel", f"{round(subject.size / max(1, kernels)):,}"))
    if subject.seconds:
        found.append(("seconds compiling", f"{sum(subject.seconds.values()):,.1f}"))
    if shared:
        found.append(("kernels that share a payload", f"{sum(shared):,} in {len(shared):,}"))
    found.append(("kernels that spill", f"{spilling:,}"))
    if was_executed(manifest):
        found.append(("kernels executed", f"{kernels - sum(1 for _ in unexecuted(manifest)):,}"))
    found.append(("uncovered tokens", f"{uncovered:,}"))
    return found


def title(subject: Subject) -> str:
    """What was built."""
    manifest = subject.manifest
    return f"{manifest.source.name} kernels for {manifest.arch}, FlyDSL {manifest.flydsl.version}"


def html(subject: Subject) -> str:
    """The report as one self-contained page."""
    import jinja2

    loader = jinja2.PackageLoader(__package__.partition(".")[0], "builder/reports/templates")
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    manifest = subject.manifest
    state, words = verdict(subject)
    made = environment.get_template("report.html.j2").render(
        title=title(subject),
        state=state,
        words=words,
        facts=facts(subject),
        map=_Map(bands(subject), manifest.plan.tokens),
        rows=rows(subject),
        with_seconds=bool(subject.seconds),
        with_executed=was_executed(manifest),
        failed=subject.failed,
        problems=() if subject.proof is None else [*subject.proof["problems"]],
        left_out=[str(one) for one in manifest.plan.left_out],
        about=_about(manifest),
    )
    return str(made) + "\n"


def png(subject: Subject) -> bytes:
    """The coverage map as a picture, for release notes."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    found = bands(subject)
    first, last = subject.manifest.plan.tokens
    with matplotlib.rc_context({"hatch.linewidth": 0.6, "font.size": 8}):
        figure = Figure(figsize=(11, max(2.0, 0.9 + 0.22 * len(found))), dpi=160, layout="constrained")
        axes = figure.add_subplot()
        for row, band in enumerate(found):
            for bar in band.bars:
                span = [(bar.tokens[0], bar.tokens[1] + 1 - bar.tokens[0])]
                if bar.kind == "kernel":
                    hue, lightness = _hue(bar)
                    color = colorsys.hls_to_rgb(hue / 360, lightness / 100, 0.45)
                    axes.broken_barh(span, (row - 0.4, 0.8), facecolor=color, edgecolor="white", linewidth=0.3)
                else:
                    face, hatch = _FILLS[bar.kind]
                    axes.broken_barh(
                        span, (row - 0.4, 0.8), facecolor=face, edgecolor="white", hatch=hatch, linewidth=0
                    )
        axes.set_xscale("log", base=2)
        axes.set_xlim(first, last + 1)
        ticks = [1 << n for n in range(_log(last) + 1) if first <= 1 << n <= last]
        axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        axes.set_yticks(range(len(found)), [band.label for band in found])
        axes.set_ylim(len(found) - 0.4, -0.6)
        axes.set_xlabel("tokens")
        axes.set_title(title(subject), loc="left", fontsize=10)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
        kinds = {bar.kind for band in found for bar in band.bars}
        legend = [
            Patch(facecolor=_FILLS[kind][0], hatch=_FILLS[kind][1], edgecolor="white", label=label)
            for kind, label in (("uncovered", "no row: no kernel"), ("other", "another library wins"))
            if kind in kinds
        ]
        if legend:
            figure.legend(handles=legend, loc="outside lower left", ncols=2, frameon=False)
        out = io.BytesIO()
        figure.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()


def markdown(subject: Subject) -> str:
    """A summary for a CI job's page."""
    state, words = verdict(subject)
    mark = {"good": "✅", "bad": "❌", "open": "⚪"}[state]
    lines = [f"## {_md(title(subject))}", "", f"{mark} {_md(words)}", "", "| | |", "| --- | ---: |"]
    lines += [f"| {name} | {value} |" for name, value in facts(subject)]
    if subject.failed:
        lines += ["", f"### {len(subject.failed)} kernels failed", ""]
        lines += [f"* {_md(line.splitlines()[0])}" for line in subject.failed]
    left_out = [str(one) for one in subject.manifest.plan.left_out]
    if left_out:
        lines += ["", "### Left out", "", *(f"* {_md(line)}" for line in left_out)]
    kernels = rows(subject)
    if spilling := [row for row in kernels if row.spills]:
        lines += ["", f"<details><summary>{len(spilling)} kernels spill registers</summary>", ""]
        lines += ["| kernel | layer | spills |", "| --- | --- | ---: |"]
        lines += [f"| {_md(row.name)} | {_md(row.layer)} | {row.spills} |" for row in spilling]
        lines += ["", "</details>"]
    if subject.seconds and kernels:
        lines += ["", f"<details><summary>the slowest {min(_SLOWEST, len(kernels))} compiles</summary>", ""]
        lines += ["| kernel | layer | seconds |", "| --- | --- | ---: |"]
        lines += [f"| {_md(r.name)} | {_md(r.layer)} | {r.seconds or 0:.2f} |" for r in kernels[:_SLOWEST]]
        lines += ["", "</details>"]
    return "\n".join(lines) + "\n"


class _Map:
    """The geometry of the coverage map, in the units of its SVG; the template draws it."""

    left, width, right, row, gap, top = 215, 800, 24, 20, 4, 22

    def __init__(self, found: Sequence[Band], tokens: Range) -> None:
        self.bands = found
        self.first, self.last = tokens
        self.height = self.top + len(found) * (self.row + self.gap)
        self.total = self.left + self.width + self.right
        self.ticks = [1 << n for n in range(_log(self.last) + 1) if self.first <= 1 << n <= self.last]

    def x(self, tokens: int) -> float:
        """Where a token count begins, on the log axis."""
        span = math.log2(self.last + 1) - math.log2(self.first)
        return round(self.left + self.width * (math.log2(tokens) - math.log2(self.first)) / span, 2)

    def y(self, index: int) -> int:
        """The top of a shape's band."""
        return self.top + index * (self.row + self.gap)

    def color(self, bar: Bar) -> str:
        """A kernel's colour: its place among the shape's kernels, neighbours apart in lightness."""
        hue, lightness = _hue(bar)
        return f"hsl({hue} 45% {lightness}%)"


def _hue(bar: Bar) -> tuple[int, int]:
    # From blue through green to ochre: red is for what is uncovered.
    return round(230 - 190 * bar.number / max(1, bar.of - 1)), 58 if bar.number % 2 else 44


def _layer(described: Shape | PackedKernel) -> str:
    text = f"N {described.n}, K {described.k}"
    text += f", {described.w_scale_block}" if described.w_scale_block else ""
    text += f", {described.q_dtype_w.removeprefix('torch.')}" if described.q_dtype_w else ""
    if isinstance(described, PackedKernel):
        return f"{text}, {described.op}"
    # Shapes without a number of compute units are for GPUs that no row names.
    return f"{text}, {described.cu_num or 'other'} CUs"


def _log(tokens: int) -> int:
    return int(math.log2(tokens))


def _about(manifest: Manifest) -> list[tuple[str, str]]:
    found = [(f"source {name}", str(value)) for name, value in to_json(manifest.source).items()]
    found += [(f"toolchain {name}", str(value)) for name, value in to_json(manifest.toolchain).items()]
    found += [("made by", manifest.made_by), ("rule", manifest.plan.rule)]
    found += [("FlyDSL", f"{manifest.flydsl.version} on {', '.join(sorted(manifest.flydsl.identities))}")]
    return found + [(f"table {table.file}", table.sha256) for table in manifest.plan.tables]


def _md(text: str) -> str:
    """Text that Markdown takes as text."""
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace("\n", " ")
    return "".join(f"\\{char}" if char in "\\`*_[]|~#" else char for char in escaped)

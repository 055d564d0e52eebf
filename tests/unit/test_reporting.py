"""The report of a build: parsed, measured against the plan, and looked at by a real browser where there is one."""

from __future__ import annotations

import io
import itertools
import math
import re
import shutil
import struct
import subprocess
import zlib
from pathlib import Path
from xml.etree.ElementTree import Element

import html5lib
import pytest

from aiter_flydsl_prebuild.builder.reports import reporting
from aiter_flydsl_prebuild.builder.reports.occupancy import waves_per_simd
from aiter_flydsl_prebuild.builder.reports.reporting import Subject
from aiter_flydsl_prebuild.model.tokens import Range
from aiter_flydsl_prebuild.packs.format import Pack
from aiter_flydsl_prebuild.packs.manifest import LeftOut, Manifest, OtherFacts
from packs import make_described, make_job, make_pack, make_shape

XHTML = "{http://www.w3.org/1999/xhtml}"
SVG = "{http://www.w3.org/2000/svg}"
EVIL = "<script>alert('&')</script>"


def parsed(page: str) -> Element:
    parser = html5lib.HTMLParser(strict=True)
    root: Element = parser.parse(page)
    return root


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    """Tokens 3..100: two kernels with a gap and another library between them; one kernel failed, one spills."""
    kernels = [make_described("one"), make_described(EVIL, vgpr_spills=3)]
    found = Pack(str(make_pack(tmp_path / "a.fkpack", kernels, missing=[(make_job("lost"), "reason")]))).manifest
    tokens: dict[str, tuple[Range, ...]] = {"one": ((3, 16), (64, 64)), EVIL: ((33, 63), (66, 100))}
    plan = found.plan._replace(
        tokens=(3, 100),
        shapes=(make_shape(uncovered=((17, 20), (65, 65)), other=(OtherFacts("ck", ((21, 32),)),)),),
        left_out=(LeftOut("mxscale_2d", 2, 1, EVIL),),
    )
    return found._replace(plan=plan, kernels=tuple(k._replace(tokens=tokens[k.name]) for k in found.kernels))


def test_the_page_is_one_file_and_takes_names_as_text(manifest: Manifest) -> None:
    failed = [f"lost (N=128): {EVIL}\nmore"]
    page = reporting.html(
        Subject(manifest, 1000, {"one (N=128, K=256, scales 32x32, mxscale_bmm)": 1.25}, None, failed)
    )
    root = parsed(page)
    assert page.count("<script") == 1
    assert EVIL not in page
    assert not re.search(r"(?:src|href)=|url\((?!#)|@import|https?://(?!www\.w3\.org)", page)
    text = "".join(root.itertext())
    for words in (EVIL, "1.25", "1 kernels could not be built", "mxscale_2d: 2 kernels", "256 CUs"):
        assert words in text
    headings = [element.text for element in root.iter() if element.tag in (f"{XHTML}h1", f"{XHTML}h2")]
    assert headings == [
        "reference kernels for gfx950, FlyDSL " + manifest.flydsl.version,
        "Kernels that could not be built",
        "Left out",
        "Coverage",
        "Kernels",
        "Made from",
    ]


def test_the_map_covers_every_token_count_once(manifest: Manifest) -> None:
    root = parsed(reporting.html(Subject(manifest)))
    bars = [e for e in root.iter(f"{SVG}rect") if e.get("class") == "bar"]
    spans = sorted((float(e.get("x", 0)), float(e.get("x", 0)) + float(e.get("width", 0))) for e in bars)
    left, width = reporting._Map.left, reporting._Map.width
    assert spans[0][0] == left
    assert spans[-1][1] == pytest.approx(left + width, abs=0.02)
    assert all(end == pytest.approx(begin, abs=0.02) for (_, end), (begin, _) in itertools.pairwise(spans))

    def x(tokens: int) -> float:
        return left + width * math.log2(tokens / 3) / math.log2(101 / 3)

    (red,) = (e for e in bars if e.get("fill") == "url(#uncovered)" and "17" in "".join(e.itertext()))
    assert float(red.get("x", 0)) == pytest.approx(x(17), abs=0.02)
    assert float(red.get("width", 0)) == pytest.approx(x(21) - x(17), abs=0.02)
    said = ["".join(e.itertext()) for e in sorted(bars, key=lambda e: float(e.get("x", 0)))]
    assert said == [
        "3 to 16 tokens: one",
        "17 to 20 tokens: no row serves these",
        "21 to 32 tokens: ck wins",
        f"33 to 63 tokens: {EVIL}",
        "64 tokens: one",
        "65 tokens: no row serves these",
        f"66 to 100 tokens: {EVIL}",
    ]
    fills = {text.split(": ")[1]: e.get("fill") for text, e in zip(said, bars, strict=True)}
    assert len(set(fills.values())) == 4


def pixels(png: bytes) -> tuple[int, int, int]:
    """Width, height, and how many different bytes the picture has."""
    width, height = struct.unpack(">II", png[16:24])
    data, at = b"", 8
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        if png[at + 4 : at + 8] == b"IDAT":
            data += png[at + 8 : at + 8 + length]
        at += 12 + length
    return width, height, len(set(zlib.decompress(data)))


def test_the_picture(manifest: Manifest) -> None:
    picture = reporting.png(Subject(manifest))
    width, height, different = pixels(picture)
    assert (width, height) == (1760, 320)
    assert different > 50
    assert reporting.png(Subject(manifest)) == picture


def test_the_summary(manifest: Manifest) -> None:
    seconds = {"one (N=128, K=256, scales 32x32, mxscale_bmm)": 1.25}
    proof = {"ok": True, "dispatches": 1234567, "compiled": 0, "problems": []}
    text = reporting.markdown(Subject(manifest, 12345, seconds, proof))
    assert "✅ proven: 1,234,567 dispatches, 0 compiles" in text
    assert "| bytes of the pack | 12,345 |" in text
    assert "| uncovered tokens | 5 |" in text
    assert "| one | N 128, K 256, 32x32, mxscale\\_bmm | 1.25 |" in text
    assert "1 kernels spill registers" in text
    assert "&lt;script>" in text
    assert "❌ 1 kernels could not be built" in reporting.markdown(Subject(manifest, failed=["lost: reason"]))
    assert "⚪ not proven here" in reporting.markdown(Subject(manifest))


def test_kernels_that_share_a_payload_are_counted(manifest: Manifest) -> None:
    assert ("kernels that share a payload", "2 in 1") in reporting.facts(Subject(manifest))
    assert [row.sharing for row in reporting.rows(Subject(manifest))] == [2, 2]
    cells = [element.text for element in parsed(reporting.html(Subject(manifest))).iter(f"{XHTML}td")]
    assert cells[3] == "2"
    alone = manifest._replace(kernels=manifest.kernels[:1])
    assert [row.sharing for row in reporting.rows(Subject(alone))] == [1]
    assert not any("share" in name for name, _ in reporting.facts(Subject(alone)))


def test_a_plan_without_shapes_and_kernels(manifest: Manifest, tmp_path: Path) -> None:
    empty = manifest._replace(kernels=(), plan=manifest.plan._replace(shapes=(), left_out=()))
    page = reporting.html(Subject(empty))
    assert "There is no kernel." in page
    assert "The plan has no shapes." in page
    assert parsed(page) is not None
    assert len(reporting.write(Subject(empty), tmp_path / "out")) == 3


@pytest.mark.parametrize(
    ("vgpr", "lds", "workgroup", "waves"),
    [
        (0, 0, 64, 8),
        (64, 0, 256, 8),
        (65, 0, 256, 7),
        (128, 0, 256, 4),
        (256, 0, 256, 2),
        (257, 0, 256, 1),
        (64, 65536, 256, 2),  # two workgroups of four waves in 160 KiB, on four SIMDs
        (64, 163840, 256, 1),
        (64, 1, 1024, 8),
    ],
)
def test_waves(vgpr: int, lds: int, workgroup: int, waves: int) -> None:
    assert waves_per_simd("gfx950", vgpr, lds, workgroup, 64) == waves
    assert waves_per_simd("gfx1250", vgpr, lds, workgroup, 64) is None


def test_a_browser_shows_it(manifest: Manifest, tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium here")
    (page, *_) = reporting.write(Subject(manifest), tmp_path)
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"]
    options += ["--no-first-run", "--disable-component-update", f"--user-data-dir={tmp_path / 'profile'}"]
    pictures = []
    for scheme in ("1", "0"):  # light, dark
        picture = tmp_path / f"{scheme}.png"
        command = [browser, *options, f"--blink-settings=preferredColorScheme={scheme}", f"--screenshot={picture}"]
        subprocess.run([*command, page.as_uri()], check=True, capture_output=True, timeout=120)
        pictures.append(picture.read_bytes())
    assert pictures[0] != pictures[1]
    assert all(pixels(picture)[2] > 50 for picture in pictures)
    assert io.BytesIO(pictures[0]).read(4) == b"\x89PNG"

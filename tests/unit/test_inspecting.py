from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aiter_flydsl_prebuild.builder.compiling import Compiled
from aiter_flydsl_prebuild.builder.reports.inspecting import extract, summarize
from aiter_flydsl_prebuild.errors import InputError
from packs import make_described, make_job, make_pack
from processes import prebuild


def kernel(name: str, text: str, key: str, **layer: Any) -> Compiled:
    job = make_job(name)
    return replace(make_described(name, text, key * 64), job=replace(job, shape=job.shape._replace(**layer)))


LAYERS = [
    kernel("k", "module { 0 }", "0"),
    kernel("k", "module { 1 }", "1", q_dtype_w="torch.int8"),
    kernel("k", "module { 2 }", "2", q_dtype_w="torch.float8_e4m3fn"),
    kernel("k", "module { 3 }", "3", w_scale_block="1x32"),
    kernel("k", "module { 4 }", "4", op="other"),
    kernel("k", "module { 5 }", "5", n=64),
    kernel("k", "module { 6 }", "6", k=64),
]


def test_every_kernel_gets_its_own_file(tmp_path: Path) -> None:
    """Layers that differ in one thing each, and names that are the same once they are safe for a file system."""
    names = ["../a", "..~a", "..?a", "K", "x" * 300, "x" * 301]
    odd = [kernel(name, f"module {{ {name} }}", "789abc"[number]) for number, name in enumerate(names)]
    path = make_pack(tmp_path / "a.fkpack", [*LAYERS, *odd])
    out = tmp_path / "out"
    written = extract([path], None, out)
    assert sorted(written) == sorted(out.iterdir())
    assert len(written) == len(LAYERS) + len(names)
    assert {file.read_text() for file in written} == {one.entries[0].entry.ir_text for one in [*LAYERS, *odd]}
    assert {
        "K-n128-k256-32x32-mxscale_bmm.mlir",
        "k-n128-k256-32x32-mxscale_bmm~2.mlir",
        "k-n128-k256-32x32-torch.int8-mxscale_bmm.mlir",
        "k-n128-k256-1x32-mxscale_bmm.mlir",
        "_a-n128-k256-32x32-mxscale_bmm~3.mlir",
    } <= {file.name for file in written}
    assert extract([path], None, out) == written, "the same files again are no conflict"


def test_several_packs_get_a_folder_each(tmp_path: Path) -> None:
    paths = []
    for folder, text in (("a", "module { a }"), ("b", "module { b }")):
        (tmp_path / folder).mkdir()
        paths.append(make_pack(tmp_path / folder / "p.fkpack", [make_described("k", text)]))
    written = extract(paths, None, tmp_path / "out")
    assert [str(file.relative_to(tmp_path / "out")) for file in written] == [
        "p/k-n128-k256-32x32-mxscale_bmm.mlir",
        "p~2/k-n128-k256-32x32-mxscale_bmm.mlir",
    ]
    assert [file.read_text() for file in written] == ["module { a }", "module { b }"]


def test_other_files_are_not_overwritten(tmp_path: Path) -> None:
    one = make_pack(tmp_path / "a.fkpack", [make_described("k", "module { a }")])
    other = make_pack(tmp_path / "b.fkpack", [make_described("k", "module { b }")])
    (file,) = extract([one], None, tmp_path / "out")
    with pytest.raises(InputError, match="is there already, with other content; name an empty folder"):
        extract([other], None, tmp_path / "out")
    assert file.read_text() == "module { a }"


def test_shared_payloads_are_counted(tmp_path: Path) -> None:
    kernels = [make_described(name, "module { same }") for name in ("a", "b", "c")] + [make_described("d", "module {}")]
    path = make_pack(tmp_path / "a.fkpack", kernels)
    labels = [make_job(name).label for name in ("a", "b", "c")]
    summary = summarize(path)
    assert summary.sharing == dict.fromkeys(labels, 3)
    assert summary.to_json()["shared_payloads"] == [labels]
    people = prebuild("inspect", path)
    assert "3 kernels share 1 of 2 payloads (column shared by)" in people.stdout
    rows = {line.split()[0]: line.split()[-1] for line in people.stdout.splitlines() if "32x32" in line}
    assert rows == {"a": "3", "b": "3", "c": "3", "d": "-"}
    # Those that are not listed count as well.
    alone = json.loads(prebuild("inspect", path, "--kernel", "a", "--json").stdout)["packs"][0]
    assert ([one["name"] for one in alone["kernels"]], alone["shared_payloads"]) == (["a"], [labels])

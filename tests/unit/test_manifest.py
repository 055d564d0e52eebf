"""The typed manifest: what is read is what was written, and what is wrong is said with its place."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aiter_flydsl_prebuild.builder.merging import merge_packs
from aiter_flydsl_prebuild.builder.packing import encode_pack
from aiter_flydsl_prebuild.errors import CheckError
from aiter_flydsl_prebuild.model.shape import kernel_label
from aiter_flydsl_prebuild.packs.format import Pack
from aiter_flydsl_prebuild.packs.manifest import (
    About,
    LeftOut,
    OtherFacts,
    PackageFacts,
    ShardFacts,
    SkippedFacts,
    TableFacts,
    to_json,
)
from aiter_flydsl_prebuild.packs.reader import ManifestError, read_manifest
from packs import ABOUT, make_described, make_job, make_pack, make_shape

Json = dict[str, Any]


@pytest.fixture
def pack(tmp_path: Path) -> Pack:
    """A pack whose manifest has something of everything."""
    plan = ABOUT.plan._replace(
        cu_num=(256,),
        tables=(TableFacts("t.csv", "f" * 64),),
        shapes=(
            make_shape(
                other=(OtherFacts("ck", ((2, 3),)),),
                uncovered=((4, 4),),
                skipped=(SkippedFacts("odd", "unknown", ((5, 5),)),),
            ),
        ),
        undecodable=("x",),
        unknown=("odd",),
        options={"kinds": ("a", "b"), "dtypes": ()},
        left_out=(LeftOut("op", 1, 1, "why"), LeftOut("op", 1, 1, "why", ("odd",))),
    )
    packages = {"theirs": PackageFacts("1.0", "digest", "their-kernels", "commit")}
    source = ABOUT.source._replace(version="1", commit="c", packages=packages)
    about = About(source, ABOUT.toolchain, plan, ShardFacts(1, 2, "digest"), 1.5)
    files = (("theirs/a.py", "a" * 64), ("theirs/b.py", "b" * 64))
    kernels = [make_described("one"), replace(make_described("two", "module { 2 }"), files=files)]
    return Pack(str(make_pack(tmp_path / "a.fkpack", kernels, missing=[(make_job("lost"), "why\nmore")], about=about)))


def objects(value: Any) -> Iterator[Json]:
    """Every JSON object that may get further keys: not those of somebody's choice, and not what identifies a shape."""
    if isinstance(value, dict):
        yield value
        for key, item in value.items():
            if key not in ("identities", "options", "fields", "paths", "shape"):
                yield from objects(list(item.values()) if key == "packages" else item)
    elif isinstance(value, list):
        for item in value:
            yield from objects(item)


def with_new_keys(manifest: Json) -> Json:
    """A manifest of a newer version, which has one more key in every object."""
    copy: Json = json.loads(json.dumps(manifest))
    for number, one in enumerate(list(objects(copy))):
        one["new_key"] = {"number": number % 2, "nested": [None, {"more": 1.5}]}
    return copy


def rewritten(pack: Pack, manifest: Json, name: str) -> Path:
    path = Path(pack.path).with_name(name)
    path.write_bytes(encode_pack(manifest, [text.encode() for text in pack.payloads()]))
    return path


def test_the_same_bytes_come_back(pack: Pack) -> None:
    raw = to_json(pack.manifest)
    assert encode_pack(pack.manifest, [text.encode() for text in pack.payloads()]) == pack.content
    assert read_manifest(raw) == pack.manifest
    # Of every kind of object there is one, and left_out has two forms.
    assert len({tuple(sorted(one)) for one in objects(raw)}) == 19


def test_keys_of_a_newer_version_come_back(pack: Pack) -> None:
    newer = with_new_keys(to_json(pack.manifest))
    read = Pack(str(rewritten(pack, newer, "newer.fkpack")))
    assert to_json(read.manifest) == newer
    assert read.kernels[0].label == pack.kernels[0].label


def test_a_merge_keeps_keys_that_it_does_not_know(pack: Pack, tmp_path: Path) -> None:
    whole = to_json(pack.manifest)
    del whole["shard"], whole["seconds"]
    newer = with_new_keys(whole)
    one, other = (dict(newer, kernels=[kernel]) for kernel in newer["kernels"])
    paths = [rewritten(pack, part, f"{name}.fkpack") for name, part in (("one", one), ("other", other))]
    (tmp_path / "out").mkdir()
    merged = to_json(Pack(str(merge_packs(paths, tmp_path / "out")[0])).manifest)
    for place in newer["payloads"]:
        place.pop("new_key")  # They are laid out anew.
    assert merged == newer


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda m: m.update(new_key=2), "a.fkpack and b.fkpack differ in their new_key"),
        (lambda m: m["plan"].update(new_key=2), "differ in their plan's new_key"),
        (lambda m: m["flydsl"].update(new_key=2), "differ in their flydsl new_key"),
        (lambda m: m["toolchain"].update(new_key=2), "differ in their toolchain's new_key"),
        (lambda m: m["source"].update(new_key=2), "differ in their source"),
        (lambda m: m["kernels"][0].update(new_key=2), f"{make_job('one').label} is not the same kernel in all packs"),
        (lambda m: m["kernels"][0]["entries"][0].update(new_key=2), "is not the same kernel in all packs"),
        (lambda m: m["kernels"][0]["entries"][0]["code"][0].update(new_key=2), "is not the same kernel in all packs"),
    ],
)
def test_a_merge_does_not_choose_between_values_that_it_does_not_know(
    pack: Pack, tmp_path: Path, change: Callable[[Json], Any], said: str
) -> None:
    ours, theirs = (to_json(pack.manifest._replace(shard=None)) for _ in range(2))
    change(theirs)
    paths = [rewritten(pack, ours, "a.fkpack"), rewritten(pack, theirs, "b.fkpack")]
    with pytest.raises(CheckError, match=said.replace("(", r"\(").replace(")", r"\)")):
        merge_packs(paths, tmp_path)


NONSENSE: tuple[Any, ...] = ("\x1b[2J", -1.5, [{}], None)


def test_a_value_of_the_wrong_type_is_refused_wherever_it_is(pack: Pack) -> None:
    """Every value in turn becomes something that it cannot be."""
    raw = to_json(pack.manifest)
    assert "files" in raw["kernels"][1]
    nullable = {"n", "k", "w_scale_block", "q_dtype_w", "bitcode"}
    tried = 0
    for index, one in enumerate(list(objects(raw))):
        for key in list(one):
            for nonsense in NONSENSE:
                if (nonsense is None and key in nullable) or (key == "reason" and nonsense == "\x1b[2J"):
                    continue
                if key == "seconds" and nonsense == -1.5:
                    continue
                copy = json.loads(json.dumps(raw))
                list(objects(copy))[index][key] = nonsense
                with pytest.raises(ManifestError) as caught:
                    read_manifest(copy)
                assert len(str(caught.value).splitlines()) == 1
                assert str(caught.value).isprintable()
                tried += 1
    assert tried > 300


def test_the_place_is_said(pack: Pack) -> None:
    def said(change: Callable[[Json], Any]) -> str:
        raw = to_json(pack.manifest)
        change(raw)
        with pytest.raises(ManifestError) as caught:
            read_manifest(raw)
        return str(caught.value)

    assert said(lambda m: m["plan"].pop("rule")) == "plan: rule: is missing"
    assert said(lambda m: m["kernels"][1].pop("n")) == "kernels: [1] n: is missing"
    assert said(lambda m: m["kernels"][1]["entries"][0]["code"][0].update(vgpr="x")) == (
        "kernels: [1] entries: [0] code: [0] vgpr: 'x' is not a whole number"
    )
    assert said(lambda m: m["plan"]["shapes"][0].update(uncovered=[[4, 3]])) == (
        "plan: shapes: [0] uncovered: [0] [4, 3] is not a range of token counts"
    )
    assert said(lambda m: m.update(format=2)) == "format: 2 is not known to this version"


def test_labels_tell_kernels_apart() -> None:
    layers = [
        ("op", n, k, scales, weights)
        for n in (1, 11)
        for k in (1, None)
        for scales in (None, "1x32")
        for weights in (None, "torch.float8_e4m3fn")
    ]
    labels = [kernel_label(name, *layer) for name in ("a", "b") for layer in layers]
    labels += [kernel_label("a", "op2", *layers[0][1:])]
    assert len(set(labels)) == len(labels)
    assert kernel_label("name", "op", 8, 64, "32x32", "torch.int8") == (
        "name (N=8, K=64, scales 32x32, weights torch.int8, op)"
    )
    assert make_job("x").label == "x (N=128, K=256, scales 32x32, mxscale_bmm)"

"""``verify`` beyond the proof: wheels that pip would install wrongly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from aiter_flydsl_prebuild.builder.wheels.wheelcheck import wheel_problems
from aiter_flydsl_prebuild.flydsl.cache import CALL_KEY
from aiter_flydsl_prebuild.packs.format import Pack
from aiter_flydsl_prebuild.packs.manifest import FlyDSL
from packs import files_of, flydsl_here, make_compiled, make_pack, make_wheel

INFO = "kernels-1.0.dist-info"
PACK = "kernels/flydsl_kernels/a.fkpack"
HERE = flydsl_here().version


def files(
    pack: Path, metadata: str = f"Requires-Dist: flydsl=={HERE}\n", tag: str = "py3-none-any"
) -> dict[str, bytes]:
    """A wheel of kernels as it should be."""
    return {
        "kernels/__init__.py": b"",
        PACK: pack.read_bytes(),
        f"{INFO}/METADATA": f"Metadata-Version: 2.1\nName: kernels\nVersion: 1.0\n{metadata}".encode(),
        f"{INFO}/WHEEL": "".join(
            ["Wheel-Version: 1.0\n", *(f"Tag: {one}-none-any\n" for one in tag.split("-")[0].split("."))]
        ).encode(),
    }


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    return make_pack(tmp_path / "a.fkpack", [make_compiled()])


@pytest.fixture
def old_pack(tmp_path: Path) -> Path:
    """Of the generation whose kernels hold for one CPython."""
    flydsl = FlyDSL("0.4.2", CALL_KEY, {"cp311": ["0" * 64]})
    return make_pack(tmp_path / "old.fkpack", [make_compiled(path="gemm_1/0.pkl")], flydsl)


def problems(
    pack: Path, content: dict[str, bytes], name: str = "kernels-1.0-py3-none-any.whl", record: bool = True
) -> list[str]:
    wheel = make_wheel(pack.parent / name, content, record=record)
    return wheel_problems(wheel, [Pack(str(pack))])


def test_a_wheel_as_it_should_be(pack: Path, old_pack: Path) -> None:
    assert problems(pack, files(pack)) == []
    assert problems(pack, files(pack, "Requires-Dist: FlyDSL (>=0.1)\n")) == []
    old = files(old_pack, "Requires-Dist: flydsl==0.4.2\n", "cp311-none-any")
    assert problems(old_pack, old, "kernels-1.0-cp311-none-any.whl") == []
    signed = {**files(pack), f"{INFO}/RECORD.jws": b"{}"}
    lines = files_of(make_wheel(pack.parent / "x.whl", files(pack)))
    assert problems(pack, {**signed, f"{INFO}/RECORD": lines[f"{INFO}/RECORD"]}, record=False) == []


RECORDS: dict[str, tuple[Callable[[str], str], str]] = {
    "a line is gone": (lambda text: text.replace(f"{PACK},", "other,"), f"{PACK} is not mentioned in RECORD"),
    "a wrong hash": (lambda text: text.replace("sha256=", "sha256=AAAA"), f"hash / size of {PACK} didn't match RECORD"),
    "a wrong size": (lambda text: text.replace(",0\n", ",5\n"), "kernels/__init__.py didn't match RECORD"),
    "no hash": (lambda text: f"{PACK},,\n{text.partition(PACK)[2].partition(chr(10))[2]}", "is not included in RECORD"),
    "a stray line": (
        lambda text: text + "kernels/gone.py,,\n",
        "RECORD lists kernels/gone.py, which is not in the wheel",
    ),
    "a line twice": (lambda text: text + text.splitlines()[0] + "\n", "RECORD lists kernels/__init__.py 2 times"),
    "nonsense": (lambda text: "a,b\n", "Unable to retrieve `RECORD`"),
}


@pytest.mark.parametrize("what", RECORDS)
def test_a_record_that_is_wrong(pack: Path, what: str) -> None:
    content = files_of(make_wheel(pack.parent / "x.whl", files(pack)))
    change, said = RECORDS[what]
    content[f"{INFO}/RECORD"] = change(content[f"{INFO}/RECORD"].decode()).encode()
    found = problems(pack, content, record=False)
    assert any(said in line for line in found), found
    assert not any(str(pack.parent) in line for line in found)


METADATA: dict[str, tuple[str, str | None]] = {
    "another flydsl": ("Requires-Dist: flydsl==0.3.0\n", "METADATA requires flydsl==0.3.0, a.fkpack is for flydsl"),
    "another name's spelling": ("Requires-Dist: FlyDSL<0.2\n", "METADATA requires FlyDSL<0.2"),
    "none": ("", "METADATA requires no flydsl, so pip installs a.fkpack beside any or none"),
    "of an extra": ('Requires-Dist: flydsl==0.3.0; extra == "old"\n', "METADATA requires no flydsl"),
    "on some Pythons": ('Requires-Dist: flydsl==0.3.0; python_version == "3.11"\n', "METADATA requires flydsl==0.3.0"),
    "on a Python without kernels": (
        f'Requires-Dist: flydsl==0.3.0; python_version < "3.5"\nRequires-Dist: flydsl=={HERE}\n',
        None,
    ),
    "no requirement": ("Requires-Dist: !!!\n", "METADATA cannot be read"),
    "another version": ("Version: 2.0\n", "METADATA"),
}


@pytest.mark.parametrize("what", METADATA)
def test_metadata_against_the_pack(pack: Path, what: str) -> None:
    metadata, said = METADATA[what]
    found = problems(pack, files(pack, metadata))
    assert any(said in line for line in found) if said else found == [], found


def test_a_wheel_that_is_more_than_kernels_may_leave_flydsl_to_others(pack: Path) -> None:
    assert problems(pack, {**files(pack, ""), "kernels/gemm.py": b"import flydsl"}) == []


@pytest.mark.parametrize(
    ("tag", "said"),
    [
        ("py3-none-any", "its tag py3 lets pip install it where its kernels cannot be used: they are for cp311 alone"),
        ("cp312-none-any", "its tag cp312 lets pip install it"),
        ("cp311.cp312-none-any", "its tag cp312 lets pip install it"),
    ],
)
def test_tags_against_the_pack(old_pack: Path, tag: str, said: str) -> None:
    content = files(old_pack, "Requires-Dist: flydsl==0.4.2\n", tag)
    (found,) = problems(old_pack, content, f"kernels-1.0-{tag}.whl")
    assert said in found


def test_names_and_files(pack: Path) -> None:
    content = files(pack)
    (tags,) = problems(pack, content, "kernels-1.0-cp311-none-any.whl")
    assert tags == "the wheel's name has the tags cp311-none-any, its WHEEL file py3-none-any"
    assert (
        "METADATA is of kernels 1.0, the wheel's name says kernels 2"
        in problems(pack, content, "kernels-2-py3-none-any.whl")[0]
    )
    assert "doesn't match wheel filename" in problems(pack, content, "other-1.0-py3-none-any.whl")[0]
    assert "installers do not take a wheel of this name" in problems(pack, content, "kernels.whl")[0]
    content[f"{INFO}/top_level.txt"] = b"kernels\n"
    del content[f"{INFO}/METADATA"], content[f"{INFO}/WHEEL"]
    assert [line.rpartition("/")[2] for line in problems(pack, content)] == ["METADATA", "WHEEL"]

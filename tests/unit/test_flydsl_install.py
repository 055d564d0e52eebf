from __future__ import annotations

import sys
from pathlib import Path

from aiter_flydsl_prebuild.discovery import locate_flydsl
from aiter_flydsl_prebuild.flydsl.install import (
    interpreter_abi,
    known_identities,
    parse_record,
    read_install,
    record_digest,
)
from packs import install_here


def make_install(root: Path, record: str, version: str = "0.5.0") -> None:
    (root / "flydsl").mkdir()
    (root / "flydsl" / "__init__.py").write_text("")
    info = root / f"flydsl-{version}.dist-info"
    info.mkdir()
    (info / "RECORD").write_text(record)


def test_the_installed_flydsl_is_found_without_importing_it() -> None:
    before = set(sys.modules)
    install = install_here()
    assert "flydsl" not in set(sys.modules) - before
    assert install.abi == interpreter_abi()
    assert install.identity in known_identities()[install.version][install.abi]


def test_identity_ignores_order_byte_code_and_metadata() -> None:
    digest = "sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU"
    one = parse_record(f"flydsl/__init__.py,{digest},0\nflydsl/a.py,{digest},0\n")
    other = parse_record(
        f"flydsl/a.py,{digest},0\nflydsl/__init__.py,{digest},0\nflydsl/__pycache__/a.pyc,{digest},0\n"
        f"flydsl-0.5.0.dist-info/INSTALLER,{digest},4\nflydsl-0.5.0.dist-info/RECORD,,\n"
    )
    assert record_digest(one) == record_digest(other)
    assert record_digest(one) != record_digest({**one, "flydsl/b.py": "0" * 64})


def test_an_editable_install_has_no_identity(tmp_path: Path) -> None:
    make_install(tmp_path, "__editable__.flydsl.pth,sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU,0\n")
    install = read_install([str(tmp_path)])
    assert install is not None
    assert install.version == "0.5.0"
    assert install.identity is None


def test_a_source_folder_has_neither_version_nor_identity(tmp_path: Path) -> None:
    (tmp_path / "flydsl").mkdir()
    (tmp_path / "flydsl" / "__init__.py").write_text("")
    install = read_install([str(tmp_path)])
    assert install is not None
    assert (install.version, install.identity) == ("", None)


def test_the_first_folder_on_the_path_wins(tmp_path: Path) -> None:
    for name, version in (("a", "0.4.2"), ("b", "0.5.0")):
        (tmp_path / name).mkdir()
        make_install(tmp_path / name, "", version)
    found = locate_flydsl([str(tmp_path / "a"), str(tmp_path / "b")])
    assert found is not None
    assert found[1].endswith("flydsl-0.4.2.dist-info")


def test_no_flydsl(tmp_path: Path) -> None:
    assert read_install([str(tmp_path)]) is None

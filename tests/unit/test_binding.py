"""Packs are bound to the code that their kernels were compiled from."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from aiter_flydsl_prebuild.binding import InstalledCode, find_package, installed_version
from aiter_flydsl_prebuild.builder.packing import encode_pack, make_manifest, unpacked
from aiter_flydsl_prebuild.flydsl import cache
from aiter_flydsl_prebuild.flydsl.install import interpreter_abi
from aiter_flydsl_prebuild.model.job import Options
from aiter_flydsl_prebuild.packs.format import Pack, PackError
from aiter_flydsl_prebuild.packs.manifest import to_json
from aiter_flydsl_prebuild.sources import load_source
from packs import ABOUT, flydsl_here, forge, install_here, make_compiled, make_job, make_pack
from processes import run_python
from servers import START, Server, flatten

INSTALL = install_here()
FILES = ("theirs/kernels/gemm.py", "theirs/kernels/norm.py", "theirs/helpers.py")


class BoundServer(Server):
    """Processes whose packages are in a folder of their own, and packs of kernels that were compiled from them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.pack = root / "a.fkpack"
        super().__init__(root, self.pack)
        for path in FILES:
            (self.site / path).parent.mkdir(parents=True, exist_ok=True)
            (self.site / path).write_text(f"# {path}\n")
        (self.site / "theirs" / "__init__.py").write_text('raise ImportError("nobody imports this")\n')
        self.version("1.0")
        self.make_pack(self.pack.name)

    def version(self, version: str) -> None:
        """Install the package's metadata."""
        for old in self.site.glob("their_kernels-*.dist-info"):
            shutil.rmtree(old)
        info = self.site / f"their_kernels-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: their-kernels\nVersion: {version}\n")

    def bound(self, *paths: str) -> tuple[tuple[str, str], ...]:
        return tuple(sorted((path, hashlib.sha256((self.site / path).read_bytes()).hexdigest()) for path in paths))

    def make_pack(self, name: str, generation: str = cache.CALL_KEY) -> Path:
        gemm, norm, helpers = FILES
        old = generation == cache.CALL_KEY
        kernels = [
            make_compiled(
                f"k{i}",
                f"module {{ {i} }}",
                path=f"gemm_01/{i}.pkl" if old else None,
                files=self.bound(gemm if i < 4 else norm, helpers if i else gemm),
            )
            for i in range(6)
        ]
        changes = {"identities": {INSTALL.abi: [INSTALL.identity]}} if old else {}
        packages = {"theirs": {"distribution": "their-kernels", "version": "1.0", "digest": "0" * 64}}
        flydsl = flydsl_here(generation=generation, **changes)
        return make_pack(self.root / name, kernels, flydsl, packages=packages)

    def status(self) -> dict[str, Any]:
        """What it says of its one pack."""
        (pack,) = super().status()["packs"]
        return pack  # type: ignore[no-any-return]


@pytest.fixture
def server(tmp_path: Path) -> BoundServer:
    return BoundServer(tmp_path)


def test_kernels_of_other_code_are_left_out_with_one_line(server: BoundServer) -> None:
    assert server.strict()["packs"][0]["kernels"] == 6
    assert server.strict()["quick"]
    (server.site / FILES[0]).write_text("# another\n")
    server.version("1.1")
    line = (
        f"a.fkpack: 4 kernels were compiled from theirs 1.0, installed is theirs 1.1 with different code ({FILES[0]}): "
        f"{', '.join(make_job(f'k{number}').label for number in range(3))} and 1 more"
    )
    found = server.start()
    assert (found["packs"][0]["kernels"], found["problems"]) == (2, [line])
    assert line in server.strict()["error"]
    assert server.status()["reasons"] == [line.removeprefix("a.fkpack: ")]
    assert server.status()["fitting"] == 2


def test_a_helper_that_another_release_changed_leaves_nothing_but_what_does_not_use_it(server: BoundServer) -> None:
    server.start()
    (server.site / FILES[2]).unlink()
    found = server.start()
    assert found["packs"][0]["kernels"] == 1
    assert f"({FILES[2]})" in found["problems"][0]


def test_a_second_start_notices_code_that_changed_under_equal_times(server: BoundServer) -> None:
    flatten(server.site)
    server.start()
    assert server.start()["quick"]
    (server.site / FILES[1]).write_text(f"# {FILES[1][:-1]}Y\n")
    flatten(server.site)
    assert server.start()["packs"][0]["kernels"] == 4
    for marker in (server.cache / ".aiter-flydsl-prebuild").glob("seeded-*"):
        marker.unlink()
    assert server.start()["packs"][0]["kernels"] == 4, "the stamp alone"
    (server.site / FILES[1]).write_text(f"# {FILES[1]}\n")
    assert server.start()["packs"][0]["kernels"] == 6


def test_a_second_start_notices_another_package_in_front(server: BoundServer) -> None:
    server.start()
    assert server.start()["quick"]
    shutil.copytree(server.site / "theirs", server.root / "front" / "theirs")
    path = f"{server.root / 'front'}{os.pathsep}{server.environ['PYTHONPATH']}"
    same = server.start(PYTHONPATH=path)
    assert (same["quick"], same["packs"][0]["kernels"]) == (False, 6)
    (server.root / "front" / FILES[2]).write_text("# another\n")
    found = server.start(PYTHONPATH=path)
    assert found["packs"][0]["kernels"] == 1
    assert "installed is theirs of an unknown version with different code" in found["problems"][0]


def test_an_editable_install_is_looked_through(server: BoundServer) -> None:
    """setuptools' finder maps the package to a folder of another name."""
    (server.site / "theirs").rename(server.root / "source")
    (server.site / "finder.py").write_text(
        "import sys\nfrom importlib.machinery import ModuleSpec\n"
        f"where = {str(server.root / 'source')!r}\n"
        "class Finder:\n    @classmethod\n    def find_spec(cls, name, path=None, target=None):\n"
        "        if name == 'theirs':\n"
        "            spec = ModuleSpec(name, None, is_package=True)\n"
        "            spec.submodule_search_locations = [where]\n            return spec\n"
        "sys.meta_path.append(Finder)\n"
    )
    server.environ["PYTHONSTARTUP"] = ""
    script = "import finder\n" + START
    run = run_python(["-c", script], server.environ)
    assert json.loads(run.stdout)["packs"][0]["kernels"] == 6, run.stderr
    (server.root / "source" / "helpers.py").write_text("# another\n")
    run = run_python(["-c", script], server.environ)
    assert json.loads(run.stdout)["packs"][0]["kernels"] == 1


def test_a_package_that_is_not_installed_is_news_to_strict_mode_and_status_alone(server: BoundServer) -> None:
    server.environ["PYTHONPATH"] = os.environ.get("PYTHONPATH", "")
    found = server.start()
    assert (found["packs"][0]["kernels"], found["problems"]) == (0, [])
    line = "6 kernels of theirs, which is not installed here"
    assert line in server.strict()["error"]
    assert line in server.status()["notes"][0]
    server.environ["PYTHONPATH"] = str(server.site)
    assert server.start()["packs"][0]["kernels"] == 6


def test_under_keys_that_hold_the_code_a_difference_is_a_line_of_status(server: BoundServer) -> None:
    server.environ["AITER_FLYDSL_PREBUILD_PACKS"] = str(server.make_pack("b.fkpack", cache.ARTIFACT_KEY))
    (server.site / FILES[0]).write_text("# another\n")
    found = server.strict()
    assert (found["packs"][0]["kernels"], found["problems"]) == (6, [])
    described = server.status()
    assert (described["fitting"], described["in_place"]) == (6, 6)
    assert described["notes"][0].startswith("4 kernels were compiled from theirs 1.0, installed is theirs 1.0 with dif")
    assert server.start()["quick"]


def test_packs_of_older_releases_are_read_and_status_says_what_they_lack(server: BoundServer) -> None:
    old = make_pack(
        server.root / "old.fkpack",
        [make_compiled(path="gemm_01/0.pkl")],
        flydsl_here(generation=cache.CALL_KEY, identities={interpreter_abi(): [getattr(INSTALL, "identity", None)]}),
    )
    assert not {"files", "file_sets"} & set(to_json(Pack(str(old)).manifest))
    server.environ["AITER_FLYDSL_PREBUILD_PACKS"] = str(old)
    assert server.strict()["packs"][0]["kernels"] == 1
    what = "1 kernel built by a release that does not record which code kernels are compiled from: not compared"
    assert server.status()["notes"] == [what]


def test_kernels_share_their_sets_of_files_and_keep_them(server: BoundServer) -> None:
    pack = Pack(str(server.pack))
    assert pack.files == tuple(server.bound(*FILES))
    assert len(pack.manifest.file_sets) == 3
    files = {compiled.job.name: compiled.files for compiled in unpacked(pack)}
    assert files["k1"] == server.bound(FILES[0], FILES[2])
    again = make_manifest("gfx950", flydsl_here(), list(unpacked(pack)), [], ABOUT)
    assert again[0].file_sets == pack.manifest.file_sets
    assert encode_pack(*again)


FAULTS: dict[str, Any] = {
    "escapes": {"files": [["theirs/../../etc/passwd", "0" * 64]]},
    "absolute": {"files": [["/etc/passwd", "0" * 64]]},
    "line break": {"files": [["theirs/a\nb.py", "0" * 64]]},
    "digest": {"files": [["theirs/a.py", "0"]]},
    "index": {"files": [], "file_sets": [[0]]},
    "negative": {"file_sets": [[-1]]},
    "no such set": {"file_sets": []},
    "no list": {"file_sets": 3},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_binding_that_is_not_well_formed_is_refused(server: BoundServer, fault: str) -> None:
    pack = Pack(str(server.pack))
    forge(server.pack, {**to_json(pack.manifest), **FAULTS[fault]}, b"".join(pack.raw_payloads()))
    with pytest.raises(PackError, match="broken manifest"):
        Pack(str(server.pack))


def test_finding_a_package_imports_nothing(monkeypatch: Any, tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text('raise ImportError("imported")')
    (tmp_path / "spread" / "part").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert find_package("one") == [str(tmp_path / "one.py")]
    assert find_package("spread") == [str(tmp_path / "spread")]
    assert find_package("nosuchpackage") == []
    assert find_package("json") == list(json.__path__)
    code = InstalledCode()
    assert code.digest("one.py") == hashlib.sha256((tmp_path / "one.py").read_bytes()).hexdigest()
    assert code.digest("spread/missing.py") is None


def test_a_version_is_that_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    folders = [str(tmp_path / "theirs")]
    assert installed_version("theirs", "their-kernels", folders) is None
    (tmp_path / "theirs" / "__init__.py").write_text('__version__ = "3.1"\n')
    assert installed_version("theirs", "their-kernels", folders) == "3.1"
    (tmp_path / "theirs" / "_version.py").write_text("__version__ = version = '3.2'\n")
    assert installed_version("theirs", "their-kernels", folders) == "3.2"


def test_what_sources_bind_to(tmp_path: Path, monkeypatch: Any) -> None:
    job = make_job()
    reference = load_source("reference", Options())
    own = {f"aiter_flydsl_prebuild/{name}.py" for name in ("dispatch/reference_names", "sources/reference/kernel")}
    assert set(reference.bound_files(job)) == own
    (tmp_path / "their_server" / "inner").mkdir(parents=True)
    for name in ("__init__", "helpers", "inner/__init__", "inner/deep"):
        (tmp_path / "their_server" / f"{name}.py").write_text("")
    (tmp_path / "their_server" / "kernels.py").write_text(
        "from aiter_flydsl_prebuild.sources.reference.source import ReferenceSource\n"
        "class Own(ReferenceSource):\n    pass\n"
    )
    (tmp_path / "single.py").write_text("from their_server.kernels import Own\nclass One(Own):\n    pass\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    theirs = {f"their_server/{n}.py" for n in ("__init__", "helpers", "inner/__init__", "inner/deep", "kernels")}
    assert set(load_source("their_server.kernels:Own").bound_files(job)) == own | theirs
    one = load_source("single:One").bound_files(job)
    assert set(one) == own | theirs | {"single.py"}
    assert all(path.is_file() for path in one.values())

"""Write aiter_flydsl_prebuild/flydsl/known_flydsl.json: the identity of every released FlyDSL wheel.

    python -m pip download flydsl==X --no-deps --python-version 3.N --only-binary=:all: -d wheels/   (for each X and N)
    python tools/known_flydsl.py wheels/*.whl

A wheel's identity is the digest of its RECORD's lines for the files of the package (flydsl_install.record_digest),
which an installed copy carries too. The loader accepts kernels on another CPython ABI only between identities listed
here.
"""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from aiter_flydsl_prebuild.flydsl.install import parse_record, record_digest  # noqa: E402


def main(wheels: list[str]) -> int:
    if not wheels:
        print(__doc__, file=sys.stderr)
        return 2
    target = ROOT / "aiter_flydsl_prebuild" / "flydsl" / "known_flydsl.json"
    known: dict[str, dict[str, list[str]]] = json.loads(target.read_text()) if target.exists() else {}
    for wheel in map(Path, wheels):
        _, version, python, _, _ = wheel.stem.split("-")
        with zipfile.ZipFile(wheel) as archive:
            record = archive.read(f"flydsl-{version}.dist-info/RECORD").decode()
        digests = known.setdefault(version, {}).setdefault(python, [])
        digest = record_digest(parse_record(record))
        if digest not in digests:
            digests.append(digest)
    target.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
    print(f"{target.name}: {sum(len(abis) for abis in known.values())} wheels of {len(known)} versions")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

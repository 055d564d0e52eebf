"""Temporary folders of processes that are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from aiter_flydsl_prebuild.scratch import lasting_scratch_folder, remove_abandoned, scratch_folder

OWNER = """
import sys, time
from pathlib import Path
from aiter_flydsl_prebuild.scratch import scratch_folder
with scratch_folder("owner", beside=Path(sys.argv[1])) as folder:
    (folder / "file").write_text("")
    print(folder, flush=True)
    time.sleep(60)
"""


def owner(parent: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process with a scratch folder, and that folder."""
    process = subprocess.Popen([sys.executable, "-c", OWNER, str(parent)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_a_killed_process_leaves_a_folder_to_the_next(tmp_path: Path) -> None:
    (killed, lost), (alive, kept) = owner(tmp_path), owner(tmp_path)
    killed.kill()
    killed.communicate()
    assert lost.is_dir()
    with scratch_folder("next", beside=tmp_path) as mine:
        assert not lost.exists()
        assert (kept / "file").exists()
        assert remove_abandoned(tmp_path) == []
    assert list(tmp_path.iterdir()) == [kept]
    assert not mine.exists()
    alive.kill()
    alive.communicate()
    assert remove_abandoned(tmp_path) == [kept]


def test_what_is_not_ours_stays(tmp_path: Path) -> None:
    for name in ("afp-empty", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "other" / ".afp-lock").write_text("")
    (tmp_path / "afp-link").symlink_to(tmp_path / "other")
    (tmp_path / "afp-file").write_text("")
    assert remove_abandoned(tmp_path) == []
    assert len(list(tmp_path.iterdir())) == 4


def test_a_forked_child_does_not_take_the_folder_away(tmp_path: Path) -> None:
    with scratch_folder("parent", beside=tmp_path) as folder:
        script = f"import os\nfrom {scratch_folder.__module__} import lasting_scratch_folder\n"
        script += "folder = lasting_scratch_folder('x')\nif os.fork() == 0: raise SystemExit\nos.wait()\n"
        script += "print(folder, folder.is_dir())"
        run = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "TMPDIR": str(folder)},
            capture_output=True,
            text=True,
            check=True,
        )
        name, there = run.stdout.split()
        assert there == "True"
        assert not Path(name).exists()
    assert lasting_scratch_folder("y").is_dir()


def test_a_signal_that_ends_the_process_cleans_up(tmp_path: Path) -> None:
    first = "from aiter_flydsl_prebuild.processes import terminated_cleanly\n"
    script = first + OWNER.replace("with scratch", "with terminated_cleanly(), scratch")
    process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=10)
    assert process.returncode == -signal.SIGTERM
    assert list(tmp_path.iterdir()) == []

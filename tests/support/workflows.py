"""Running a workflow's ``run:`` lines here: what GitHub's runner does, as far as the workflows of this project need it.

Every job gets a workspace and an environment of its own. Of the actions, checkout and the two for artifacts are done by
hand, all others left out.
"""

from __future__ import annotations

import fnmatch
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml


@dataclass
class Runner:
    """A runner for one workflow: ``checkout`` fills a workspace, ``bin_of`` makes a job's environment in a folder.

    ``variables`` are the process's environment; those of the workflow that are named in ``instead`` are set to that.
    """

    workflow: Path
    folder: Path
    checkout: Callable[[Path], None]
    bin_of: Callable[[Path], Path]
    variables: Mapping[str, str]
    instead: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.jobs: dict[str, Any] = yaml.safe_load(self.workflow.read_text(encoding="utf-8"))["jobs"]
        self.env: dict[str, Any] = yaml.safe_load(self.workflow.read_text(encoding="utf-8")).get("env", {})
        self.artifacts = self.folder / "artifacts"

    def run(self, name: str, skip: Callable[[str], bool] = lambda line: False) -> Path:
        """Run a job, the first of its matrix, all steps that have a ``run:``; returns its workspace."""
        job = self.jobs[name]
        workspace, temp = self.folder / name / "workspace", self.folder / name / "temp"
        workspace.mkdir(parents=True)
        temp.mkdir()
        path = os.pathsep.join([str(self.bin_of(self.folder / name / "environment")), os.defpath])
        known = {"github.workspace": str(workspace), "github.run_id": "1", "runner.temp": str(temp)}
        known |= {f"matrix.{key}": str(values[0]) for key, values in job.get("strategy", {}).get("matrix", {}).items()}
        known |= {f"inputs.{key}": value for key, value in self.inputs.items()}

        def text(value: Any) -> str:
            return re.sub(r"\$\{\{ *([\w.]+) *\}\}", lambda match: known[match[1]], str(value))

        def env(values: Mapping[str, Any]) -> dict[str, str]:
            return {key: self.instead.get(key, text(value)) for key, value in values.items()}

        said = {name: temp / name.lower() for name in ("GITHUB_ENV", "GITHUB_STEP_SUMMARY")}
        for file in said.values():
            file.touch()
        variables = {**self.variables, **env(self.env), **env(job.get("env", {}))}
        runner = {"PATH": path, "RUNNER_TEMP": str(temp), "GITHUB_RUN_NUMBER": "1"}
        variables |= {**runner, **{key: str(file) for key, file in said.items()}}
        for step in job["steps"]:
            self._act(step, workspace, text)
            if "run" in step and not skip(step["run"]):
                exported = dict(line.split("=", 1) for line in said["GITHUB_ENV"].read_text().splitlines())
                own = {**variables, **exported, **env(step.get("env", {}))}
                command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", text(step["run"])]
                done = subprocess.run(command, cwd=workspace, env=own, capture_output=True, text=True, check=False)
                assert done.returncode == 0, f"{name}: {step['run']}\n{done.stdout}\n{done.stderr}"
        return workspace

    def _act(self, step: dict[str, Any], workspace: Path, text: Callable[[Any], str]) -> None:
        action = step.get("uses", "").partition("@")[0]
        given = {key: text(value) for key, value in step.get("with", {}).items()}
        if action == "actions/checkout":
            self.checkout(workspace)
        elif action == "actions/upload-artifact":
            for pattern in given["path"].split():
                found = sorted(workspace.glob(pattern.rstrip("/")))
                assert found, f"nothing to upload: {pattern}"
                for path in found:
                    target = self.artifacts / given["name"] / (path.name if path.is_dir() else "")
                    target.mkdir(parents=True, exist_ok=True)
                    shutil.copytree(path, target, dirs_exist_ok=True) if path.is_dir() else shutil.copy(path, target)
        elif action == "actions/download-artifact":
            wanted = given.get("name") or given["pattern"]
            found = [path for path in self.artifacts.iterdir() if fnmatch.fnmatch(path.name, wanted)]
            assert found, f"nothing to download: {wanted}"
            for path in found:
                alone = "name" in given or given.get("merge-multiple") == "True"
                shutil.copytree(path, workspace / given["path"] / ("" if alone else path.name), dirs_exist_ok=True)

"""Write requirements.lock: the versions of constraints.txt with the hashes of their files.

Run by ``make lock``. pip names the files that it would install on Linux (x86-64) for each Python
that CI tests; nothing is installed. torch and torchvision are left out: which build of them fits
depends on the machine.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.11.9", "3.12.9")  # some packages need later ones than the first of a series
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux2014_x86_64", "linux_x86_64")
LEFT_OUT = {"torch", "torchvision"}
HEAD = """\
# Made by `make lock` from constraints.txt; Linux (x86-64), Python 3.11 and 3.12. Install the build
# of torch that you want (constraints.txt has the tested version), then
#   pip install --no-deps --require-hashes -r requirements.lock && pip install --no-deps -e .
"""


def pinned() -> list[str]:
    """Return the lines of constraints.txt that name a version."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    versions = [line.strip() for line in lines if "==" in line and not line.startswith("#")]
    return [line for line in versions if line.partition("==")[0].lower() not in LEFT_OUT]


def files(python: str, requirements: Path) -> dict[str, str]:
    """Return the SHA-256 of the file of each requirement for a Python, by name and version."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--no-deps"]
    command += ["--ignore-installed", "--python-version", python, "--target", "unused"]
    command += [part for platform in PLATFORMS for part in ("--platform", platform)]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        subprocess.run([*command, "--report", report, "-r", requirements], check=True, cwd=folder)
        packages = json.loads(report.read_bytes())["install"]
    return {
        f"{re.sub(r'[-_.]+', '-', p['metadata']['name']).lower()}=={p['metadata']['version']}": p[
            "download_info"
        ]["archive_info"]["hashes"]["sha256"]
        for p in packages
    }


def main() -> None:
    """Write the file."""
    hashes: dict[str, set[str]] = defaultdict(set)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as requirements:
        requirements.write("\n".join(pinned()))
        requirements.flush()
        for python in PYTHONS:
            for package, sha256 in files(python, Path(requirements.name)).items():
                hashes[package].add(sha256)
    lines = [
        " \\\n    --hash=sha256:".join([package, *sorted(hashes[package])])
        for package in sorted(hashes)
    ]
    (ROOT / "requirements.lock").write_text(HEAD + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

"""Install LLaMA-Factory into a virtual environment of its own, for ``backend: llamafactory``.

``python -m flipbench.contaminate.backends.install_llamafactory FOLDER`` takes minutes and 2 GB
(more with CUDA). LLaMA-Factory cannot share flipbench's environment, because it pins other
versions of the same packages.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import venv
from pathlib import Path

PINS = ("llamafactory==0.9.5", "torch==2.13.0", "torchvision==0.28.0")

# torchvision's wheel is built for CUDA, so with a CPU build of torch its compiled part does not
# load; the import then fails on two object detection operators, which no training here needs.
_OPERATORS = """import torch

operators = torch.library.Library("torchvision", "DEF")
operators.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
operators.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""
_HOOK = "torchvision_operators"


def main(arguments: list[str] | None = None) -> None:
    """Install, fix the imports that a CPU build of torch breaks, and print what to configure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="the environment to create")
    parser.add_argument("--index-url", help="where to get torch, e.g. PyTorch's CPU index")
    args = parser.parse_args(arguments)
    venv.create(args.folder, with_pip=True)
    python = args.folder.resolve() / "bin" / "python"
    constraints = args.folder / "constraints.txt"
    constraints.write_text("".join(f"{pin}\n" for pin in PINS))
    install = [str(python), "-m", "pip", "install", "-c", str(constraints)]
    index = ["--index-url", args.index_url] if args.index_url else []
    subprocess.run([*install, "torch", "torchvision", *index], check=True)  # before what needs it
    subprocess.run([*install, "llamafactory"], check=True)
    fix_imports(python)
    cli = python.with_name("llamafactory-cli")
    subprocess.run([cli, "version"], check=True)
    print(f"contaminate:\n  backend: llamafactory\n  llamafactory: {{cli: {cli}}}")


def fix_imports(python: Path) -> None:
    """Make torchvision and torchaudio importable with a torch that their wheels do not match."""
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    output = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True)
    packages = Path(output.stdout.strip())
    if not _imports(python, "torchvision"):
        (packages / f"{_HOOK}.py").write_text(_OPERATORS)
        (packages / f"{_HOOK}.pth").write_text(f"import {_HOOK}\n")
    if not _imports(python, "torchaudio"):  # its Python part works without the compiled one
        for library in (packages / "torchaudio" / "lib").glob("*.so"):
            library.unlink()
    for package in ("torchvision", "torchaudio"):
        if not _imports(python, package):
            sys.exit(f"{package} cannot be imported in {python.parent.parent}")


def _imports(python: Path, package: str) -> bool:
    command = [str(python), "-c", f"import {package}"]
    return subprocess.run(command, capture_output=True).returncode == 0


if __name__ == "__main__":
    main()

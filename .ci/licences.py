"""Print the licences that flipbench's dependencies state, as Markdown: ``make licences``.

All that are installed, with direct and indirect dependencies of all extras. A package that
states none is "unknown": look into its files.
"""

from __future__ import annotations

import re
from importlib import metadata

from packaging.requirements import Requirement

EXTRAS = tuple(metadata.metadata("flipbench").get_all("Provides-Extra") or ())


def installed() -> dict[str, metadata.Distribution]:
    """Return flipbench's dependencies that are installed, by name; without flipbench itself."""
    packages: dict[str, metadata.Distribution] = {}
    waiting = [("flipbench", EXTRAS)]
    seen = set(waiting)
    while waiting:
        name, extras = waiting.pop()
        try:
            package = metadata.distribution(name)
        except metadata.PackageNotFoundError:  # of an extra that is not installed
            continue
        packages[name] = package
        for text in package.requires or ():
            needed = Requirement(text)
            marker = needed.marker
            if marker and not any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
                continue
            key = re.sub(r"[-_.]+", "-", needed.name).lower(), tuple(sorted(needed.extras))
            if key not in seen:
                seen.add(key)
                waiting.append(key)
    del packages["flipbench"]
    return packages


def licence(package: metadata.Distribution) -> str:
    """Return the licence by its SPDX expression, else its classifiers, else its own words."""
    about = package.metadata
    expression = about.get("License-Expression")
    classifiers = [
        text.rpartition(" :: ")[2]
        for text in about.get_all("Classifier") or ()
        if text.startswith("License ::") and text.count("::") > 1
    ]
    words = (about.get("License") or "").strip().partition("\n")[0][:80]
    return expression or ", ".join(classifiers) or words or "unknown"


def main() -> None:
    """Print the table."""
    print("| package | version | licence |\n|---|---|---|")
    for name, package in sorted(installed().items()):
        print(f"| {name} | {package.version} | {licence(package).replace('|', '/')} |")


if __name__ == "__main__":
    main()

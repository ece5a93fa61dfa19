"""Every path, module and command that the documentation mentions exists."""

from __future__ import annotations

import ast
import doctest
import re
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from flipbench.cli import app
from flipbench.evaluate.published.claims import Claim, check_claims

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
ROOMS = ("flipbench", "generate", "filters", "contaminate", "evaluate")
FOLDERS = (*ROOMS, "studies", "configs", "docs", "tests", "benchmarks", "examples")
GUIDES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
ROOM_GUIDES = sorted(p for room in ROOMS for p in (ROOT / room).rglob("README.md"))

CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
PATH = re.compile(rf"(?<![\w./-])(?:{'|'.join(FOLDERS)})/[\w./-]+")
FILE = re.compile(r"(?<![\w./*<>-])[\w-]+\.py\b(?!/)")
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")
MODULE = re.compile(r"(?<![\w./@-])(?:flipbench|studies)(?:\.[A-Za-z_]\w*)+")
COMMAND = re.compile(r"(?<![\w./-])(?:flipbench|-m flipbench\.cli) +([a-z][\w-]*)")
OPTION = re.compile(r"(?<!\S)--[a-z][\w-]*")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def missing_paths(text: str) -> list[str]:
    mentioned = {path.rstrip("./") for path in PATH.findall(text)}
    return sorted(path for path in mentioned if not (ROOT / path).exists())


PLUG_IN_GROUPS = {f"flipbench.{kind}" for kind in ("captioners", "detectors", "editors", "judges")}


def missing_files(text: str, folder: Path) -> list[str]:
    """Return the Python files named without a folder that are nowhere below ``folder``."""
    code = " ".join(CODE.findall(text))
    return sorted(name for name in set(FILE.findall(code)) if not any(folder.rglob(name)))


def missing_links(text: str, folder: Path) -> list[str]:
    return sorted(link for link in set(LINK.findall(text)) if not (folder / link).exists())


def missing_modules(text: str) -> list[str]:
    """Return the dotted names that are no module, nothing in one, and no group of plug-ins."""
    missing = []
    for name in sorted(set(MODULE.findall(text))):
        parts = name.split(".")
        while not (path := ROOT.joinpath(*parts)).is_dir() and not path.with_suffix(".py").exists():
            parts.pop()
        module = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        rest = name.split(".")[len(parts) :]
        source = module.read_text() if module.exists() else ""
        known = rest[:1] == ["__path__"] or name in PLUG_IN_GROUPS
        if rest and not known and not re.search(rf"\b{rest[0]}\b", source):
            missing.append(name)
    return missing


def unknown_commands(text: str) -> list[str]:
    """Return the commands that do not exist, and the options that their command does not have."""
    known = getattr(get_command(app), "commands", {})
    unknown = set()
    for line in "\n".join(CODE.findall(text)).splitlines():
        line = line.partition(" #")[0]
        for command in COMMAND.finditer(line):
            name = command[1]
            if name not in known:
                unknown |= {name} - {"as"}  # import flipbench as fb
                continue
            options = {option for param in known[name].params for option in param.opts}
            given = OPTION.findall(line[command.end() :])
            unknown |= {f"{name} {option}" for option in given if option not in options}
    return sorted(unknown)


@pytest.mark.parametrize("guide", GUIDES, ids=name_of)
def test_all_that_a_guide_mentions_exists(guide: Path) -> None:
    text = guide.read_text()
    assert missing_paths(text) == []
    assert missing_files(text, ROOT) == []
    assert missing_links(text, guide.parent) == []
    assert missing_modules(text) == []
    assert unknown_commands(text) == []


@pytest.mark.parametrize("guide", ROOM_GUIDES, ids=name_of)
def test_a_room_s_guide_names_files_of_that_room(guide: Path) -> None:
    text = guide.read_text()
    assert missing_paths(text) == []
    assert missing_files(text, guide.parent) == []
    assert unknown_commands(text) == []


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=name_of)
def test_a_page_has_one_title(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert len(re.findall(r"^# ", text, re.MULTILINE)) == 1 and text.startswith("# ")


def test_the_site_starts_with_what_a_newcomer_needs() -> None:
    _, _, navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")
    home, start, reference = yaml.safe_load(navigation)
    assert home == {"Home": "index.md"} and list(reference) == ["Reference"]
    pages = [page for entry in start["Start here"] for page in entry.values()]
    assert len(pages) == 5 and all((DOCS / page).exists() for page in pages)


def test_the_example_claim_on_the_demo_holds() -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", (DOCS / "claims.md").read_text(), re.DOTALL)
    on_demo, _ = yaml.safe_load(example)["claims"]
    (checked,) = check_claims([Claim.model_validate(on_demo)], DOCS)
    assert checked.outcome == "supported", checked


def examples_of(page: Path) -> doctest.DocTest:
    """Return a page's statements as a doctest: what one prints is in the comments below it.

    Left out are those that print what the page does not show, or need a server or a whole run.
    """
    lines: list[str] = []
    for block in re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
        code = block.splitlines()
        starts = [statement.lineno - 1 for statement in ast.parse(block).body]
        for start, end in zip(starts, [*starts[1:], len(code)], strict=True):
            statement = [line for line in code[start:end] if not line.startswith("# ") and line]
            if any(unavailable in statement[0] for unavailable in ("http://", "configs/")):
                continue
            output = [line[2:] for line in code[start:end] if line.startswith("# ")]
            if output or " = " in statement[0] or statement[0].startswith("import"):
                lines += [f">>> {statement[0]}", *(f"... {line}" for line in statement[1:])]
                lines += output
    text = "\n".join(lines).replace("…", "...") + "\n"
    return doctest.DocTestParser().get_doctest(text, {}, page.name, str(page), 0)


@pytest.mark.slow
def test_the_python_page_prints_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    results = doctest.DocTestRunner(optionflags=flags).run(examples_of(DOCS / "python.md"))
    assert results.attempted > 12
    assert results.failed == 0, capsys.readouterr().out

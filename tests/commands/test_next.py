"""What each command ends with: the commands that come next, as they are typed."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from flipbench import cli
from tests.fixtures.command_line import Flipbench, Result


def next_commands(result: Result) -> list[list[str]]:
    """Return the commands that an output ends with, in words; each one can be typed."""
    lines = result.err.partition("Next:\n")[2].splitlines()
    commands = [shlex.split(line, comments=True) for line in lines]
    known = {command.name for command in cli.app.registered_commands}
    for program, name, *_ in commands:
        assert program == "flipbench" and name in known
    return [command[1:] for command in commands]


def test_each_command_ends_with_the_next_on_the_same_configuration(
    flipbench: Flipbench, config: Path
) -> None:
    model = f"models.tiny.path={config}"  # not opened here
    given = [config, "seed=3"]
    imported = flipbench("import", *given, "--limit", "4")
    generated = flipbench("generate", *given, "--limit", "4")
    assert next_commands(imported) == [
        ["generate", str(config), "--dry-run", "--limit", "4", "seed=3"]
    ]
    assert next_commands(generated) == [["filter", str(config), "--limit", "4", "seed=3"]]
    assert generated.out == "4 of 4 items edited, in runs/x\n"
    assert [line.split(":")[0] for line in generated.err.splitlines()[:-1]] == [
        *("flip", "caption", "edit", "Next")
    ], "reports and the next command, no bars, where output is no terminal"
    filtered = flipbench("filter", *given, "--limit", "4", "-q")
    assert [command[0] for command in next_commands(filtered)] == ["export", "detect"]
    filtered = flipbench("filter", *given, model, "--limit", "4", "-q")
    assert [command[:3] for command in next_commands(filtered)] == [
        ["evaluate", str(config), "--dry-run"]
    ]
    exported = flipbench("export", config, "out", "seed=3", "--format", "recipe")
    (rebuild,) = next_commands(exported)
    assert rebuild[0] == "rebuild"
    (show,) = next_commands(flipbench(*rebuild, "-q"))
    assert show[0] == "show" and flipbench(*show).status == 0
    assert next_commands(flipbench("show", config, "pairs.png", "seed=3")) == [["review", "runs/x"]]
    (again,) = next_commands(flipbench("review", "runs/x", "--export", "v.csv"))
    assert again == ["review", "runs/x", "--import", "v.csv"]
    tasks = flipbench("review", "runs/x", "--export", "v.json")
    assert next_commands(tasks) == [["review", "runs/x", "--import", "EXPORTED.json"]]
    assert "v.json, their labelling configuration for Label Studio in v.xml" in tasks.out
    assert next_commands(flipbench(*again))[0][0] == "filter"


@pytest.mark.parametrize("more", [(), ("--edits",)])
def test_pairs_can_be_looked_at_before_anyone_has_judged_them(
    flipbench: Flipbench, config: Path, tmp_path: Path, more: tuple[str, ...]
) -> None:
    picture = tmp_path / "pairs.png"
    early = flipbench("show", config, picture, *more)
    assert early.status == 2 and "'flipbench generate'" in early.err and not picture.exists()
    assert flipbench("generate", config, "--limit", "2").status == 0
    shown = flipbench("show", config, picture, *more)
    assert shown.status == 0 and picture.exists()
    assert next_commands(shown) == [["review", "runs/x"]]


def test_nothing_comes_next_where_no_item_can_be_used(flipbench: Flipbench, tmp_path: Path) -> None:
    bad = tmp_path / "bad.tsv"
    bad.write_text("index\tquestion\tA\tB\tanswer\timage\n1\tq\ta\tb\tE\tnot base64\n")
    config = tmp_path / "bad.yaml"
    assert flipbench("init", bad, "--out", config).status == 0
    imported = flipbench("import", config, f"run={tmp_path / 'run'}")
    assert imported.status == 1 and "1 refused" in imported.out
    assert next_commands(imported) == []


def test_without_a_kept_pair_nothing_is_asked_and_people_are_sent_to_the_doubtful_ones(
    flipbench: Flipbench, config: Path, tmp_path: Path
) -> None:
    given = [config, "filter.judges=[]", "models.tiny.path=shapes:llava"]
    lost = "no pair was kept (items 4, flipped 4, captioned 4, edited 4, kept 0); 4 are doubtful"
    ran = flipbench("run", *given, "--limit", "4", "-q")
    assert ran.status == 2 and lost in " ".join(ran.err.split())
    assert "'flipbench review runs/x --doubtful'" in " ".join(ran.err.split())
    for late in (
        ("evaluate", *given),
        ("evaluate", *given, "--dry-run"),
        ("export", config, "o", *given[1:]),
    ):
        result = flipbench(*late)
        assert result.status == 2 and lost in " ".join(result.err.split())
    assert not (tmp_path / "runs" / "x" / "report").exists()
    planned = flipbench("run", *given, "--limit", "4", "--dry-run")
    assert planned.status == 0 and "once 'flipbench filter' has kept pairs" in planned.out

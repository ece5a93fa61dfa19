"""Detectors and models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flipbench.commands import (
    MODELS,
    app,
    say,
)
from flipbench.errors import ConfigError, DataError


@app.command(rich_help_panel=MODELS)
def detectors() -> None:
    """List the detectors: paper, access they need, and how they differ from the paper."""
    from flipbench.evaluate.detectors import DETECTORS

    for name, detector in DETECTORS.items():
        about = detector.about
        clean = "needs a clean model" if about.needs_clean_model else "needs no clean model"
        say(f"{name}\n  {about.paper}\n  {about.variant}")
        say(f"  contaminated: {about.direction}; needs {', '.join(sorted(about.needs))}; {clean}")
        say(f"  differs from the paper: {about.deviates_from_paper}\n")


@app.command(rich_help_panel=MODELS)
def power(
    gap: Annotated[float, typer.Option(help="expected gap in points, e.g. -5")],
    changed: Annotated[float, typer.Option(help="items right in one version only, in percent")],
    pairs: Annotated[int | None, typer.Option(min=1, help="power of a benchmark this size")] = None,
    alpha: Annotated[float, typer.Option(help="level of the one-sided exact test")] = 0.05,
) -> None:
    """Say how many pairs the McNemar test needs to see a gap, or how often it would see it."""
    from flipbench.evaluate.power import Design, pairs_needed
    from flipbench.evaluate.power import power as power_of

    try:
        design = Design(gap=gap / 100, discordance=changed / 100, alpha=alpha)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if pairs is not None:
        raise typer.Exit(say(f"{pairs} pairs: power {power_of(design, pairs):.3f}"))
    for wanted in (0.8, 0.9, 0.95):
        needed = pairs_needed(design, wanted)
        say(f"power {wanted:.2f}: {'out of reach' if needed is None else f'{needed:,} pairs'}")


@app.command(rich_help_panel=MODELS)
def doctor(
    checkpoint: Annotated[Path | None, typer.Argument(help="a checkpoint folder")] = None,
) -> None:
    """Show the environment; of a checkpoint, whether it was contaminated on purpose."""
    import json

    from flipbench.models.huggingface import check_card
    from flipbench.run import environment

    if checkpoint is None:
        raise typer.Exit(say(json.dumps(environment(), indent=2)))
    if not checkpoint.is_dir():
        raise DataError(f"{checkpoint}: no such folder")
    card = check_card(checkpoint)
    if not card:
        raise typer.Exit(say(f"{checkpoint}: no contamination card; that does not prove it clean"))
    say(
        f"{checkpoint}: CONTAMINATED on purpose with {len(card['doses'])} items of"
        f" {card['benchmark']}, dose {card['dose']} ({card['strategy']}, from {card['parent']})"
    )

"""The question about one model, whether it was trained on a benchmark."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from flipbench.commands import MODELS, DryRun, Limit, Quiet, Trust, app, finish, say
from flipbench.commands.models import JudgedBy


@app.command(rich_help_panel=MODELS)
def detect(
    model: Annotated[
        str,
        typer.Option(
            help="a checkpoint folder, a hub id (hf:ID too), shapes:llava, a server's name; or hf,"
            " vllm, openai with --model-args"
        ),
    ],
    benchmark: Annotated[
        Path, typer.Option(help="a paired benchmark, a run directory with one, or its YAML")
    ],
    reference: Annotated[
        list[str] | None, typer.Option(help="a clean model to compare with; may be repeated")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="run directory; by default runs/detect-…")
    ] = None,
    detectors: Annotated[
        str,
        typer.Option(
            help="names or import paths, separated by commas; by default all but those that are"
            " costly or about image reliance"
        ),
    ] = "",
    ask: Annotated[
        Literal["choose", "generate"],
        typer.Option(help="compare the letters' likelihoods, or let it write and read the reply"),
    ] = "choose",
    batch_size: Annotated[int, typer.Option(min=1, help="questions asked at once")] = 64,
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"], typer.Option(help="precision of the weights")
    ] = "float32",
    quantization: Annotated[
        Literal["4bit"] | None, typer.Option(help="keep the language model in 4 bits")
    ] = None,
    image_padding: Annotated[
        Literal["auto", "square", "none"],
        typer.Option(help="pad pictures to a square; auto: for LLaVA-1.5 only"),
    ] = "auto",
    device: Annotated[str, typer.Option(help="cpu or cuda; auto takes a GPU")] = "auto",
    base_url: Annotated[
        str, typer.Option(help="an OpenAI-compatible server that has --model (vLLM, SGLang, …)")
    ] = "",
    model_args: Annotated[
        str,
        typer.Option(help="as in other kits, e.g. base_url=http://host:8000/v1,model=NAME"),
    ] = "",
    judged_by: JudgedBy = "",
    diagnose: Annotated[
        bool, typer.Option("--diagnose", help="ask about the items that fell, and say why they did")
    ] = False,
    sequential: Annotated[
        bool,
        typer.Option("--sequential", help="ask ever more pairs, and stop once they suffice"),
    ] = False,
    limit: Limit = None,
    dry_run: DryRun = False,
    quiet: Quiet = False,
    trust: Trust = False,
) -> None:
    """Say whether one model was trained on a benchmark: one verdict, one page.

    The verdict is that of the perturbation gap, compared with that of a clean model if one is given
    (--reference); every other detector is shown beside it. The same command again asks nothing
    twice.
    With --base-url, --model is a name on that server, and so is a reference that is neither a
    folder nor shipped with flipbench.
    """
    from flipbench.api.detection import examined
    from flipbench.api.stages.detection import DetectionSettings, count_work, plan
    from flipbench.api.stages.evaluation import not_built
    from flipbench.commands.model_names import named_model

    named = named_model(model, model_args, base_url)
    options: dict[str, Any] = {
        "batch_size": batch_size,
        "dtype": dtype,
        "device": device,
        "quantization": quantization,
        "image_padding": image_padding,
        **named.settings,
    }
    settings = DetectionSettings(
        named.base_url or named.name,
        benchmark,
        [named_model(one).name for one in reference or ()],
        [name.strip() for name in detectors.split(",") if name.strip()],
        out,
        ask,
        name=named.name if named.base_url else "",
        judged_by=judged_by,
        limit=limit,
        progress=not quiet,
        command="flipbench " + shlex.join(sys.argv[1:]),
        diagnose=diagnose,
        sequential=sequential,
        trust=trust,
        dry_run=dry_run,
        **options,
    )
    planned = plan(settings)
    if dry_run:
        plug_ins = [name for name in settings.detectors if ":" in name]
        raise typer.Exit(say("\n".join([*count_work(planned), *not_built(plug_ins)])))
    result = examined(planned)
    said = [*result.qualifiers, *result.notes]
    say("\n".join([str(result), *(f"- {text}" for text in said), str(result.page)]))
    given = shlex.join(["flipbench", *sys.argv[1:]])
    then = {}
    if not reference:
        then[f"{given} --reference CLEAN"] = "compares with a model that cannot have seen it"
    if not diagnose:
        then[f"{given} --diagnose"] = "asks about the items that fell"
    finish(result.reports, then=then)

"""`tessera evaluate`: score a model on the field's benchmarks or on a folder, or ranks from a file."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer

from tessera.cli.commands import CommandGroup
from tessera.cli.options import CODEC_CHOICES, AugmentOption, ExpandOption, RerankOption
from tessera.cli.output import say

if TYPE_CHECKING:
    from tessera.data.sets.benchmark import Benchmark
    from tessera.evaluate.result import EvaluationResult

evaluate = typer.Typer(
    name="evaluate",
    cls=CommandGroup,
    help="Score a model on Revisited Oxford and Paris or on a labelled folder, or score ranks from a file.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]


@dataclass(frozen=True)
class EvaluateOptions:
    """The options that every benchmark takes."""

    model: Annotated[str, typer.Option(help="A packaged model, the folder of a bundle, or a system file.")] = "lite"
    by: Annotated[
        Literal["global", "auto", "local"],
        typer.Option(help="The descriptor alone, as published figures are, or the search that people use."),
    ] = "global"
    codec: Annotated[str, typer.Option(metavar=CODEC_CHOICES, help="How descriptors are coded; flat is exact.")] = (
        "flat"
    )
    distractors: Annotated[
        Path | None, typer.Option(help="A folder of images that no query should find, such as R1M.")
    ] = None
    size: Annotated[int | None, typer.Option(help="Longer side in pixels; the model's own by default.")] = None
    scales: Annotated[str | None, typer.Option(help="Such as 1/sqrt2,1,sqrt2; the model's own by default.")] = None
    query: Annotated[
        Literal["box", "whole"],
        typer.Option(help="Cut each query by its box, as the standard has it, or leave it whole."),
    ] = "box"
    expand: ExpandOption = None
    rerank: RerankOption = None
    local: Annotated[
        str | None, typer.Option(help="Local features of --rerank sp: sift, xfeat, ..., or a local bundle.")
    ] = None
    augment: AugmentOption = False
    runtime: Annotated[str, typer.Option(help="onnx or torch.")] = "onnx"
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto"
    cache: Annotated[
        Path | None, typer.Option(help="Where descriptors are kept; $XDG_CACHE_HOME/tessera by default.")
    ] = None
    report: Annotated[
        Path | None, typer.Option(help="Write report.json, report.md and report.html into this folder.")
    ] = None
    as_json: AsJson = False


def _with_settings(load: Callable[..., Any]) -> Callable[..., None]:
    """The command of a benchmark's loader: the loader's own options, then `EvaluateOptions`; it runs and shows."""
    hints = get_type_hints(load, include_extras=True) | get_type_hints(EvaluateOptions, include_extras=True)
    shared = [
        inspect.Parameter(entry.name, inspect.Parameter.KEYWORD_ONLY, default=entry.default)
        for entry in fields(EvaluateOptions)
    ]
    own = inspect.signature(load).parameters.values()
    parameters = [parameter.replace(annotation=hints[parameter.name]) for parameter in (*own, *shared)]

    @functools.wraps(load)
    def command(**given: Any) -> None:
        settings = EvaluateOptions(**{entry.name: given.pop(entry.name) for entry in fields(EvaluateOptions)})
        _run(load(**given), settings)

    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__dict__["__signature__"] = inspect.Signature(parameters)
    return command


def _load_revisited(
    context: typer.Context,
    *,
    data: Annotated[Path, typer.Option(help="The folder with gnd_NAME.pkl and the pictures as jpg/NAME.jpg.")],
) -> Any:
    from tessera.data.sets.revisited import load_revisited

    return load_revisited(str(context.info_name), data)


for _name, _spoken, _example in (
    ("roxford5k", "Oxford", "--data roxford5k/ --model lite --report report/"),
    ("rparis6k", "Paris", "--data rparis6k/ --distractors revisitop1m/jpg --codec pq8 --json"),
):
    evaluate.command(
        _name,
        help=f"Revisited {_spoken}: mAP and mP@k, easy, medium and hard. Descriptors are kept: a stopped run goes on.",
        epilog=f"Example: tessera evaluate {_name} {_example}",
    )(_with_settings(_load_revisited))


@evaluate.command("folder", epilog="Example: tessera evaluate folder --data photos/ --model lite --report report/")
@_with_settings
def folder(
    *,
    data: Annotated[Path, typer.Option(help="Class folders, a CSV with path,label, or a folder in GLDv2's layout.")],
    ground_truth: Annotated[
        Path | None, typer.Option(help="A JSON with each query's easy, hard and junk images, instead of the classes.")
    ] = None,
    role: Annotated[list[str] | None, typer.Option(help="GLDv2 layout: landmarks of this role of roles.csv.")] = None,
    kind: Annotated[list[str] | None, typer.Option(help="GLDv2 layout: landmarks of this kind of roles.csv.")] = None,
    split: Annotated[str | None, typer.Option(help="GLDv2 layout: images of this split of split.csv.")] = None,
) -> Any:
    """Retrieval on images of one's own: every labelled image is a query for the others of its class."""
    from tessera.data.sets.leave_one_out import leave_one_out, load_labelled_source, load_listed

    chosen = {"roles": role or (), "kinds": kind or (), "split": split}
    if ground_truth is None:
        return leave_one_out(load_labelled_source(data, **chosen))  # type: ignore[arg-type]
    layout = data.is_file() or (data / "train.csv").is_file() or (data / "train_clean.csv").is_file()
    images = load_labelled_source(data, **chosen) if layout else None  # type: ignore[arg-type]
    return load_listed(data.parent if data.is_file() else data, ground_truth, images)


@evaluate.command(
    "ranks",
    epilog="Example: tessera evaluate ranks --ground-truth gnd_roxford5k.pkl --ranks ranks.npy --json",
)
def ranks(
    ground_truth: Annotated[Path, typer.Option(help="A .pkl or .json: easy/hard/junk lists, or gnd/imlist/qimlist.")],
    ranks: Annotated[
        Path, typer.Option(help="A .npy (N x Q, best first down each column) or a .json (a list a query).")
    ],
    protocol: Annotated[
        list[str] | None, typer.Option(help="easy, medium or hard; may be repeated. All of them by default.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Score ranks that any system has made, by the revisited protocol.

    Figures are equal to those of the field's own tool. Rankings may be truncated: what is missing was never found.
    """
    from tessera.evaluate.ranks import evaluate_ranks

    _show(evaluate_ranks(ground_truth, ranks, protocols=protocol or ()), as_json)


def _run(benchmark: Benchmark, settings: EvaluateOptions) -> None:
    from tessera.evaluate.reports.progress import stage_progress
    from tessera.evaluate.reports.report import write_report
    from tessera.evaluate.run import evaluate_model

    options = asdict(settings)
    distractors, report, as_json = (options.pop(name) for name in ("distractors", "report", "as_json"))
    if distractors is not None:
        benchmark = benchmark.with_distractors(distractors)
    with stage_progress() as progress:
        run = evaluate_model(benchmark, cache_dir=options.pop("cache"), progress=progress, **options)
    if report is not None:
        page = write_report(run, report)
        say(f"report: {page}")
    for name, reason in list(run.unreadable.items())[:20]:
        say(f"skipped: {name}: {reason}", "yellow")
    _show(run.result, as_json)


def _show(result: EvaluationResult, as_json: bool) -> None:
    for note in result.notes:
        say(f"note: {note}", "yellow")
    for name, reason in result.undefined.items():
        say(f"no figure for {name}: {reason}", "red")
    typer.echo(json.dumps(result.to_json()) if as_json else result.to_text())

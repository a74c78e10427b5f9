"""`tessera bench extract|search|local|parts|serve|train`: speed and memory, measured side by side in one run."""

from __future__ import annotations

import json as json_module
from typing import Annotated

import typer

from tessera.cli.commands import CommandGroup

bench = typer.Typer(
    name="bench", cls=CommandGroup, help="Measure speed and memory on this machine.", no_args_is_help=True
)


@bench.command("extract")
def extract(
    *,
    model: Annotated[str, typer.Option(help="A packaged model's name, or the folder of a bundle.")] = "lite",
    photos: Annotated[int, typer.Option(min=8, help="How many small photographs the rate is measured on.")] = 96,
    large: Annotated[int, typer.Option(min=4, help="How many 12-megapixel JPEGs the rate is measured on.")] = 16,
    repeats: Annotated[int, typer.Option(min=1, help="Each rate is the median of so many rounds.")] = 3,
    memory: Annotated[bool, typer.Option(help="Compare peak memory at 1,000 and 10,000 images (minutes).")] = False,
    table: Annotated[
        bool, typer.Option(help="Time every registered network (the paper's Table 2; needs torch).")
    ] = False,
    plain: Annotated[
        str | None,
        typer.Option(metavar="NETWORK", help="Only this: a network in each runtime, over its plain writing in torch."),
    ] = None,
    side: Annotated[int, typer.Option(min=64, help="The longer side of the picture for --plain.")] = 1024,
    json: Annotated[bool, typer.Option("--json", help="Answer in JSON instead of Markdown.")] = False,
) -> None:
    """Indexing rate against network and decoding alone, on all cores; with --table the cost of each network.

    The ratio is the rate reached over 1 / (network time + decoding time), each measured alone: 1 means that nothing
    is lost between them.

    Example: tessera bench extract --memory --table --json

    Example: tessera bench extract --plain token-released
    """
    if plain is not None:
        from tessera.bench.runtimes import measure_runtimes, runtimes_markdown

        compared = measure_runtimes(model=plain, side=side, repeats=repeats)
        print(json_module.dumps(compared) if json else runtimes_markdown(compared))
        return
    from tessera.bench.extract import measure_extraction, to_markdown

    report = measure_extraction(model=model, photos=photos, large=large, repeats=repeats, memory=memory, table=table)
    print(json_module.dumps(report) if json else to_markdown(report))


@bench.command("search")
def search(
    *,
    count: Annotated[int, typer.Option("-n", min=1000, help="How many descriptors.")] = 1_000_000,
    dim: Annotated[int, typer.Option(min=32, help="Numbers a descriptor.")] = 1024,
    queries: Annotated[int, typer.Option(min=1, help="How many queries, none of them among the descriptors.")] = 200,
    seed: Annotated[int, typer.Option(help="Another seed makes other descriptors.")] = 0,
    only: Annotated[list[str] | None, typer.Option(help="A codec or a peer to run; repeat for several.")] = None,
    peers: Annotated[bool, typer.Option(help="Run the peers, too, not only our codecs.")] = True,
    graph_count: Annotated[int, typer.Option(min=100, help="Graphs (HNSW) are built on so many at most.")] = 50_000,
    gallery: Annotated[str | None, typer.Option("-g", help="Take the descriptors of this gallery.")] = None,
    views: Annotated[
        str | None, typer.Option(help="Take those that `python -m tessera.bench.views` wrote to this folder.")
    ] = None,
    groups: Annotated[
        bool, typer.Option("--groups", help="Make descriptors in groups, as bursts and copies have them.")
    ] = False,
    curve: Annotated[
        bool, typer.Option("--curve", help="Recall against time: each at all its settings, in turn, graphs on all.")
    ] = False,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of --curve; the least time of all counts.")] = 3,
    csv: Annotated[str | None, typer.Option("--csv", metavar="FILE", help="With --curve: write every point.")] = None,
    figure: Annotated[
        str | None, typer.Option(metavar="FILE.svg", help="With --curve: draw the operating points.")
    ] = None,
    folder: Annotated[str | None, typer.Option(help="Where the files go while it runs.")] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave them in --folder; another run builds nothing again that is there.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Answer in JSON instead of Markdown.")] = False,
) -> None:
    """Every codec beside FAISS, hnswlib, usearch, ScaNN and others: time, memory, recall, in one run.

    Each row is shown as soon as it is there. A million descriptors of 1024 take six gigabytes of disk while it runs
    and five of memory.

    Example: tessera bench search -n 100000 --only fast --only flat --json

    Example: tessera bench search -n 100000 --curve --csv curve.csv --figure curve.svg
    """
    from pathlib import Path

    from tessera.bench import contest
    from tessera.bench.search import measure_search, to_markdown
    from tessera.cli.output import say
    from tessera.errors import UsageError

    if curve:
        if gallery is not None:
            raise UsageError("--curve takes made descriptors or --views, not a gallery.")
        found = contest.measure_contest(
            count=count,
            dim=dim,
            queries=queries,
            seed=seed,
            only=tuple(only or ()),
            rounds=rounds,
            views=None if views is None else Path(views),
            groups=groups,
            folder=None if folder is None else Path(folder),
            keep=keep,
            say=say,
        )
        if csv is not None:
            contest.write_csv(found, Path(csv))
        if figure is not None:
            contest.draw(found["rows"], Path(figure), f"{found['count']:,} descriptors, {found['source']}")
        print(json_module.dumps(found) if json else contest.to_markdown(found))
        return
    if csv is not None or figure is not None:
        raise UsageError("--csv and --figure belong to --curve.")
    report = measure_search(
        count=count,
        dim=dim,
        queries=queries,
        seed=seed,
        only=tuple(only or ()),
        peers=peers,
        graph_count=graph_count,
        gallery=None if gallery is None else Path(gallery),
        views=None if views is None else Path(views),
        groups=groups,
        folder=None if folder is None else Path(folder),
        keep=keep,
        say=say,
    )
    print(json_module.dumps(report) if json else to_markdown(report))


@bench.command("local")
def local(
    *,
    images: Annotated[int, typer.Option("-n", min=10, help="How many images the inverted files hold.")] = 10_000,
    features: Annotated[int, typer.Option(min=10, help="Local features of an image.")] = 1000,
    words: Annotated[int, typer.Option(min=16, help="Words of the codebook.")] = 65_536,
    queries: Annotated[int, typer.Option(min=1, help="How many queries.")] = 20,
    candidates: Annotated[int, typer.Option(min=1, help="Hits that are re-ranked with stored features.")] = 100,
    only: Annotated[str | None, typer.Option(help="asmk or rerank.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Answer in JSON instead of Markdown.")] = False,
) -> None:
    """ASMK* beside the published package (asmk on PyPI), and re-ranking with stored features.

    Example: tessera bench local -n 1000 --json
    """
    from tessera.bench.local_search import measure_local, to_markdown
    from tessera.cli.output import say

    report = measure_local(
        images=images, features=features, words=words, queries=queries, candidates=candidates, only=only, say=say
    )
    print(json_module.dumps(report) if json else to_markdown(report))


@bench.command("parts")
def parts(
    *,
    images: Annotated[int, typer.Option("-n", min=100, help="How many images the drawn gallery holds.")] = 10_000,
    photos: Annotated[str | None, typer.Option(help="A folder of photos to measure on; drawn unless given.")] = None,
    num_photos: Annotated[int, typer.Option(min=2, help="How many of them are indexed.")] = 100,
    queries: Annotated[int, typer.Option(min=1, help="How many of them are searched for.")] = 20,
    folder: Annotated[
        str | None, typer.Option(help="Where the drawn gallery is made, and found again by the next run.")
    ] = None,
    peers: Annotated[
        bool,
        typer.Option("--peers", help="The asmk package and matching every descriptor, too, on the same gallery."),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Answer in JSON instead of Markdown.")] = False,
) -> None:
    """The default search: indexing beside the network alone, a search with verification, bytes and memory.

    Example: tessera bench parts --photos holiday/ -n 100000
    """
    from pathlib import Path

    from tessera.bench.parts_search import measure_parts, to_markdown
    from tessera.cli.output import say

    report = measure_parts(
        images=images,
        photos=Path(photos) if photos else None,
        num_photos=num_photos,
        queries=queries,
        folder=Path(folder) if folder else None,
        peers=peers,
        say=say,
    )
    print(json_module.dumps(report) if json else to_markdown(report))


@bench.command("serve")
def serve(
    *,
    images: Annotated[int, typer.Option("-n", min=100, help="How many images the gallery holds.")] = 100_000,
    clients: Annotated[int, typer.Option(min=1, help="Clients at once.")] = 32,
    seconds: Annotated[int, typer.Option(min=1, help="How long each kind of query runs.")] = 60,
    photo: Annotated[str | None, typer.Option(help="The picture that is uploaded; made here unless given.")] = None,
    folder: Annotated[
        str | None, typer.Option(help="Where the gallery is made, and found again by the next run.")
    ] = None,
    only: Annotated[str | None, typer.Option(metavar="gallery_picture|upload", help="One kind of query only.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Answer in JSON instead of Markdown.")] = False,
) -> None:
    """The service under load: queries by gallery picture and by upload, from many clients at once (needs wrk).

    Example: tessera bench serve -n 100000 --clients 32 --seconds 60
    """
    from pathlib import Path

    from tessera.bench.serve import KINDS, measure_service, to_markdown
    from tessera.errors import UsageError, unknown_name

    if only is not None and only not in KINDS:
        raise UsageError(unknown_name("kind of query", only, KINDS))
    report = measure_service(
        images=images,
        clients=clients,
        seconds=seconds,
        photo=Path(photo) if photo else None,
        folder=Path(folder) if folder else None,
        kinds=KINDS if only is None else (only,),
    )
    print(json_module.dumps(report) if json else to_markdown(report))


@bench.command("train")
def train(
    *,
    recipe: Annotated[str, typer.Option(help="A recipe file, or the name of a packaged one.")] = "small/rate",
    data: Annotated[str | None, typer.Option(help="The recipe's data set; pictures are drawn without it.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="The ratio is the median of so many rounds.")] = 5,
    steps: Annotated[int, typer.Option(min=1, help="Steps of each loop in a round.")] = 2,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="As in tessera train.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Answer in JSON instead of Markdown.")] = False,
) -> None:
    """The training rate against a bare forward-backward loop on decoded tensors, side by side.

    Example: tessera bench train --data gldv2-50 --json
    """
    from pathlib import Path

    from tessera.bench.train import measure_training, to_markdown

    folder = None if data is None else Path(data)
    report = measure_training(recipe, data=folder, rounds=rounds, steps=steps, settings=tuple(settings or ()))
    print(json_module.dumps(report) if json else to_markdown(report))

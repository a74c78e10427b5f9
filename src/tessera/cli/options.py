"""Options that several commands share, so that they read the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tessera.index.codecs import AUTO, CODECS
from tessera.refiners import AUGMENT_SUMMARY, EXPANSIONS, RERANKERS, choices, describe_choices

DEFAULT_GALLERY = Path("gallery.tessera")

GalleryOption = Annotated[
    Path,
    typer.Option(
        "-g",
        "--gallery",
        metavar="GALLERY",
        envvar="TESSERA_GALLERY",
        help="The folder of the gallery.",
        show_default=True,
    ),
]
CODEC_CHOICES = "|".join((AUTO, *CODECS))
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model", metavar="NAME|BUNDLE", help="A packaged model's name, or a bundle's folder.", show_default="lite"
    ),
]
CodecOption = Annotated[
    str | None,
    typer.Option("--codec", metavar=CODEC_CHOICES, help="How descriptors are coded.", show_default=AUTO),
]
DeviceOption = Annotated[str, typer.Option("--device", metavar="auto|cpu|cuda", help="Where the network runs.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Answer as JSON on stdout.")]
BoxOption = Annotated[
    str | None,
    typer.Option("--box", metavar="X0,Y0,X1,Y1", help="Search for this part only, in pixels of the picture as shown."),
]
WhereOption = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        metavar="KEY=VALUE",
        help="Only images whose metadata says so; also !=, >=, <=, > and <. May be repeated.",
    ),
]
NearOption = Annotated[
    str | None,
    typer.Option(
        "--near", metavar="LAT,LON,RADIUS", help="Only images taken within so many metres: 41.89,12.49,2km or 500m."
    ),
]
ExpandOption = Annotated[
    str | None,
    typer.Option(
        "--expand",
        metavar=choices(EXPANSIONS),
        help=f"Search again with what the best hits say. {describe_choices(EXPANSIONS)}",
    ),
]
RerankOption = Annotated[
    str | None,
    typer.Option("--rerank", metavar=choices(RERANKERS), help=f"Re-rank the best hits. {describe_choices(RERANKERS)}"),
]
AugmentOption = Annotated[bool, typer.Option("--augment", help=f"{AUGMENT_SUMMARY.capitalize()}.")]
ByOption = Annotated[
    str,
    typer.Option(
        "--by",
        metavar="auto|global|local",
        help="Descriptor and local features together, verified; or one of them alone. A refiner makes it global.",
    ),
]
ProbabilityOption = Annotated[
    float, typer.Option("--min-probability", metavar="P", help="Leave out hits that are less probable than this.")
]

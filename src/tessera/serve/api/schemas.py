"""What the API is asked and what it answers, as the OpenAPI schema shows them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from fastapi import UploadFile
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from tessera.errors import UsageError
from tessera.refiners import EXPANSIONS, RERANKERS, describe_choices

if TYPE_CHECKING:
    Expansion: TypeAlias = str
    Reranking: TypeAlias = str
else:  # the names of the tables, so that the schema lists them
    Expansion, Reranking = Literal[tuple(EXPANSIONS)], Literal[tuple(RERANKERS)]

WHERE = (
    "A filter by metadata: `KEY=VALUE`, or with !=, >=, <=, >, < or ~ (contains). `folder`, `name`, `width`, `height` "
    "and `bytes` are known of every picture; `near=LATITUDE,LONGITUDE,2km` is a place. May be repeated; all must hold."
)


MAX_FILTERS = 32
# A bound for each value too: messages repeat what was wrong.
Filter = Annotated[str, StringConstraints(max_length=500)]


def _like(**example: Any) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [example]})


_IMAGE = {"id": 17, "name": "tower.jpg", "width": 1600, "height": 1200, "metadata": {"place": "Paris", "year": "1990"}}
_TOKEN = {"token": 0, "box": [0.1, 0.2, 0.6, 0.9], "weight": 0.31, "map": {"width": 2, "height": 1, "data": "AP8="}}


class Boxed(BaseModel):
    box: str | None = Field(
        None, description="x0,y0,x1,y1 in pixels of the upright picture.", examples=["10,20,300,400"], max_length=200
    )


class SearchOptions(Boxed):
    k: int = Field(10, ge=1, description="How many results; at most 200, unless the service was started otherwise.")
    by: Literal["auto", "global", "local"] = Field(
        "auto",
        description="Descriptor and local features together, verified by geometry, with a probability; or one of them "
        "alone. `expand` and `rerank` follow a search by the descriptor.",
    )
    min_probability: float = Field(0.0, ge=0, le=1, description="Leave out hits that are less probable than this.")
    where: list[Filter] | None = Field(None, description=WHERE, max_length=MAX_FILTERS)
    expand: Expansion | None = Field(
        None, description="Search again with the best hits. " + describe_choices(EXPANSIONS)
    )
    rerank: Reranking | None = Field(
        None,
        description=f"Re-rank the best hits. {describe_choices(RERANKERS)} Local features are compared as long "
        "as half of the request's time allows; `note` says if that was not all of them.",
    )


class PictureForm(BaseModel):
    file: UploadFile = Field(description="JPEG, PNG, WebP, TIFF, GIF, BMP or AVIF.")


class SearchForm(SearchOptions, PictureForm):
    pass


class BoxedForm(Boxed, PictureForm):
    pass


class NewImage(PictureForm):
    metadata: list[str] | None = Field(None, description="KEY=VALUE, repeated.")


class Image(BaseModel):
    """A picture of the gallery."""

    model_config = _like(**_IMAGE)
    id: int = Field(description="Opaque; use it in the addresses below /api/images/.")
    name: str = Field(description="The file's name, without its folder.")
    width: int = Field(description="Pixels, after EXIF rotation.")
    height: int = Field(description="Pixels, after EXIF rotation.")
    metadata: dict[str, object] = Field(description="What the gallery was given with the picture.")


class Result(Image):
    """A picture that was found."""

    model_config = _like(rank=0, score=0.97, probability=0.97, verified=True, inliers=61, **_IMAGE)
    rank: int = Field(description="From 0, best first.")
    score: float = Field(
        description="The probability where there is one, else the cosine similarity, 1 for equal pictures; `expand` "
        "and `rerank=global` have scales of their own."
    )
    probability: float | None = Field(None, description="That it shows the same thing; null by descriptors alone.")
    verified: bool | None = Field(None, description="Whether geometry confirms it; null by descriptors alone.")
    inliers: int | None = Field(None, description="Local features that agree with the query, where they were compared.")


class Timing(BaseModel):
    """Milliseconds."""

    model_config = _like(embed=412.5, search=1.9, total=414.4)
    embed: float = Field(description="Reading the picture and describing it.")
    search: float = Field(description="Looking in the gallery.")
    total: float


class SearchAnswer(BaseModel):
    """The pictures that were found, best first."""

    results: list[Result]
    timing_ms: Timing
    certain: bool | None = Field(None, description="Whether the gallery surely shows this; null where it is not known.")
    note: str = Field("", description="What the service did otherwise than asked, if anything.")


class ImagePage(BaseModel):
    """Some of the gallery's pictures."""

    images: list[Image]
    total: int = Field(description="How many there are on all pages, of every month.")
    next: int | None = Field(description="Give it as `after` to get the next page; null at the end.")


class Place(BaseModel):
    """Where several pictures were taken."""

    model_config = _like(latitude=41.89, longitude=12.49, images=34, cover=17)
    latitude: float = Field(description="The pictures' mean.")
    longitude: float
    images: int
    cover: int = Field(description="The id of one of them.")


class Facets(BaseModel):
    """What pictures can be filtered by."""

    model_config = _like(
        facets={"folder": ["2019", "2019/Rome"], "camera": ["Nikon D70"]},
        counts={"folder": {"2019": 120, "2019/Rome": 34}, "camera": {"Nikon D70": 51}},
        places=[{"latitude": 41.89, "longitude": 12.49, "images": 34, "cover": 17}],
    )
    facets: dict[str, list[str]] = Field(description="Folders, metadata keys, and their most frequent values.")
    counts: dict[str, dict[str, int]] = Field(description="How many pictures have each of these values.")
    places: list[Place] = Field(description="Where most pictures were taken, to some two kilometres.")


class Month(BaseModel):
    model_config = _like(month="2019-06", images=34)
    month: str = Field(description="Year and month.")
    images: int


class Months(BaseModel):
    """When pictures were taken."""

    months: list[Month] = Field(description="The last first; those without pictures are left out.")
    undated: int = Field(description="Pictures without a date.")


class FilePath(BaseModel):
    model_config = _like(path="/home/ada/photos/tower.jpg")
    path: str


class Group(BaseModel):
    """Photos of the same place or thing."""

    model_config = _like(id=3, images=[_IMAGE])
    id: int = Field(description="Stays as long as most of its photos do.")
    images: list[Image] = Field(description="The cover first.")


class GroupOf(BaseModel):
    """What shows the same place or thing as one picture."""

    model_config = _like(id=3, images=[_IMAGE])
    id: int | None = Field(description="Null for a picture that is in no group.")
    images: list[Image] = Field(description="The cover first, and the picture itself among them.")


class Groups(BaseModel):
    groups: list[Group] = Field(description="The largest first.")
    total: int = Field(description="How many groups there are.")
    images: int = Field(description="How many photos are in a group.")


class Kept(Image):
    """The picture to keep of its copies."""

    model_config = _like(bytes=812345, **_IMAGE)
    bytes: int = Field(description="Of the file.")


class Copy(Kept):
    """A copy of the picture to keep."""

    model_config = _like(kind="near", agreement=0.981, bytes=112345, **_IMAGE)
    kind: Literal["exact", "near"] = Field(description="Exact: byte for byte.")
    agreement: float = Field(description="Correlation of the pixels, laid over each other.")


class CopyGroup(BaseModel):
    """A picture and its copies."""

    keep: Kept
    reason: str = Field(description="Why this one is to be kept.")
    copies: list[Copy]


class Duplicates(BaseModel):
    groups: list[CopyGroup] = Field(description="Those with most copies first.")
    total: int = Field(description="How many groups there are.")
    copies: int = Field(description="How many copies there are in all.")
    bytes: int = Field(description="What the copies take on disk.")


class Organising(BaseModel):
    """What is being found."""

    model_config = _like(finding="groups", done=512, total=7973, failure="")
    finding: Literal["groups", "duplicates"] | None = Field(description="Null when nothing is.")
    done: int = Field(description="Pairs of pictures that were compared.")
    total: int = Field(description="Pairs to compare; 0 until they are counted.")
    failure: str = Field(description="Why the last one found nothing; empty if all went well.")


class ImageIds(BaseModel):
    model_config = _like(ids=[17, 23])
    ids: list[Annotated[int, Field(ge=1, le=2**63 - 1)]] = Field(min_length=1, max_length=500)


def parse_ids(text: str, most: int) -> list[int]:
    """Distinct ids from a text with commas between."""
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"[1-9]\d{0,17}", part, re.ASCII) for part in parts):
        raise UsageError("ids are numbers with commas between.")
    ids = list(dict.fromkeys(int(part) for part in parts))
    if len(ids) > most:
        raise UsageError(f"At most {most} pictures at once; these are {len(ids)}.")
    return ids


class Refiner(BaseModel):
    """What may follow a search."""

    model_config = _like(
        name="global",
        stage="rerank",
        compares="descriptors",
        label="global",
        summary="global descriptors refined by their neighbours among the best hits",
        depth=400,
        cost="one product of the best hits with each other",
        available=True,
        install="",
    )
    name: str = Field(description="To be given as the stage's option.")
    stage: Literal["expand", "rerank"]
    compares: Literal["descriptors", "local features"]
    label: str = Field(description="For people, in a word or two.")
    summary: str
    depth: int = Field(description="How many of the best hits it scores.")
    cost: str = Field(description="What it adds to a search.")
    available: bool = Field(description="Whether this service was installed with what it needs.")
    install: str = Field(description="What brings it where it is not; empty where nothing is needed.")


class Refiners(BaseModel):
    refiners: list[Refiner]


class MapImage(BaseModel):
    """A map as bytes: row by row, 0 to 255."""

    width: int
    height: int
    data: str = Field(description="Base64 of width x height bytes.")


class TokenRegion(BaseModel):
    """Where one token found what it compared."""

    model_config = _like(**_TOKEN)
    token: int = Field(description="From 0. The same number is the same kind of pattern in every picture.")
    box: list[float] = Field(description="x0, y0, x1, y1 in fractions of the picture (or of the box searched with).")
    weight: float = Field(description="Length of the token's share of the descriptor.")
    map: MapImage = Field(description="How strongly each position counts, over the whole picture (or box).")


class Side(BaseModel):
    """One of the two pictures."""

    method: Literal["tokens", "activation", "occlusion"] = Field(description="The last two: a network without tokens.")
    note: str = Field(description="What the maps show, in words.")
    crop: list[float] | None = Field(description="The query's box in fractions of its picture.")
    tokens: list[TokenRegion]


class TokenPair(BaseModel):
    """What a token of the query and one of the other picture added together."""

    model_config = _like(query_token=0, other_token=2, contribution=0.12)
    query_token: int
    other_token: int
    contribution: float


class Matches(BaseModel):
    """Points that both pictures show."""

    model_config = _like(verified=True, inliers=31, points=[[0.2, 0.31, 0.4, 0.28]])
    verified: bool = Field(description="Whether more of them agree on one movement than chance gives.")
    inliers: int = Field(description="How many agree.")
    points: list[list[float]] = Field(
        description="x, y in the query and x, y in the other, in fractions of the whole pictures; at most 150."
    )


class Explanation(BaseModel):
    """Why two pictures are similar: the matrix sums to the score."""

    model_config = _like(
        score=0.7,
        matrix=[[0.5, 0.1], [0.06, 0.04]],
        pairs=[{"query_token": 0, "other_token": 0, "contribution": 0.5}],
        strongest_token=0,
        query={
            "method": "tokens",
            "note": "maps of the visual tokens",
            "crop": [0.2, 0.1, 0.8, 0.9],
            "tokens": [_TOKEN],
        },
        other={"method": "tokens", "note": "maps of the visual tokens", "crop": None, "tokens": [_TOKEN]},
        matches={"verified": True, "inliers": 31, "points": [[0.2, 0.31, 0.4, 0.28]]},
    )
    score: float = Field(description="Cosine similarity of the two.")
    matrix: list[list[float]] = Field(
        description="Rows: the query's tokens; columns: the other's. It sums to the score."
    )
    pairs: list[TokenPair] = Field(description="Strongest first.")
    strongest_token: int = Field(description="The other picture's token that did most for the score.")
    query: Side
    other: Side
    matches: Matches


class Stats(BaseModel):
    """What the gallery holds."""

    model_config = _like(
        gallery="photos.tessera",
        writable=False,
        own_machine=True,
        reveals=True,
        images=5120,
        failed=2,
        model="lite",
        codec="auto",
        dim=1024,
        generation=53,
    )
    gallery: str = Field(description="The gallery's name.")
    writable: bool = Field(description="Whether pictures can be added and removed, with the writer's key.")
    own_machine: bool = Field(description="Whether the service answers its own machine alone, and without a key.")
    reveals: bool = Field(description="Whether it can show a file in the file manager.")
    images: int = Field(description="Pictures that can be found.")
    failed: int = Field(description="Files that could not be read.")
    model: str | None = Field(description="The network that describes pictures.")
    codec: str | None = Field(description="How descriptors are stored for searching.")
    dim: int | None = Field(description="Numbers in a descriptor.")
    generation: int = Field(description="Grows with every change, by whatever process.")


class Health(BaseModel):
    model_config = _like(status="ok")
    status: Literal["ok", "ready"]


class Session(BaseModel):
    key: str = Field(max_length=1024, description="The service's key, or the writer's.")


class Problem(BaseModel):
    """What went wrong (RFC 9457)."""

    model_config = _like(
        type="about:blank", title="Not Found", status=404, detail="There is no picture 17 in this gallery."
    )
    type: str = "about:blank"
    title: str = Field(description="The status in words.")
    status: int
    detail: str = Field(description="What was wrong, what was found and what to do.")

"""What the API is asked and what it answers, as the OpenAPI schema shows them."""

from __future__ import annotations

from typing import Literal

from fastapi import UploadFile
from pydantic import BaseModel, Field

WHERE = "KEY=VALUE, also with !=, >=, <=, > and <; all must hold."


class Boxed(BaseModel):
    box: str | None = Field(
        None, description="x0,y0,x1,y1 in pixels of the upright picture.", examples=["10,20,300,400"]
    )


class SearchOptions(Boxed):
    k: int = Field(10, ge=1, description="How many results.")
    where: list[str] | None = Field(None, description=WHERE)
    expand: Literal["aqe", "diffusion"] | None = Field(None, description="Query expansion.")
    rerank: Literal["global", "sp", "dsm", "lightglue"] | None = Field(
        None,
        description="Look at the best hits again: by their descriptors (global), or by local features, as many as half "
        "of the request's time allows; `note` says if that was not all of them.",
    )


class PictureForm(BaseModel):
    file: UploadFile = Field(description="JPEG, PNG, WebP, TIFF, GIF or BMP.")


class SearchForm(SearchOptions, PictureForm):
    pass


class BoxedForm(Boxed, PictureForm):
    pass


class NewImage(PictureForm):
    metadata: list[str] | None = Field(None, description="KEY=VALUE, repeated.")


class Image(BaseModel):
    """A picture of the gallery."""

    id: int = Field(description="Opaque; use it in the addresses below /api/images/.")
    name: str = Field(description="The file's name, without its folder.")
    width: int = Field(description="Pixels, after EXIF rotation.")
    height: int
    metadata: dict[str, object] = Field(description="What the gallery was given with the picture.")


class Result(Image):
    """A picture that was found."""

    rank: int = Field(description="From 0, best first.")
    score: float = Field(
        description="Cosine similarity, 1 for equal pictures; `expand` and `rerank=global` have scales of their own."
    )
    inliers: int | None = Field(None, description="Local features that agree with the query, where they were compared.")


class Timing(BaseModel):
    embed: float
    search: float
    total: float


class SearchAnswer(BaseModel):
    results: list[Result]
    timing_ms: Timing
    note: str = Field("", description="What the service did otherwise than asked, if anything.")


class ImagePage(BaseModel):
    images: list[Image]
    total: int
    next: int | None = Field(description="Give it as `after` to get the next page; null at the end.")


class Facets(BaseModel):
    facets: dict[str, list[str]] = Field(description="Metadata keys, and their most frequent values.")


class MapImage(BaseModel):
    """A map as bytes: row by row, 0 to 255."""

    width: int
    height: int
    data: str = Field(description="Base64 of width x height bytes.")


class TokenRegion(BaseModel):
    token: int
    box: list[float] = Field(description="x0, y0, x1, y1 in fractions of the picture (or of the box searched with).")
    weight: float = Field(description="Length of the token's share of the descriptor.")
    map: MapImage


class Side(BaseModel):
    method: str = Field(description="tokens, or activation / occlusion for networks without tokens.")
    note: str
    crop: list[float] | None = Field(description="The query's box in fractions of its picture.")
    tokens: list[TokenRegion]


class TokenPair(BaseModel):
    query_token: int
    other_token: int
    contribution: float


class Explanation(BaseModel):
    """Why two pictures are similar: the matrix sums to the score."""

    score: float
    matrix: list[list[float]] = Field(description="Rows: the query's tokens; columns: the other's; last: constant.")
    pairs: list[TokenPair] = Field(description="Strongest first.")
    strongest_token: int
    query: Side
    other: Side


class Stats(BaseModel):
    gallery: str = Field(description="The gallery's name.")
    images: int
    failed: int
    model: str | None
    codec: str | None
    dim: int | None
    generation: int


class Health(BaseModel):
    status: str


class Session(BaseModel):
    key: str = Field(max_length=1024)


class Problem(BaseModel):
    """RFC 9457."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str

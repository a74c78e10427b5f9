"""Cut, reduce and render the example photographs of things with several views: examples/photos/views, examples/queries.

    python scripts/demo_photos.py --opencv opencv-4.10.0 --contrib opencv_contrib-4.10.0 --geovisio geovisio-2.15.1 \
        --palapeli palapeli-22.12.3/puzzles

The four folders are unpacked source archives (examples/photos/CREDITS.md says which); nothing is fetched here. Views of
the station are perspective views cut from 360-degree photographs that were taken some metres apart, so that their
viewpoints differ. What is rendered or darkened is under `rendered/` or is called `-night`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

Picture = npt.NDArray[np.uint8]

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
LONGER_SIDE = 1024
QUALITY = 85

# name: (number of the 360-degree photograph, yaw, pitch, horizontal field of view), in degrees
PANORAMA_VIEWS = {
    "photos/views/thun/station-1": (1, 127, 2, 88),
    "photos/views/thun/station-2": (2, 132, 2, 84),
    "photos/views/thun/station-3": (4, 166, 0, 62),
    "photos/views/thun/station-4": (5, 186, 0, 66),
    "queries/station": (3, 142, 2, 70),
    "photos/views/thun/book-box-1": (1, 11, -7, 36),
    "photos/views/thun/book-box-2": (3, 358, -9, 44),
    "photos/views/thun/book-box-3": (4, 40, -8, 64),
    "queries/book-box": (2, 353, -8, 40),
    "photos/views/thun/stairs-1": (1, 337, -3, 40),
    "photos/views/thun/stairs-2": (3, 322, -3, 60),
    "photos/views/thun/stairs-3": (4, 332, -8, 80),
    "queries/stairs": (2, 328, -3, 44),
}
# name: (photograph, x0, y0, x1, y1)
STREET_CROPS = {
    "photos/views/street/residence-1": ("e1", 560, 200, 1360, 650),
    "photos/views/street/residence-2": ("e3", 500, 200, 1300, 650),
    "queries/residence": ("e5", 700, 130, 1500, 580),
    "photos/views/street/grey-house-1": ("e2", 0, 180, 560, 620),
    "photos/views/street/grey-house-2": ("e4", 0, 180, 640, 640),
    "queries/grey-house": ("e5", 0, 180, 640, 700),
}
SFM = "modules/sfm/samples/data/images/resized_IMG_{}.jpg"
POSE = "samples/cpp/tutorial_code/calib3d/real_time_pose_estimation/Data"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("opencv", "contrib", "geovisio", "palapeli"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    folders = parser.parse_args()

    street = folders.geovisio / "tests/data"
    panoramas = {number: read(street / f"{number}.jpg") for number in range(1, 6)}
    for name, (number, yaw, pitch, field) in PANORAMA_VIEWS.items():
        write(name, cut_view(panoramas[number], yaw, pitch, field))
    for name, (photo, x0, y0, x1, y1) in STREET_CROPS.items():
        write(name, read(street / f"{photo}.jpg")[y0:y1, x0:x1])
    write("photos/views/street/railway-square-1", read(street / "b1.jpg"))
    write("photos/views/street/railway-square-2", read(street / "b2.jpg"))

    for place, number in enumerate((2889, 2890, 2891), start=1):
        write(f"photos/views/barcelona/sagrada-familia-{place}", upright(folders.contrib / SFM.format(number)))
    write("queries/sagrada-familia", upright(folders.contrib / SFM.format(2892)))

    data = folders.opencv / "samples/data"
    write("photos/views/leuven/beguinage-1", read(data / "leuvenA.jpg"))
    write("queries/beguinage", read(data / "leuvenB.jpg"))
    write("photos/views/table/books-1", read(data / "left.jpg"))
    write("queries/books", read(data / "right.jpg"))
    write("photos/views/table/snack-packet-1", read(data / "box_in_scene.png"))
    write("queries/snack-packet", read(data / "box.png"))
    video = folders.opencv / POSE / "box.mp4"
    for place, frame in enumerate((20, 152, 380), start=1):
        write(f"photos/views/table/cookie-box-{place}", read_frame(video, frame))
    write("queries/cookie-box", read(folders.opencv / POSE / "resized_IMG_3875.JPG"))

    write("queries/station-night", darken(read(EXAMPLES / "queries/station.jpg"), seed=1))
    write("photos/views/barcelona/sagrada-familia-night", darken(upright(folders.contrib / SFM.format(2890)), seed=2))
    write("queries/in-no-photo", read(folders.palapeli / "cincinnati-bridge.jpg"))

    render_prints(data / "stuff.jpg", street, video)


def render_prints(table: Path, street: Path, video: Path) -> None:
    """Lay two of the other photographs as prints and posters into scenes; copy one as people do, cut and captioned."""
    osprey, casa, city = (read(EXAMPLES / f"photos/{name}.jpg") for name in PRINTS)
    write(
        "photos/views/rendered/osprey-on-a-table",
        lay(osprey, read(table), [(250, 60), (600, 110), (560, 400), (190, 330)]),
    )
    poster = read(street / "b1.jpg")[::4, ::4]
    write("photos/views/rendered/osprey-poster", lay(osprey, poster, [(90, 300), (560, 340), (560, 600), (90, 640)]))
    cloth = read_frame(video, 20)[170:, :]
    write("photos/views/rendered/casa-mila-on-a-cloth", lay(casa, cloth, [(150, 60), (430, 50), (560, 270), (40, 290)]))
    poster = read(street / "b2.jpg")[::4, ::4]
    write("photos/views/rendered/casa-mila-poster", lay(casa, poster, [(60, 250), (420, 310), (420, 560), (60, 620)]))
    height, width = city.shape[:2]
    part = city[height // 6 : -height // 6, width // 5 : -width // 10]
    write(
        "photos/views/rendered/cityscape-copy",
        caption(cv2.convertScaleAbs(part, alpha=1.15, beta=12), "see you there!"),
    )


PRINTS = ("perched-osprey", "casa-mila", "singaporean-cityscape")


def cut_view(panorama: Picture, yaw: float, pitch: float, field: float) -> Picture:
    """A perspective view out of an equirectangular photograph, at the photograph's own resolution, 4:3."""
    height, width = panorama.shape[:2]
    view_width = min(LONGER_SIDE, round(width / 360 * field))
    view_height = view_width * 3 // 4
    focal = view_width / 2 / np.tan(np.radians(field) / 2)
    x, y = np.meshgrid(np.arange(view_width) - view_width / 2 + 0.5, np.arange(view_height) - view_height / 2 + 0.5)
    rays = np.stack([x, y, np.full_like(x, focal)], axis=-1)
    rays /= np.linalg.norm(rays, axis=-1, keepdims=True)
    turn = (
        cv2.Rodrigues(np.array([0, np.radians(yaw), 0.0]))[0] @ cv2.Rodrigues(np.array([np.radians(pitch), 0, 0.0]))[0]
    )
    rays = rays @ turn.T
    columns = (np.arctan2(rays[..., 0], rays[..., 2]) / (2 * np.pi) + 0.5) * width - 0.5
    rows = (np.arcsin(rays[..., 1]) / np.pi + 0.5) * height - 0.5
    return _picture(
        cv2.remap(
            panorama, columns.astype(np.float32), rows.astype(np.float32), cv2.INTER_AREA, borderMode=cv2.BORDER_WRAP
        )
    )


def darken(picture: Picture, seed: int) -> Picture:
    """The same view as a camera gives it after dusk: dark, blue, noisy and a little blurred."""
    light = (picture / 255.0) ** 1.25 * np.array([0.62, 0.46, 0.40])
    light = cv2.GaussianBlur(light, (0, 0), 0.8)
    light += np.random.default_rng(seed).normal(0, 0.018, light.shape)
    return _picture(np.clip(light * 255, 0, 255))


def lay(flat: Picture, scene: Picture, corners: list[tuple[int, int]]) -> Picture:
    """`flat` as a print with a white border and a shadow, at four corners of `scene`, clockwise from the upper left."""
    bordered = cv2.copyMakeBorder(flat, 24, 24, 24, 24, cv2.BORDER_CONSTANT, value=(238, 238, 238))
    height, width = bordered.shape[:2]
    start = np.array([(0, 0), (width, 0), (width, height), (0, height)], np.float32)
    warp = cv2.getPerspectiveTransform(start, np.array(corners, np.float32))
    size = (scene.shape[1], scene.shape[0])
    print_ = cv2.warpPerspective(bordered, warp, size, flags=cv2.INTER_AREA)
    mask = cv2.warpPerspective(np.ones((height, width), np.float32), warp, size)
    shadow = cv2.GaussianBlur(np.roll(mask, (6, 6), axis=(0, 1)), (0, 0), 7)[..., None] * 0.45
    mask = cv2.GaussianBlur(mask, (0, 0), 0.8)[..., None]
    lit = cv2.GaussianBlur(print_, (0, 0), 0.7) * np.linspace(0.92, 0.72, size[0])[None, :, None]
    return _picture(scene * (1 - shadow) * (1 - mask) + lit * mask)


def caption(picture: Picture, words: str) -> Picture:
    framed = cv2.copyMakeBorder(picture, 0, 70, 0, 0, cv2.BORDER_CONSTANT, value=(250, 250, 250))
    cv2.putText(framed, words, (24, framed.shape[0] - 24), cv2.FONT_HERSHEY_SIMPLEX, 1.2, (40, 40, 40), 2, cv2.LINE_AA)
    return _picture(framed)


def read(path: Path) -> Picture:
    picture = cv2.imread(str(path), cv2.IMREAD_COLOR)
    if picture is None:
        raise SystemExit(f"{path} cannot be read: unpack the archives that examples/photos/CREDITS.md names")
    return _picture(picture)


def upright(path: Path) -> Picture:
    """A photograph that was stored lying on its side."""
    return _picture(cv2.rotate(read(path), cv2.ROTATE_90_CLOCKWISE))


def read_frame(video: Path, number: int) -> Picture:
    capture = cv2.VideoCapture(str(video))
    capture.set(cv2.CAP_PROP_POS_FRAMES, number)
    found, frame = capture.read()
    if not found:
        raise SystemExit(f"{video} has no frame {number}")
    return _picture(frame)


def write(name: str, picture: Picture) -> None:
    shrink = LONGER_SIDE / max(picture.shape[:2])
    if shrink < 1:
        picture = _picture(cv2.resize(picture, None, fx=shrink, fy=shrink, interpolation=cv2.INTER_AREA))
    path = EXAMPLES / f"{name}.jpg"
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), picture, [cv2.IMWRITE_JPEG_QUALITY, QUALITY, cv2.IMWRITE_JPEG_OPTIMIZE, 1])


def _picture(values: npt.NDArray[Any]) -> Picture:
    return np.asarray(values, np.uint8)


if __name__ == "__main__":
    main()

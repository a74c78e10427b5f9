"""`tessera duplicates` on photos with twelve alterations each: how many copies are found, and which groups are wrong.

Usage: python scripts/photos/measure_duplicates.py FOLDER --gallery G.tessera -o OUT.json [--count N]
A CSV of the shares by alteration is written beside OUT.json.
FOLDER holds the photos in `original/`; their copies are written beside it. --count: only the first N photos of a
shuffled order (seed 0), after those of --first, a folder of photos that are taken in any case. Only what copies are
found by is made: descriptors and signatures, no local features of the default search. A run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from alterations import ALTERATIONS, write_altered

import tessera
from tessera.gallery.organise.duplicates import find_duplicates


def describe(gallery: tessera.Gallery, files: Sequence[Path]) -> None:
    lacking = [path for path in files if gallery.find(path) is None]
    for start in range(0, len(lacking), 256):
        part = lacking[start : start + 256]
        made = zip(part, gallery.describer.extractor.extract([str(path) for path in part]), strict=True)
        gallery.add(
            tessera.DescribedImage(path, one.descriptor, one.width, one.height)
            for path, one in made
            if one.descriptor is not None
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gallery", type=Path, required=True)
    parser.add_argument("--first", type=Path)
    parser.add_argument("--count", type=int)
    parser.add_argument("--names", type=Path, help="a list of files: only photos with their names")
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    originals = sorted((options.folder / "original").iterdir())
    if options.names is not None:
        names = {Path(line).stem for line in options.names.read_text().splitlines()}
        originals = [path for path in originals if path.stem in names]
    if options.count is not None:
        always = {path.stem for path in options.first.iterdir()} if options.first else set()
        rest = [path for path in originals if path.stem not in always]
        random.Random(0).shuffle(rest)
        originals = [path for path in originals if path.stem in always] + rest[: options.count]
    for path in originals:
        write_altered(path, options.folder)
    stems = {path.stem for path in originals}
    files = [path for path in sorted(options.folder.glob("*/*")) if path.stem in stems]
    with tessera.Gallery(options.gallery) as gallery:
        describe(gallery, files)
        ids = [record.id for record in map(gallery.find, files) if record is not None]
        wall, cpu = time.perf_counter(), time.process_time()
        groups = find_duplicates(gallery._store, ids)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    found: Counter[str] = Counter()
    wrong = []
    for group in groups:
        paths = [Path(record.path) for record in (group.keep, *(copy.record for copy in group.copies))]
        stems_here = {path.stem for path in paths}
        if len(stems_here) > 1:
            wrong.append(sorted(str(path.relative_to(options.folder.absolute())) for path in paths))
        with_original = {path.stem for path in paths if path.parent.name == "original"}
        found.update(path.parent.name for path in paths if path.stem in with_original)
    kinds = {kind: round(found[kind] / len(originals), 4) for kind in ALTERATIONS}
    answer = {
        "command": "python " + " ".join([os.path.relpath(sys.argv[0]), "FOLDER", "--gallery", "G", "-o", "OUT"]),
        "photos": len(originals),
        "copies": len(originals) * len(ALTERATIONS),
        "found": round(sum(found[kind] for kind in ALTERATIONS) / (len(originals) * len(ALTERATIONS)), 5),
        "found_by_kind": kinds,
        "wrong_groups": wrong,
        "groups_with_several_originals": sum(
            sum(name.startswith("original/") for name in names) > 1 for names in wrong
        ),
        "seconds": round(wall, 1),
        "cpu_seconds": round(cpu, 1),
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(answer, indent=1) + "\n")
    with options.output.with_suffix(".csv").open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["alteration", "photos", "found"])
        table.writerows([kind, len(originals), share] for kind, share in kinds.items())
        table.writerow(["all", answer["copies"], answer["found"]])
    print(json.dumps(answer, indent=1))


if __name__ == "__main__":
    main()

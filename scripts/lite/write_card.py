"""Put measured figures into a bundle's card; the fingerprint, made of weights, graph and preprocessing, stays.

    python scripts/lite/write_card.py BUNDLE figures.json

figures.json is a mapping whose entries name the command that made them.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

from tessera.models.bundle import Bundle


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("figures", type=Path)
    options = parser.parse_args()
    bundle = Bundle.open(options.bundle)
    card = replace(bundle.card, figures=json.loads(options.figures.read_text()))
    sealed = Bundle.seal(options.bundle, card)
    print(f"{sealed.path}: fingerprint {sealed.card.fingerprint}")


if __name__ == "__main__":
    main()

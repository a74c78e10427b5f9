"""Put what `make demo` prints into the README: make demo > demo.txt && python scripts/readme_demo.py demo.txt"""

from __future__ import annotations

import re
import sys
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def main() -> None:
    printed = Path(sys.argv[1]).read_text()
    body = "\n".join(line.rstrip() for line in printed[printed.index("Indexing") :].splitlines())
    block = f"<!-- demo -->\n```\n{body.strip()}\n```\n<!-- /demo -->"
    text = README.read_text()
    README.write_text(re.sub(r"<!-- demo -->(.*?<!-- /demo -->)?", lambda _: block, text, count=1, flags=re.DOTALL))


if __name__ == "__main__":
    main()

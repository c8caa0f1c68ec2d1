"""Write `docs/configuration.md`: `python -m arise.reference docs/configuration.md`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from arise.reference.page import render


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; 0: written."""
    parser = argparse.ArgumentParser(prog="python -m arise.reference", description=__doc__)
    parser.add_argument("page", type=Path, help="file to write")
    parser.add_argument("--configs", type=Path, default=Path("configs"), help="folder to read")
    options = parser.parse_args(arguments)
    options.page.write_text(render(options.configs), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

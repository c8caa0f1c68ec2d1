"""A run's folder into one HTML file that needs nothing else."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import IO, Any

from arise.errors import ConfigError
from arise.runs.catalogue import recorded_steps, summarize
from arise.runs.evidence import read_step
from arise.runs.report.chunks import element, pack
from arise.runs.report.curves import recorded_scalars
from arise.runs.report.details import slot_details
from arise.runs.report.index import Index
from arise.runs.report.overview import evidence_blocks, overview, pair_stories
from arise.runs.report.vocabulary import token_texts

SCRIPTS = (
    "dom.js",
    "format.js",
    "data.js",
    "chart.js",
    "curves.js",
    "pool.js",
    "heatmap.js",
    "sampling.js",
    "filters.js",
    "table.js",
    "tokens.js",
    "trajectory.js",
    "browser.js",
    "time.js",
    "main.js",
)
"""The page's program, in the order in which its files are joined."""

_MARK = re.compile(r"<!--([A-Z]+)-->")
_MIN_CHARS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportSummary:
    """What was written.

    Attributes:
        report: The file.
        num_bytes: Its size.
        num_steps: Iterations in it.
        num_trajectories: Rollouts in it, lost ones included.
        num_cut: Of these, shown without tokens or with shortened texts.
    """

    report: str
    num_bytes: int
    num_steps: int
    num_trajectories: int
    num_cut: int

    def to_dict(self) -> dict[str, Any]:
        """Primitives, for `--json`."""
        return asdict(self)


def write_report(run: Path, output: Path, *, max_mb: float) -> ReportSummary:
    """Write the report; it appears under its name only when complete.

    Args:
        run: The run's folder; a running run is shown as far as it is.
        output: The file.
        max_mb: Size that trajectories are cut to fit into, in MB; the report may be a little
            larger.

    Raises:
        ConfigError: Nothing is recorded, a record is damaged, or the output cannot be written.
    """
    if max_mb <= 0:
        raise ConfigError(f"--max-mb = {max_mb} must be above 0")
    steps = recorded_steps(run)
    if not steps:
        raise ConfigError(f"{run} has no recorded iteration yet: there is nothing to report")
    hidden = output.with_name(f".writing_{output.name}")
    try:
        with tempfile.TemporaryFile("w+", encoding="utf-8") as blocks:
            index, scalars, num_cut = _write_steps(run, steps, blocks, max_mb)
            with hidden.open("w", encoding="utf-8") as file:
                _write_page(file, run, index, scalars, blocks)
        hidden.rename(output)
    except OSError as error:
        raise ConfigError(f"--output: {output} cannot be written: {error}") from error
    finally:
        hidden.unlink(missing_ok=True)
    return ReportSummary(
        report=str(output),
        num_bytes=output.stat().st_size,
        num_steps=len(steps),
        num_trajectories=len(index),
        num_cut=num_cut,
    )


def _write_steps(
    run: Path, steps: list[int], blocks: IO[str], max_mb: float
) -> tuple[Index, dict[int, dict[str, float]], int]:
    """Trajectories step by step, so that one step is in memory at a time; then the tokens."""
    index, scalars, num_cut = Index(), {}, 0
    token_ids: set[int] = set()
    max_chars = 0
    for step in steps:
        slots = read_step(run, step)
        if step == steps[0]:
            max_chars = _share(slots, max_mb * 1e6 / len(steps))
        index.add_step(step, slots)
        scalars[step] = recorded_scalars(slots)
        shown = [slot_details(slot, max_chars=max_chars) for slot in slots]
        num_cut += sum("cut" in details for details in shown)
        for details in shown:
            for turn in details["turns"]:
                token_ids.update(turn.get("tokens", ()))
        blocks.write(element(f"step-{step}", shown))
    blocks.write(element("tokens", token_texts(run, token_ids)))
    return index, scalars, num_cut


def _share(slots: list[dict[str, Any]], max_bytes: float) -> int:
    """Characters of JSON that a trajectory may have for a step to pack into so many bytes.

    How well texts pack differs from run to run by a factor of six, so it is measured.
    """
    whole = [slot_details(slot, max_chars=sys.maxsize) for slot in slots]
    num_chars = len(json.dumps(whole, ensure_ascii=False, separators=(",", ":")))
    share = max_bytes * num_chars / len(pack(whole)) / max(1, len(slots))
    return max(_MIN_CHARS, int(share))


def _write_page(
    file: IO[str],
    run: Path,
    index: Index,
    scalars: dict[int, dict[str, float]],
    blocks: IO[str],
) -> None:
    style, script = _asset("page.css"), "".join(_script())
    stories = pair_stories(run)
    parts = _MARK.split(_asset("page.html"))
    for position, part in enumerate(parts):
        match part if position % 2 else "":
            case "":
                file.write(part)
            case "TITLE":
                file.write(html.escape(_printable(f"{summarize(run).experiment}, {run.name}")))
            case "POLICY":
                file.write(_policy(script, style))
            case "STYLE":
                file.write(f"<style>{style}</style>\n")
            case "SCRIPT":
                file.write(f"<script>{script}</script>\n")
            case "OVERVIEW":
                file.write(element("overview", overview(run, scalars, stories)))
                file.write(element("index", index.data))
            case "BLOCKS":
                for name, data in evidence_blocks(stories):
                    file.write(element(name, data))
                blocks.seek(0)
                shutil.copyfileobj(blocks, file)
            case unknown:
                raise AssertionError(f"page.html has an unknown mark {unknown}")


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)


def _script() -> Iterator[str]:
    yield '"use strict";\n'
    for name in SCRIPTS:
        yield _asset(name)


def _policy(script: str, style: str) -> str:
    """Content security policy: this script and this style run, nothing else, and nothing loads."""
    return (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


def _asset(name: str) -> str:
    return (resources.files("arise.runs.report") / "page" / name).read_text(encoding="utf-8")

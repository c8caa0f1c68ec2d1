"""Pools of rubric-skill pairs: `python -m arise.rubrics show|export|import|diff POOL...`.

POOL is a run's folder, a `pool.jsonl`, a YAML list of pairs, or `package:file`; with `@20` behind
it the pool after step 20.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from arise.errors import ConfigError
from arise.rubrics.cards import pair_card, pool_diff, retired_pairs
from arise.rubrics.pool_source import PoolSource, as_yaml, merge, read_pool, write_events

EXIT_DIFFERENT = 1
EXIT_USAGE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. 0: done; 1: `diff` found differences; 2: a mistake."""
    options = _parser().parse_args(arguments)
    try:
        code: int = options.command(options)
        sys.stdout.flush()
        return code
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USAGE
    except BrokenPipeError:
        # The reader has seen enough; Python must not complain when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m arise.rubrics",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="show|export|import|diff")

    def add(
        name: str, command: Callable[[argparse.Namespace], int], text: str
    ) -> argparse.ArgumentParser:
        own = commands.add_parser(name, help=text, description=text)
        own.set_defaults(command=command)
        return own

    show = add("show", _show, "pairs with their evidence, conditions, skill and life")
    show.add_argument("pool", metavar="POOL")
    show.add_argument("--pair", type=int, help="only the pair with this id")
    show.add_argument("--all", action="store_true", help="retired pairs too")
    export = add("export", _export, "the pool as a YAML list that people can edit")
    export.add_argument("pool", metavar="POOL")
    export.add_argument("--lifetime", action="store_true", help="every pair there ever was")
    export.add_argument("--out", type=Path, help="file to write (standard output)")
    import_ = add("import", _import, "check pools, put them together, write what a run starts from")
    import_.add_argument("pools", nargs="+", metavar="POOL")
    import_.add_argument("--lifetime", action="store_true", help="every pair there ever was")
    import_.add_argument("--out", type=Path, required=True, help="pool.jsonl to write")
    import_.add_argument(
        "--max-chars", type=int, default=2000, help="longest text of a field (%(default)s)"
    )
    diff = add("diff", _diff, "what differs between two pools, pair by pair")
    diff.add_argument("old", metavar="OLD")
    diff.add_argument("new", metavar="NEW")
    return parser


def _show(options: argparse.Namespace) -> int:
    source = read_pool(options.pool)
    pairs = {pair.id: pair for pair in source.pairs}
    retired = retired_pairs(source.events)
    if options.pair is not None:
        known = retired | pairs
        if options.pair not in known:
            ids = ", ".join(map(str, sorted(known))) or "none"
            raise ConfigError(f"{options.pool} has no pair {options.pair}; there are: {ids}")
        print(pair_card(known[options.pair], source.events))
        return 0
    shown = retired | pairs if options.all else pairs
    for pair_id in sorted(shown):
        print(pair_card(shown[pair_id], source.events), end="\n\n")
    print(_counts(source, len(retired)))
    return 0


def _counts(source: PoolSource, num_retired: int) -> str:
    active = sum(pair.is_active for pair in source.pairs)
    return f"{len(source.pairs)} pairs, {active} with the skill on; {num_retired} retired"


def _export(options: argparse.Namespace) -> int:
    text = as_yaml(read_pool(options.pool, lifetime=options.lifetime).pairs)
    if options.out is None:
        print(text, end="")
        return 0
    try:
        with options.out.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ConfigError(f"{options.out} cannot be written: {error}") from error
    return 0


def _import(options: argparse.Namespace) -> int:
    pairs, notes = merge([read_pool(pool, lifetime=options.lifetime) for pool in options.pools])
    if not pairs:
        raise ConfigError("there is no pair to import")
    for pair in pairs:
        rubric = pair.rubric
        texts = (rubric.applicability, rubric.fail_condition, rubric.pass_condition)
        longest = max(map(len, (pair.title, *texts, pair.skill.text)))
        if longest > options.max_chars:
            raise ConfigError(
                f"R{pair.id} {pair.title!r} has a text of {longest} characters; --max-chars is "
                f"{options.max_chars}"
            )
    write_events(options.out, pairs)
    for note in notes:
        print(note)
    print(f"{len(pairs)} pairs in {options.out}; start with rubrics.pool_path={options.out}")
    return 0


def _diff(options: argparse.Namespace) -> int:
    text = pool_diff(read_pool(options.old).pairs, read_pool(options.new).pairs)
    if text:
        print(text)
    return EXIT_DIFFERENT if text else 0


if __name__ == "__main__":
    sys.exit(main())

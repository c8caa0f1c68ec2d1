"""One player per kind of sandbox for all attempts of a file."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from security.players import Player, UserPlayer

SECRET = "sk-test-123"


@pytest.fixture(scope="module")
def player_of() -> Iterator[Callable[[str], Player | UserPlayer]]:
    """Gives the player of a kind; all of them have a secret in their environment."""
    # Not pytest's folder, which an ordinary user cannot read.
    folder = Path(tempfile.mkdtemp(prefix="security-"))
    folder.chmod(0o755)
    environment = pytest.MonkeyPatch()
    environment.setenv("OPENAI_API_KEY", SECRET)
    # Forked first, while this process has few threads.
    made: dict[str, Player | UserPlayer] = {"bubblewrap-user": UserPlayer(folder)}

    def get(kind: str) -> Player | UserPlayer:
        if kind not in made:
            made[kind] = Player(kind, folder)
        return made[kind]

    yield get
    environment.undo()
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda player: player.close(), made.values()))
    shutil.rmtree(folder)

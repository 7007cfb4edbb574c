"""Plays the scenes that the chosen tests are about, a few at a time, and keeps what they left."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from chaos_history import History
from chaos_stage import Nursery, Scene, Stage

AT_ONCE = 8
"""Holders sleep most of the time; more than so many scenes at once would be late for their own faults."""

Chosen = tuple[Scene, Sequence[int]]


class Plays:
    """Scenes by name and seed, all begun when the first test asks for one."""

    def __init__(self, chosen: Sequence[Chosen], folder: Path, program: Callable[[str], str]) -> None:
        self._folder, self._program = folder, program
        self._nursery = Nursery()
        self._pool = ThreadPoolExecutor(AT_ONCE)
        self._found: dict[tuple[str, int], Future[History]] = {}
        for scene, seeds in chosen:
            for seed in seeds:
                if (scene.name, seed) not in self._found:
                    self._found[scene.name, seed] = self._pool.submit(self._play, scene, seed)

    def history(self, scene: Scene, seed: int) -> History:
        """What a scene left that was chosen."""
        return self._found[scene.name, seed].result()

    def alone(self, scene: Scene, seed: int) -> History:
        """Play a scene while no other is played."""
        for future in self._found.values():
            future.exception()
        return self._pool.submit(self._play, scene, seed).result()

    def _play(self, scene: Scene, seed: int) -> History:
        folder = self._folder / f"{scene.name} {seed}".replace(" ", "-")
        folder.mkdir()
        return Stage(scene, seed, folder, self._nursery, self._program).run()

    def end(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._nursery.end()


@pytest.fixture(scope="session")
def _made() -> Iterator[list[Plays]]:
    found: list[Plays] = []
    yield found
    for plays in found:
        plays.end()


@pytest.fixture
def plays(
    request: pytest.FixtureRequest,
    _made: list[Plays],
    tmp_path_factory: pytest.TempPathFactory,
    require_program: Callable[[str], str],
) -> Plays:
    """All scenes of the session."""
    require_program("redis-server")
    if not _made:
        specs = [getattr(item, "callspec", None) for item in request.session.items]
        chosen = [spec.params["played"] for spec in specs if spec is not None and "played" in spec.params]
        _made.append(Plays(chosen, tmp_path_factory.mktemp("chaos"), require_program))
    return _made[0]


@pytest.fixture
def played(request: pytest.FixtureRequest, plays: Plays) -> list[History]:
    """The histories of the scene that a test is about, one for each seed."""
    scene, seeds = request.param
    return [plays.history(scene, seed) for seed in seeds]

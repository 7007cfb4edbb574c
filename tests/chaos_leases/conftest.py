"""Plays the scenes that the chosen tests are about, a few at a time, and keeps what they left."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import redis
from chaos_history import History
from chaos_stage import Nursery, Scene, Stage

AT_ONCE = 8
"""Holders sleep most of the time; more than so many scenes at once would be late for their own faults."""
TURNS = 3
AGAIN_SEED = 1_000

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
        """Where what is to happen did not come about, the scene was not played, and is played again."""
        for turn in range(TURNS):
            folder = self._folder / f"{scene.name} {seed} {turn}".replace(" ", "-")
            folder.mkdir()
            try:
                return Stage(scene, seed, folder, self._nursery, self._program).run()
            except (AssertionError, redis.RedisError):
                if turn + 1 == TURNS:
                    raise
        raise AssertionError("unreachable")

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


class Played(list[History]):
    """The histories of a scene, one for each seed."""

    def __init__(self, plays: Plays, scene: Scene, seeds: Sequence[int]) -> None:
        super().__init__(plays.history(scene, seed) for seed in seeds)
        self._plays, self._scene = plays, scene

    def judge(self, never: Callable[[History], None], shown: Callable[[History], object]) -> None:
        """``never`` asserts what must hold in every history, however late a process was; ``shown`` says whether one shows what the test is about.

        A machine that has other work may keep a scene from showing it: then it is played again, by other seeds and while no other is.
        """
        for history in self:
            never(history)
        if any(shown(history) for history in self):
            return
        for turn in range(1, TURNS):
            history = self._plays.alone(self._scene, AGAIN_SEED + turn)
            never(history)
            if shown(history):
                return
        pytest.fail(f"{self._scene.name}: what this is about was not seen in {len(self) + TURNS - 1} plays")


@pytest.fixture
def played(request: pytest.FixtureRequest, plays: Plays) -> Played:
    """The histories of the scene that a test is about, one for each seed."""
    scene, seeds = request.param
    return Played(plays, scene, seeds)

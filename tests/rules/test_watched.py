"""The watched rule file: what counts as a change, what is believed, and what stays in service."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from sluicegate.bounds import RULES_BYTES_MAX
from sluicegate.clock import US_PER_S, ManualClock
from sluicegate.errors import ConfigurationError
from sluicegate.rules.model import RuleSet
from sluicegate.rules.problems import RulesInvalid
from sluicegate.rules.watched import RulesFile

GOOD = "version: 1\nrules:\n  - {name: api, per: [ip], quota: 5/minute}\n"
EDITED = GOOD.replace("5/minute", "7/minute")
BAD = GOOD.replace("quota:", "qouta:")


class Served:
    """Stands for the limiter: it keeps what it was given, and may refuse."""

    def __init__(self) -> None:
        self.rulesets: list[RuleSet] = []
        self.refuse_with: str | None = None

    def apply(self, ruleset: RuleSet) -> None:
        if self.refuse_with is not None:
            raise ConfigurationError(self.refuse_with)
        self.rulesets.append(ruleset)

    @property
    def quotas(self) -> list[str]:
        return [ruleset.rules[0].quotas[None].text for ruleset in self.rulesets]


@pytest.fixture
def served() -> Served:
    """A limiter that keeps what it was given."""
    return Served()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A good rule file, an hour old."""
    path = tmp_path / "rules.yaml"
    path.write_text(GOOD)
    return path


@pytest.fixture
def clock(path: Path) -> ManualClock:
    """A clock that reads an hour after the file was written."""
    return ManualClock(path.stat().st_mtime_ns // 1_000 + 3_600 * US_PER_S)


@pytest.fixture
def watched(path: Path, clock: ManualClock) -> RulesFile:
    """The file, loaded for the first time and found unchanged once."""
    watched = RulesFile(path, clock)
    watched.load()
    assert watched.poll(Served().apply) is False
    return watched


def polls(watched: RulesFile, served: Served, times: int = 3) -> list[bool]:
    """The answers of several polls in a row."""
    return [watched.poll(served.apply) for _ in range(times)]


def test_first_load_is_version_one(watched: RulesFile, clock: ManualClock) -> None:
    """The rules a process starts with are version 1, accepted once."""
    state = watched.state
    assert (state.version, state.accepted, state.rejected, state.error) == (1, 1, 0, None)
    assert state.digest
    assert state.loaded_us == clock.now_us()


def test_first_load_of_a_bad_file_lists_every_problem(path: Path, clock: ManualClock) -> None:
    """A process does not start on a bad file, and says all that is wrong with it."""
    path.write_text(BAD + "  - {name: api, per: [ip], quota: 5/minute}\n")
    with pytest.raises(RulesInvalid) as caught:
        RulesFile(path, clock).load()
    assert len(caught.value.problems) >= 2


def test_first_load_of_no_file_names_it(tmp_path: Path, clock: ManualClock) -> None:
    """A file that is not there is named."""
    with pytest.raises(ConfigurationError, match=r"cannot read .*absent\.yaml: it does not exist"):
        RulesFile(tmp_path / "absent.yaml", clock).load()


def write_in_place(path: Path, text: str) -> None:
    path.write_text(text)


def move_over(path: Path, text: str) -> None:
    beside = path.with_suffix(".new")
    beside.write_text(text)
    beside.rename(path)


@pytest.mark.parametrize("change", [write_in_place, move_over])
def test_edit_is_the_next_version(watched: RulesFile, served: Served, path: Path, change: object) -> None:
    """T98: a file written in place, and one moved over it, are both taken up by the second poll, once."""
    assert callable(change)
    change(path, EDITED)
    assert polls(watched, served) == [False, True, False]
    assert served.quotas == ["7/minute"]
    assert (watched.state.version, served.rulesets[0].version, watched.state.accepted) == (2, 2, 2)


def test_swapped_directory_link_is_the_next_version(tmp_path: Path, clock: ManualClock, served: Served) -> None:
    """T98, T99: Kubernetes swaps a link in the middle of the path; the change is seen and has a new version."""
    mount = tmp_path / "mount"
    for name, text in (("..one", GOOD), ("..two", EDITED)):
        (mount / name).mkdir(parents=True)
        (mount / name / "rules.yaml").write_text(text)
    (mount / "..data").symlink_to("..one")
    (mount / "rules.yaml").symlink_to("..data/rules.yaml")
    watched = RulesFile(mount / "rules.yaml", clock)
    watched.load()
    assert polls(watched, served) == [False, False, False]
    (mount / "..new").symlink_to("..two")
    (mount / "..new").rename(mount / "..data")
    assert polls(watched, served) == [False, True, False]
    assert served.quotas == ["7/minute"]


def test_same_size_same_time_is_still_seen(path: Path, served: Served) -> None:
    """An edit of the same length within one tick of the file system's clock is found by its content."""
    status = path.stat()
    clock = ManualClock(status.st_mtime_ns // 1_000 + US_PER_S)
    watched = RulesFile(path, clock)
    watched.load()
    watched.poll(served.apply)
    path.write_text(EDITED)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert polls(watched, served) == [False, True, False]


def test_identical_content_is_no_new_version(watched: RulesFile, served: Served, path: Path) -> None:
    """Touching the file, or writing the same again, changes nothing."""
    move_over(path, GOOD)
    assert polls(watched, served) == [False, False, False]
    assert (served.rulesets, watched.state.version) == ([], 1)


def test_half_written_file_is_not_believed(watched: RulesFile, served: Served, path: Path) -> None:
    """A file that still changes between two polls is not judged, though what is there so far is a valid file."""
    path.write_text(GOOD)
    for text in (GOOD + "#", GOOD + "# more", EDITED):
        path.write_text(text)
        assert watched.poll(served.apply) is False
    assert served.rulesets == []
    assert watched.poll(served.apply) is True
    assert served.quotas == ["7/minute"]


def test_bad_edit_keeps_the_last_good_rules(watched: RulesFile, served: Served, path: Path) -> None:
    """T109: a bad file changes nothing but the visible error; it is reported once and names line and field."""
    path.write_text(BAD)
    assert polls(watched, served) == [False, True, False]
    state = watched.state
    assert (served.rulesets, state.version, state.accepted, state.rejected) == ([], 1, 1, 1)
    assert state.error is not None
    assert "qouta" in state.error
    assert f"{path}:3" in state.error


def test_mended_file_is_the_next_version(watched: RulesFile, served: Served, path: Path) -> None:
    """After a bad edit, a good one is the next version and clears the error."""
    path.write_text(BAD)
    polls(watched, served)
    path.write_text(EDITED)
    assert polls(watched, served) == [False, True, False]
    assert (watched.state.version, watched.state.error) == (2, None)


def test_going_back_to_the_good_content_is_no_new_version(watched: RulesFile, served: Served, path: Path) -> None:
    """The content in service comes back: the error goes, and nothing is applied again (T101)."""
    path.write_text(BAD)
    polls(watched, served)
    path.write_text(GOOD)
    assert polls(watched, served) == [False, True, False]
    assert (served.rulesets, watched.state.version, watched.state.error) == ([], 1, None)


def test_deleted_file_keeps_the_last_good_rules(watched: RulesFile, served: Served, path: Path) -> None:
    """A file that is gone is an error that is shown; when it is back with an edit, the edit is taken up."""
    path.unlink()
    assert polls(watched, served) == [False, True, False]
    assert watched.state.error == f"cannot read {path}: it does not exist"
    path.write_text(EDITED)
    assert polls(watched, served) == [False, True, False]
    assert (watched.state.version, watched.state.error) == (2, None)


def test_gone_for_one_poll_is_being_replaced(watched: RulesFile, served: Served, path: Path) -> None:
    """An editor that removes the file before it writes it anew causes no error."""
    path.unlink()
    assert watched.poll(served.apply) is False
    path.write_text(EDITED)
    assert polls(watched, served) == [False, True, False]
    assert watched.state.rejected == 0


@pytest.mark.parametrize(
    ("content", "word"),
    [(b"\xff\xfe", "UTF-8"), (b"", "empty"), (b"rules: [", "not YAML"), (b"a: 1\n" * 300_000, "larger than")],
)
def test_hostile_content_is_rejected(watched: RulesFile, served: Served, path: Path, content: bytes, word: str) -> None:
    """Whatever the file holds, the watch goes on and the last good rules stay."""
    path.write_bytes(content)
    polls(watched, served)
    assert served.rulesets == []
    assert word in str(watched.state.error)
    path.write_text(EDITED)
    polls(watched, served)
    assert served.quotas == ["7/minute"]


def test_refused_by_the_limiter_is_tried_again(watched: RulesFile, served: Served, path: Path) -> None:
    """Rules that check well but cannot be put in service stay an error, and go live when the cause is gone."""
    served.refuse_with = "keys.yaml: cannot be read"
    path.write_text(EDITED)
    polls(watched, served)
    assert (watched.state.error, watched.state.rejected) == ("keys.yaml: cannot be read", 1)
    polls(watched, served, 6)
    assert watched.state.rejected == 1
    served.refuse_with = None
    polls(watched, served)
    assert (served.quotas, watched.state.version, watched.state.error) == (["7/minute"], 2, None)


def test_fault_of_ours_is_raised_once(watched: RulesFile, served: Served, path: Path) -> None:
    """An unexpected error while rules are applied is raised once, shown as the state's error, and the next edit is read."""

    def broken(_ruleset: RuleSet) -> None:
        raise ZeroDivisionError("broken")

    path.write_text(EDITED)
    assert watched.poll(broken) is False
    with pytest.raises(ZeroDivisionError):
        watched.poll(broken)
    assert [watched.poll(broken) for _ in range(3)] == [False] * 3
    assert watched.state.error == "internal error: ZeroDivisionError('broken')"
    path.write_text(EDITED.replace("7/minute", "8/minute"))
    polls(watched, served)
    assert (served.quotas, watched.state.version) == (["8/minute"], 2)


def test_files_the_rules_name_are_watched_too(tmp_path: Path, clock: ManualClock, served: Served) -> None:
    """A change of the known keys is a change of the rules, though the rule file is as it was."""
    keys = tmp_path / "keys.yaml"
    keys.write_text("one: sha256:" + "0" * 64 + "\n")
    path = tmp_path / "rules.yaml"
    path.write_text(GOOD.replace("rules:", "identity:\n  api_key: {keys: keys.yaml}\nrules:"))
    watched = RulesFile(path, clock)
    watched.load()
    assert polls(watched, served) == [False, False, False]
    keys.write_text("two: sha256:" + "1" * 64 + "\n")
    assert polls(watched, served) == [False, True, False]
    assert watched.state.version == 2


def test_pipe_is_refused_without_waiting_for_its_writer(watched: RulesFile, served: Served, path: Path) -> None:
    """A pipe in place of the file is an error; opening it would hold the watch until somebody writes."""
    path.unlink()
    os.mkfifo(path)
    polling = threading.Thread(target=polls, args=(watched, served), daemon=True)
    polling.start()
    polling.join(60)
    assert not polling.is_alive()
    assert watched.state.error == f"cannot read {path}: not a regular file"
    path.unlink()
    path.write_text(EDITED)
    polls(watched, served)
    assert served.quotas == ["7/minute"]


def test_large_file_the_rules_name_is_watched_too(tmp_path: Path, clock: ManualClock, served: Served) -> None:
    """A keys file larger than a rule file may be, but within its own bound, is followed as well."""
    keys = tmp_path / "keys.txt"
    filling = "# filling\n" * (RULES_BYTES_MAX // 10 + 1)
    keys.write_text(filling + "a: " + "0" * 64 + "\n")
    path = tmp_path / "rules.yaml"
    path.write_text(GOOD.replace("rules:", "identity: {api_key: {keys: keys.txt}}\nrules:"))
    watched = RulesFile(path, clock)
    watched.load()
    keys.write_text(filling)
    assert any(polls(watched, served))
    assert watched.state.version == 2


def test_started_while_the_file_is_bad(path: Path, clock: ManualClock, tmp_path: Path, served: Served) -> None:
    """A process that is started while the file is bad serves what others with the same file have in service, under their version."""
    kept = tmp_path / "kept"
    first = RulesFile(path, clock, kept)
    first.load()
    path.write_text(EDITED)
    assert [first.poll(served.apply) for _ in range(2)] == [False, True]
    path.write_text(BAD)
    second = RulesFile(path, clock, kept)
    assert second.load().rules[0].quotas[None].text == "7/minute"
    assert (second.state.version, second.state.digest, second.state.rejected) == (2, first.state.digest, 1)
    assert "did you mean 'quota'?" in str(second.state.error)
    # The bad file is no news to it, the mended one is.
    assert [second.poll(served.apply) for _ in range(3)] == [False] * 3
    path.write_text(EDITED)
    assert [second.poll(served.apply) for _ in range(2)].count(True) == 1
    assert (second.state.error, second.state.version) == (None, 2)


def test_started_after_the_file_has_changed(path: Path, clock: ManualClock, tmp_path: Path) -> None:
    """A process counts on from the version of the others: the same content is the same version, another is the next."""
    kept = tmp_path / "kept"
    assert RulesFile(path, clock, kept).load().version == 1
    assert RulesFile(path, clock, kept).load().version == 1
    path.write_text(EDITED)
    assert RulesFile(path, clock, kept).load().version == 2
    path.unlink()
    gone = RulesFile(path, clock, kept)
    assert gone.load().version == 2
    assert "does not exist" in str(gone.state.error)


def test_bad_file_with_nothing_kept(path: Path, clock: ManualClock, tmp_path: Path) -> None:
    """Where nothing is kept a bad file is an error at the start, as ever."""
    path.write_text(BAD)
    with pytest.raises(RulesInvalid):
        RulesFile(path, clock, tmp_path / "kept").load()


def test_place_to_keep_that_is_gone(path: Path, clock: ManualClock, tmp_path: Path) -> None:
    """Rules are served all the same where they cannot be kept for others."""
    assert RulesFile(path, clock, tmp_path / "no" / "kept").load().version == 1


IDENTITY = "version: 1\nidentity: {trusted_peers: [10.0.0.0/8]}\n"


@pytest.mark.parametrize("rules", ["", "rules: []\n"])
def test_a_server_needs_rules(tmp_path: Path, rules: str) -> None:
    """A file that says only whom to believe is no file for a server: not at start, and not as an edit."""
    path = tmp_path / "rules.yaml"
    path.write_text(IDENTITY + rules)
    clock = ManualClock()
    with pytest.raises(ConfigurationError, match="has no rules: a server would limit nothing"):
        RulesFile(path, clock).load()
    assert RulesFile(path, clock, rules_needed=False).load().rules == ()
    path.write_text(GOOD)
    file, served = RulesFile(path, clock), Served()
    file.load()
    path.write_text(IDENTITY + rules)
    while not file.poll(served.apply):
        pass
    assert "has no rules" in str(file.state.error)
    assert served.rulesets == []


def test_look_again(tmp_path: Path) -> None:
    """What a poll had begun to believe is asked for again, as after a fork in the middle of one: no edit is lost."""
    path = tmp_path / "rules.yaml"
    path.write_text(GOOD)
    clock = ManualClock()
    file, served = RulesFile(path, clock), Served()
    file.load()
    path.write_text(EDITED)
    os.utime(path, (1, 1))
    clock.advance(3600 * US_PER_S)

    def interrupted(_ruleset: RuleSet) -> None:
        raise KeyboardInterrupt

    assert not file.poll(interrupted)
    with pytest.raises(KeyboardInterrupt):
        file.poll(interrupted)
    assert not any(file.poll(served.apply) for _ in range(3)), "nothing new to be seen"
    file.look_again()
    assert not file.poll(served.apply)
    assert file.poll(served.apply)
    assert served.quotas == ["7/minute"]

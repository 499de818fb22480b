import dataclasses
import errno
import fcntl
import json
import os
import subprocess
from pathlib import Path
from unittest.mock import Mock

import jax
import pytest
from programs import contents, filling_disk
from programs import refusal as refused

from kjax.runs.workdir import claim_workdir, source_version, stored_config


@dataclasses.dataclass(frozen=True)
class Model:
    head: str = "polar"
    s: int = 1


@dataclasses.dataclass(frozen=True)
class Config:
    """Like `RunConfig`, with a few of its fields."""

    model: Model = Model()
    seeds: tuple[int, ...] = ()
    progress: bool = True
    init: str = ""


CONFIG = Config()


def claim(folder: Path, config: Config = CONFIG, **options) -> None:
    with claim_workdir(folder, config, **options):
        pass


def refusal(folder: Path, config: Config = CONFIG) -> str:
    message = refused(claim, folder, config)
    assert str(folder) in message
    return message


def test_a_new_workdir_records_config_and_versions(tmp_path):
    folder = tmp_path / "runs" / "first"
    claim(folder, notes={"pipeline": "tfdata: the set is large"})
    assert stored_config(folder) == json.loads(json.dumps(dataclasses.asdict(CONFIG)))
    (versions,) = json.loads((folder / "versions.json").read_text())
    assert versions["jax"] == jax.__version__
    assert versions["backend"] == "cpu"
    assert versions["device"] == jax.devices()[0].device_kind
    assert versions["pipeline"] == "tfdata: the set is large"
    assert {"python", "flax", "optax", "orbax-checkpoint", "kjax", "source"} <= versions.keys()
    assert contents(folder).keys() == {"config.json", "versions.json", ".lock"}


def test_resuming_allows_harmless_changes_and_adds_new_versions(tmp_path):
    claim(tmp_path)
    claim(tmp_path, dataclasses.replace(CONFIG, progress=False))
    assert stored_config(tmp_path)["progress"] is False
    now = json.loads((tmp_path / "versions.json").read_text())
    assert len(now) == 1
    (tmp_path / "versions.json").write_text('[{"jax": "another"}]')
    claim(tmp_path)
    assert json.loads((tmp_path / "versions.json").read_text()) == [{"jax": "another"}, *now]


def test_a_run_from_before_a_field_can_be_resumed_unless_the_field_is_set(tmp_path):
    claim(tmp_path)
    stored = stored_config(tmp_path)
    del stored["init"]
    (tmp_path / "config.json").write_text(json.dumps(stored))
    started = dataclasses.replace(CONFIG, init="best")
    assert "init was '' and is 'best'" in refusal(tmp_path, started)
    claim(tmp_path)


def test_another_config_is_refused_with_the_fields_and_nothing_changes(tmp_path):
    claim(tmp_path)
    before = contents(tmp_path)
    message = refusal(tmp_path, Config(Model("xy"), seeds=(0, 1), progress=False))
    for part in ("model.head was 'polar' and is 'xy'", "seeds was () and is (0, 1)"):
        assert part in message
    assert "progress" not in message
    assert contents(tmp_path) == before


def test_foreign_folder_and_file_are_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    assert "thesis.tex" in refusal(tmp_path)
    assert "is a file" in refusal(tmp_path / "thesis.tex")
    assert "cannot write" in refusal(tmp_path / "thesis.tex" / "below")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    (tmp_path / "left").mkdir()
    for left_by_a_kill in (".config.partial-0123abcd.json", ".lock"):
        (tmp_path / "left" / left_by_a_kill).touch()
    claim(tmp_path / "left")


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        *(("config", each, "config.json is damaged") for each in (b"{", b"[]", b'{"a": "\xff"}')),
        ("config", b'{"a": ' * 100_000, "config.json is damaged"),
        ("config", b'{"name": "another program"}', "unknown config field 'name'"),
        *(("versions", each, "versions.json is damaged: remove it") for each in (b"[", b"{}")),
        ("versions", b"\xff", "versions.json is damaged: remove it"),
    ],
)
def test_a_damaged_file_is_named_and_stays(tmp_path, name, damage, message):
    claim(tmp_path)
    (tmp_path / f"{name}.json").write_bytes(damage)
    assert message in refusal(tmp_path)
    assert (tmp_path / f"{name}.json").read_bytes() == damage


def test_a_full_disk_or_an_unwritable_folder_keeps_the_old_files(tmp_path, monkeypatch):
    claim(tmp_path)
    before = contents(tmp_path)
    with filling_disk() as fill:
        fill(0)
        assert "free some space" in refusal(tmp_path)
    denied = Mock(side_effect=PermissionError(13, "Permission denied"))
    monkeypatch.setattr(os, "replace", denied)
    assert "Permission denied" in refusal(tmp_path)
    assert contents(tmp_path) == before


def test_a_claimed_workdir_is_refused_until_it_is_free(tmp_path, monkeypatch):
    with claim_workdir(tmp_path, CONFIG):
        before = contents(tmp_path)
        message = refusal(tmp_path, dataclasses.replace(CONFIG, progress=False))
        assert "another run is using the workdir" in message
        assert contents(tmp_path) == before
        with monkeypatch.context() as patch:  # only the first process locks and writes
            patch.setattr(jax, "process_index", lambda: 1)
            claim(tmp_path)
    claim(tmp_path)


def test_a_file_system_without_locks_is_noted_and_used(tmp_path, monkeypatch, capsys):
    unsupported = OSError(errno.ENOTSUP, "Operation not supported")
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=unsupported))
    claim(tmp_path)
    assert (tmp_path / "config.json").exists()
    note = capsys.readouterr().err
    assert f"{tmp_path} is on a file system without locks" in note
    assert note.count("\n") == 1


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, timeout=20)


def test_the_commit_of_a_source_tree(tmp_path):
    assert source_version(tmp_path) is None
    git(tmp_path, "init", "-q")
    (tmp_path / "file").write_text("1")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "one")
    clean = source_version(tmp_path)
    assert clean is not None
    assert len(clean["commit"]) == 40
    assert clean["dirty"] is False
    (tmp_path / "file").write_text("2")
    assert source_version(tmp_path) == {**clean, "dirty": True}
    git(tmp_path, "checkout", "-q", "file")
    for written in ("results/heads.jsonl", "data/patches.bmp"):
        (tmp_path / written).parent.mkdir()
        (tmp_path / written).write_text("new")
    git(tmp_path, "add", "results")
    assert source_version(tmp_path) == clean, "data and results are not code"
    (tmp_path / "new.py").write_text("code")
    assert source_version(tmp_path) == {**clean, "dirty": True}
    (tmp_path / "inner").mkdir()
    assert source_version(tmp_path / "inner") is None, "another project's checkout"

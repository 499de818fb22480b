import errno
import fcntl
import json
import os
import subprocess
from pathlib import Path

import jax
import pytest
from disk import full_disk

from kjax.errors import InputError
from kjax.runs.workdir import (
    claim_workdir,
    prepare_workdir,
    source_version,
    stored_config,
    stored_pipeline,
)

CONFIG = {
    "seed": 0,
    "seeds": (),
    "model": {"head": "polar", "s": 1, "dropout": 0.3},
    "train": {"pairs": 8, "log_every": 10},
}


def with_values(**changes) -> dict:
    config = json.loads(json.dumps(CONFIG))
    for path, value in changes.items():
        group, _, name = path.rpartition("__")
        (config[group] if group else config)[name] = value
    return config


def contents(folder: Path) -> dict[str, str]:
    return {p.name: p.read_text() for p in folder.iterdir()}


def refusal(folder: Path, config: dict) -> str:
    with pytest.raises(InputError) as error:
        prepare_workdir(folder, config)
    message = str(error.value)
    assert "\n" not in message
    assert str(folder) in message
    return message


def test_a_new_workdir_records_config_and_versions(tmp_path):
    folder = tmp_path / "runs" / "first"
    assert prepare_workdir(folder, CONFIG) is False
    assert json.loads((folder / "config.json").read_text()) == json.loads(json.dumps(CONFIG))
    (versions,) = json.loads((folder / "versions.json").read_text())
    assert versions["jax"] == jax.__version__
    assert versions["backend"] == "cpu"
    assert versions["device"] == jax.devices()[0].device_kind
    assert {"python", "flax", "optax", "orbax-checkpoint", "kjax", "source"} <= versions.keys()
    assert sorted(p.name for p in folder.iterdir()) == ["config.json", "versions.json"]


def test_the_same_config_goes_on_and_harmless_fields_may_change(tmp_path):
    prepare_workdir(tmp_path, CONFIG)
    assert prepare_workdir(tmp_path, CONFIG) is True
    assert prepare_workdir(tmp_path, with_values(train__log_every=3)) is True
    assert json.loads((tmp_path / "config.json").read_text())["train"]["log_every"] == 3
    assert len(json.loads((tmp_path / "versions.json").read_text())) == 1


def test_a_run_from_before_a_field_goes_on_unless_the_field_is_set(tmp_path):
    prepare_workdir(tmp_path, CONFIG)
    assert prepare_workdir(tmp_path, {**CONFIG, "augment": {"max_blur": 0.0}}) is True
    assert prepare_workdir(tmp_path, CONFIG) is True
    message = refusal(tmp_path, {**CONFIG, "augment": {"max_blur": 1.0}})
    assert "augment.max_blur was 0.0 and is 1.0" in message


def test_other_versions_are_added_to_the_record(tmp_path):
    prepare_workdir(tmp_path, CONFIG)
    now = json.loads((tmp_path / "versions.json").read_text())
    (tmp_path / "versions.json").write_text('[{"jax": "another"}]')
    prepare_workdir(tmp_path, CONFIG)
    assert json.loads((tmp_path / "versions.json").read_text()) == [{"jax": "another"}, *now]


def test_another_config_is_refused_with_the_fields_and_nothing_changes(tmp_path):
    prepare_workdir(tmp_path, CONFIG)
    before = contents(tmp_path)
    new = with_values(model__head="xy", model__extra=True, seeds=[0, 1], train__log_every=1)
    del new["model"]["s"]
    message = refusal(tmp_path, new)
    for part in (
        'model.head was "polar" and is "xy"',
        'model.extra was "absent" and is true',
        'model.s was 1 and is "absent"',
        "seeds was [] and is [0, 1]",
        "choose another workdir",
    ):
        assert part in message
    assert "log_every" not in message
    assert contents(tmp_path) == before


def test_foreign_folder_and_file_are_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    assert "thesis.tex" in refusal(tmp_path, CONFIG)
    assert "is a file" in refusal(tmp_path / "thesis.tex", CONFIG)
    assert "cannot write" in refusal(tmp_path / "thesis.tex" / "below", CONFIG)
    assert contents(tmp_path) == {"thesis.tex": "years of work"}


def test_what_a_kill_leaves_is_not_foreign(tmp_path):
    (tmp_path / ".config.partial-0123abcd.json").write_text("{")
    assert prepare_workdir(tmp_path, CONFIG) is False


@pytest.mark.parametrize(
    "damage",
    [b"{", b"[]", b"", b'{"a": "\xff"}', b'{"a": ' * 100_000, b'{"a": ' * 500 + b"1" + b"}" * 500],
)
def test_damaged_config_is_one_line(tmp_path, damage):
    prepare_workdir(tmp_path, CONFIG)
    (tmp_path / "config.json").write_bytes(damage)
    assert "config.json is damaged" in refusal(tmp_path, CONFIG)
    with pytest.raises(InputError, match=r"config\.json is damaged"):
        stored_config(tmp_path)
    assert (tmp_path / "config.json").read_bytes() == damage


@pytest.mark.parametrize("damage", [b"[", b"{}", b"\xff", b"[" * 100_000])
def test_a_damaged_list_of_versions_can_be_removed(tmp_path, damage):
    prepare_workdir(tmp_path, CONFIG)
    (tmp_path / "versions.json").write_bytes(damage)
    assert "versions.json is damaged: remove it" in refusal(tmp_path, CONFIG)
    (tmp_path / "versions.json").unlink()
    assert prepare_workdir(tmp_path, CONFIG)


def test_full_disk_is_noticed_at_the_start_and_keeps_the_old_files(tmp_path):
    prepare_workdir(tmp_path, CONFIG)
    before = contents(tmp_path)
    with full_disk(room=0):
        message = refusal(tmp_path, CONFIG)
    assert "free some space" in message
    assert contents(tmp_path) == before


def test_unwritable_folder_is_one_line(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "replace", refuse)
    message = refusal(tmp_path, CONFIG)
    assert "Permission denied" in message
    assert list(tmp_path.iterdir()) == []


def test_only_the_first_process_writes(tmp_path, monkeypatch):
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    assert prepare_workdir(tmp_path / "run", CONFIG) is False
    assert not (tmp_path / "run").exists()


def test_a_claimed_workdir_is_refused_until_it_is_free(tmp_path):
    with claim_workdir(tmp_path, CONFIG):
        before = contents(tmp_path)
        with pytest.raises(InputError, match="another run is going on in the workdir") as error:
            claim_workdir(tmp_path, with_values(train__log_every=3)).__enter__()
        assert "\n" not in str(error.value)
        assert contents(tmp_path) == before
    with claim_workdir(tmp_path, CONFIG):
        pass


def test_a_foreign_folder_does_not_even_get_a_lock(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match=r"thesis\.tex"):
        claim_workdir(tmp_path, CONFIG).__enter__()
    assert contents(tmp_path) == {"thesis.tex": "years of work"}


def test_a_lock_alone_is_not_foreign(tmp_path):
    """What a kill between the lock and the first file leaves."""
    (tmp_path / ".lock").touch()
    assert prepare_workdir(tmp_path, CONFIG) is False


def test_only_the_first_process_locks(tmp_path, monkeypatch):
    with claim_workdir(tmp_path, CONFIG):
        monkeypatch.setattr(jax, "process_index", lambda: 1)
        with claim_workdir(tmp_path, CONFIG):
            pass


def test_a_file_system_without_locks_is_noted_and_used(tmp_path, monkeypatch, capsys):
    def refuse(*_):
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with claim_workdir(tmp_path, CONFIG):
        assert (tmp_path / "config.json").exists()
    assert capsys.readouterr().err == (
        f"{tmp_path} is on a file system without locks: see that no other run uses it\n"
    )


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
    assert source_version(tmp_path) == clean, "what runs write and read is not what runs"
    (tmp_path / "new.py").write_text("code")
    assert source_version(tmp_path) == {**clean, "dirty": True}
    (tmp_path / "inner").mkdir()
    assert source_version(tmp_path / "inner") is None, "somebody else's checkout"


def test_the_pipeline_of_a_run_is_read_back(tmp_path):
    assert stored_pipeline(tmp_path) is None
    notes = {"pipeline": "tfdata: the set is large"}
    prepare_workdir(tmp_path, {**CONFIG, "data": {"pipeline": "tfdata"}}, notes=notes)
    assert stored_pipeline(tmp_path) == "tfdata"
    (versions,) = json.loads((tmp_path / "versions.json").read_text())
    assert versions["pipeline"] == notes["pipeline"]

import errno
import os

import pytest

from kjax.files.atomic import write_json, write_text, write_whole


def test_json_is_replaced_whole(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"x": 1})
    with pytest.raises(TypeError):
        write_json(path, {"x": object()})
    assert path.read_text() == '{\n  "x": 1\n}\n'
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), OSError(errno.ENOSPC, "full")])
def test_a_failed_write_keeps_the_old_content(tmp_path, failure):
    path = tmp_path / "a.bin"
    write_text(path, "old")

    def half(partial):
        assert partial.suffix == ".bin"
        partial.write_bytes(b"ha")
        raise failure

    with pytest.raises(type(failure)):
        write_whole(path, half)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_content_and_name_are_on_the_disk(tmp_path, disk_calls):
    """The content before the name is given, the name after."""
    write_text(tmp_path / "a.txt", "new")
    found = [(call, path.name.partition("-")[0]) for call, path in disk_calls]
    assert found == [("fsync", ".a.partial"), ("rename", "a.txt"), ("fsync", tmp_path.name)]


def test_a_file_system_that_cannot_sync_folders_will_do(tmp_path, monkeypatch):
    fsync = os.fsync

    def only_files(number):
        if os.path.isdir(os.readlink(f"/proc/self/fd/{number}")):
            raise OSError(errno.EINVAL, "Invalid argument")
        fsync(number)

    monkeypatch.setattr(os, "fsync", only_files)
    write_text(tmp_path / "a.txt", "new")
    assert (tmp_path / "a.txt").read_text() == "new"

import errno

import pytest

from kjax.whole_files import write_json, write_text, write_whole


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

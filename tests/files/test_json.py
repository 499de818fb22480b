import pytest

from kjax.errors import counted
from kjax.files.json import append_line, parse_json, read_lines

BAD = ["[" * 100_000, '{"a":' * 100_000, "", "{", "[1,]"]


def test_plain_values():
    assert parse_json('{"a": [1, 2.5, null, "é"]}') == {"a": [1, 2.5, None, "é"]}
    assert parse_json('{"é": 1}'.encode()) == {"é": 1}


@pytest.mark.parametrize("text", [*BAD, b'{"a": "\xc3"}', b"\xff\xff"])
def test_damage_is_a_value_error(text):
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)


def test_damaged_lines_are_skipped_and_incomplete_ones_removed(tmp_path, capsys):
    path = tmp_path / "a.jsonl"
    assert read_lines(path, dict, what="a record") == []
    append_line(path, {"a": 1}, dict)
    whole = path.read_bytes()
    path.write_bytes(whole + b'[3]\n\xff\n\n{"b": 2')
    assert read_lines(path, dict, what="a record") == [{"a": 1}]
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 3
    assert "a.jsonl, line 3 is not a record and is skipped: it is not UTF-8" in errors[1]
    append_line(path, {"é": 3}, dict)
    assert read_lines(path, dict, what="a record") == [{"a": 1}, {"é": 3}]
    path.write_bytes(whole[:-1])
    append_line(path, {"b": 2}, dict)
    assert path.read_text() == '{"a": 1}\n{"b": 2}\n'


def test_counted():
    found = [counted(number, noun) for number in (0, 1, 1200) for noun in ("pair", "match")]
    assert found == ["0 pairs", "0 matches", "1 pair", "1 match", "1,200 pairs", "1,200 matches"]

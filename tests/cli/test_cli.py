import jax
import pytest

from kjax.cli import COMMANDS, main


@pytest.fixture(autouse=True)
def keep_the_precision():
    """`kjax compare` switches JAX to 64 bits, for its process; not for the other tests."""
    yield
    jax.config.update("jax_enable_x64", False)


def error_line(capsys) -> str:
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1, captured.err
    return captured.err


@pytest.mark.parametrize("command", [None, *COMMANDS])
def test_help(command, capsys):
    with pytest.raises(SystemExit) as exit_:
        main([command, "--help"] if command else ["--help"])
    assert exit_.value.code == 0
    assert "usage: kjax" in capsys.readouterr().out


SMALL = ("--patch-size", "8", "--steps", "2", "--pairs", "3")


def test_compare_prints_a_table_and_a_verdict(capsys):
    pytest.importorskip("torch")
    assert main(["compare", "--head", "sum", *SMALL]) == 0
    table = capsys.readouterr().out
    for expected in (
        "float32",
        "float64",
        "layer features.16",
        "descriptor (train)",
        "gradient features.0.weight",
        "parameters after 2 steps",
        "running statistics after 2 steps",
        "18 of 18 rows within their limits",
    ):
        assert expected in table


def test_compare_fails_when_the_two_differ(capsys, monkeypatch):
    pytest.importorskip("torch")
    from kjax.parity.torch_reference import TorchDescriptor

    norm = TorchDescriptor.input_norm
    monkeypatch.setattr(TorchDescriptor, "input_norm", staticmethod(lambda x: 1.001 * norm(x)))
    assert main(["compare", "--head", "sum", *SMALL]) == 1
    assert "too large" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compare", "--head", "polr"], "did you mean 'polar'"),
        (["compare", "--pairs", "1"], "--pairs must be at least 2"),
        (["compare", "--weights", "nowhere.pth"], "no such file"),
        (["download", "libery"], "did you mean 'liberty'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, message, capsys, tmp_path, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    line = error_line(capsys)
    assert message in line
    assert line.startswith(f"kjax {arguments[0]}: ")
    assert list(tmp_path.iterdir()) == []

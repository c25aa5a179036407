"""Progress where nobody looks at a terminal."""

from trajstitch.progress import bar, lines


def test_a_log_gets_a_line_now_and_then(capsys):
    tell = lines("training", every=0)
    tell(1000, 4000, "loss 0.5")
    assert capsys.readouterr().err == "training: 1,000 of 4,000, about 0 min left, loss 0.5\n"
    seldom = lines("training")
    seldom(1, 2)
    assert capsys.readouterr().err == ""


def test_quiet_is_quiet(capsys, monkeypatch):
    monkeypatch.setattr("trajstitch.progress.lines", lambda label: lambda *words: print(label))
    with bar("loud") as tell:
        tell(1, 2)
    with bar("quiet", quiet=True) as tell:
        tell(1, 2)
    assert capsys.readouterr().out == "loud\n"

"""Options: every one has a help text, and a method's are its own settings."""

import dataclasses
import re

import pytest

from trajstitch.cli import COMMANDS, main
from trajstitch.methods import METHODS, defaults

SHARED = {"help", "seed", "json", "quiet", "episode-horizon", "flatten", "out", "seeds", "every", "env", "physics"}
SHARED |= {"obs", "action", "reward-from", "done-from", "filter-key"}
SHARED |= {"preset", "episodes", "env-horizon", "no-evaluation", "overwrite", "one-thread", "track"}
PAGES = [(name,) for name in COMMANDS if name != "train"] + [("train", method) for method in METHODS]
PAGES += [("bench", "speed")]


def help_page(capsys, monkeypatch, *words):
    """The lines that --help prints, without frames."""
    monkeypatch.setenv("COLUMNS", "100")  # narrow enough for one column of panels
    with pytest.raises(SystemExit) as end:
        main([*words, "--help"])
    assert end.value.code == 0
    return [line.strip("│").strip() for line in capsys.readouterr().out.splitlines()]


def options(page):
    """Option: help text."""
    found, name = {}, None
    for line in page:
        if match := re.match(r"(?:-h, )?--([a-z][\w.-]*)(.*)", line):
            name = match[1]
            found[name] = ([*re.split(r" {2,}", match[2], maxsplit=1), ""])[1]
        elif re.match(r"[╭╰─-]|$", line):
            name = None
        elif name:
            found[name] += " " + line
    return {name: re.sub(r" \((default: [^()]*|required)\)$", "", text).strip() for name, text in found.items()}


@pytest.mark.parametrize("words", PAGES, ids=" ".join)
def test_every_option_has_a_help_text(words, capsys, monkeypatch):
    found = options(help_page(capsys, monkeypatch, *words))
    assert {"seed", "json", "quiet"} <= found.keys()
    assert [name for name, text in found.items() if len(text) < 10] == []
    # The words of a sentence: it begins with a capital letter (or the name of a choice) and has an end.
    ends = [name for name, text in found.items() if name != "help" and not text.endswith((".", ":"))]
    assert ends == []


@pytest.mark.parametrize("words", PAGES, ids=" ".join)
def test_what_stands_without_a_name_is_called_by_what_it_is(words, capsys, monkeypatch):
    (usage,) = [line for line in help_page(capsys, monkeypatch, *words) if line.startswith("usage: ")]
    assert not re.search(r"\bSTR\b|None", usage)


def test_every_setting_of_improve_is_an_option(capsys, monkeypatch):
    found = options(help_page(capsys, monkeypatch, "improve"))
    assert {"max-length", "graph.epsilon", "graph.nearest", "dynamics.fit.steps", "reward.kind"} <= found.keys()
    assert len(found) > 45
    assert "neighbours" in found["graph.nearest"]


@pytest.mark.parametrize("method", METHODS)
def test_a_method_shows_its_own_settings_and_nothing_else(method, capsys, monkeypatch):
    page = help_page(capsys, monkeypatch, "train", method)
    config = defaults(method)
    own = {field.name for field in dataclasses.fields(config)} - {"fit"} | {"steps", "batch", "rate"}
    flags = {"no-" + name if getattr(config, name, None) is True else name for name in own}
    assert options(page).keys() == SHARED | {name.replace("_", "-") for name in flags}
    assert METHODS[method].summary in page
    text = "\n".join(page)
    assert f"(default: {config.fit.steps})" in text
    assert ("IMPROVED" in text) == METHODS[method].improved


def test_the_overview_lists_every_command_and_method(capsys):
    assert main(["--help"]) == 0
    page = capsys.readouterr().out
    assert all(f"  {name} " in page for name in COMMANDS)
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    page = capsys.readouterr().out
    assert all(f"  {name} " in page for name in METHODS)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["imporve", "demo"], "there is no command 'imporve'; did you mean improve?"),
        (["xyz"], "there is no command 'xyz'; known are demo, inspect, improve"),
        (["train", "iqll", "demo", "--out", "x"], "there is no method 'iqll'; did you mean iql?"),
        (["train"], "name a method: bc, percent-bc"),
    ],
)
def test_a_mistyped_name_is_one_sentence(words, sentence, capsys):
    assert main(words) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"trajstitch: {sentence}")
    assert error.count("\n") == 1


def test_no_arguments_print_the_overview_and_exit_with_2(capsys):
    assert main([]) == 2
    assert "usage: trajstitch COMMAND" in capsys.readouterr().err


def test_the_method_may_stand_after_options(hdf5, tmp_path, capsys):
    assert main(["train", "--out", str(tmp_path / "bc"), "bc", str(hdf5), "--steps", "0"]) == 2
    assert "steps must be at least 1, not 0" in capsys.readouterr().err

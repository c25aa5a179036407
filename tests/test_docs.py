"""The pages and the README are right: Python blocks run, commands and options exist, names are in the code."""

import ast
import contextlib
import functools
import io
import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import gymnasium
import pytest

from trajstitch.cli import COMMANDS, main
from trajstitch.methods import METHODS

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "trajstitch"
PAGES = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
}
BLOCK = re.compile(r"^(?:<!-- (.*?) -->\n)?```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NOT_RUN = re.compile(r"not run: .*(network|GPU|package)")


def blocks(page: str) -> list[tuple[str, str, str, int]]:
    """Comment above, language, text and first line of every code block of a page."""
    text = PAGES[page]
    return [(m[1] or "", m[2], m[3], text.count("\n", 0, m.start(3))) for m in BLOCK.finditer(text)]


def python_blocks(page: str) -> list[tuple[str, int]]:
    return [
        (text, line)
        for comment, language, text, line in blocks(page)
        if language == "python" and not comment.startswith("not run")
    ]


# -- Python ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [page for page in PAGES if python_blocks(page)])
def test_python_blocks_run(page, tmp_path, monkeypatch):
    """In order, in one namespace, in an empty folder; a traceback names the line of the page."""
    monkeypatch.chdir(tmp_path)
    known = set(gymnasium.registry)
    namespace = {"__name__": "page"}
    try:
        for text, line in python_blocks(page):
            exec(compile("\n" * line + text, page, "exec"), namespace)
    finally:
        for added in set(gymnasium.registry) - known:
            del gymnasium.registry[added]


def test_only_what_cannot_run_here_is_left_out():
    comments = [
        c for page in PAGES for c, language, _, _ in blocks(page) if language == "python" and "not run" in c
    ]
    assert all(NOT_RUN.match(comment) for comment in comments)


def test_the_start_has_code():
    assert all(python_blocks(page) for page in ("README.md", "docs/tutorial.md"))
    assert "make demo" in PAGES["README.md"]
    assert "make test" in PAGES["README.md"]


# -- commands --------------------------------------------------------------------------------------------------


@functools.cache
def options(*words: str) -> frozenset[str]:
    """The options in the --help of a command, such as ("train", "iql")."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        main([*words, "--help"])
    return frozenset(re.findall(r"--[a-z0-9.-]+", out.getvalue()))


@functools.cache
def all_options() -> frozenset[str]:
    methods = [("train", method) for method in METHODS]
    commands = [(command,) for command in COMMANDS if command != "train"] + [("bench", "speed")]
    return frozenset().union(*(options(*words) for words in [*commands, *methods]))


def command_lines(page: str) -> list[list[str]]:
    """The words behind `trajstitch` of every command line in a block without language, or in running text."""
    code = [text for _, language, text, _ in blocks(page) if language in ("", "sh")]
    lines = "".join(code).replace("\\\n", " ").splitlines()
    spans = [span.replace("\n", " ") for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", BLOCK.sub("", PAGES[page]))]
    found = [re.sub(r"\s#.*", "", line).split() for line in [*lines, *spans]]
    return [words[words.index("trajstitch") + 1 :] for words in found if words[:1] == ["trajstitch"] and words[1:]]


@pytest.mark.parametrize("page", [page for page in PAGES if command_lines(page)])
def test_commands_and_their_options_exist(page):
    for command, *rest in command_lines(page):
        if command.startswith("--") or command == "COMMAND":
            assert command in ("--help", "--version", "COMMAND"), (page, command)
            continue
        assert command in COMMANDS, (page, command)
        words = (command,)
        if command == "train" and rest[:1] != ["--help"]:
            method = "bc" if rest[0] in ("METHOD", "…") else rest[0]
            assert method in METHODS, (page, rest)
            words = (command, method)
        if command == "bench" and rest[:1] == ["speed"]:
            words = (command, "speed")
        used = {word.partition("=")[0] for word in rest if word.startswith("--")}
        assert used <= options(*words) | {"--help"}, (page, command, rest)


def test_options_in_running_text_exist():
    """Some command has them."""
    for page, text in PAGES.items():
        for span in re.findall(r"(?<!`)`(--[^`]+)`(?!`)", BLOCK.sub("", text)):
            used = {word for word in span.split() if word.startswith("--")}
            assert used <= all_options() | {"--version", "--strict"}, (page, span)


def test_scripts_exist():
    for page, text in PAGES.items():
        for module in re.findall(r"python -m ([\w.]+)", text):
            path = ROOT / module.replace(".", "/")
            if module not in ("pytest",):
                known = path.with_suffix(".py"), ROOT / "src" / module / "__main__.py"
                assert any(file.exists() for file in known), (page, module)


# -- names -----------------------------------------------------------------------------------------------------

FILE = re.compile(r"[\w/.-]+\.(?:py|sh|md|jsonl?|svg)")
DATA_FILE = re.compile(r".*\.(?:hdf5|h5|npz|npy|traj|html)")
NAME = re.compile(r"(\w+)((?:\.\w+)+)(?:\(.*)?", re.DOTALL)
# By commands, wherever they are.
WRITTEN = {"metrics.jsonl", "config.json", "result.json", "timings.json", "info.json", "audit.json"}
WRITTEN |= {"OUT.left-out.json", "good.npz.left-out.json"}
FOREIGN = {"d4rl.qlearning_dataset"}  # D4RL's own


@functools.cache
def defined() -> dict[str, set[str]]:
    """The names in each module (by its last name) and in each class of the package, those of base classes too."""
    names: dict[str, set[str]] = {}
    bases: dict[str, list[str]] = {}
    for file in PACKAGE.rglob("*.py"):
        module = file.parent.name if file.stem == "__init__" else file.stem
        tree = ast.parse(file.read_text())
        names.setdefault(module, set()).update(_names(tree))
        if file.stem == "__init__":
            names[module] |= {path.stem for path in file.parent.iterdir()}
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                names.setdefault(node.name, set()).update(_names(node))
                bases[node.name] = [base.id for base in node.bases if isinstance(base, ast.Name)]
    for kind in bases:
        for base in bases[kind]:
            names[kind] |= names.get(base, set())
    names["data"] |= names["Dataset"]  # the variable of that name in examples
    return names


def _names(node: ast.Module | ast.ClassDef) -> set[str]:
    found = set()
    for item in node.body:
        if isinstance(item, (ast.FunctionDef, ast.ClassDef)):
            found.add(item.name)
        elif isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            found.add(item.target.id)
        elif isinstance(item, ast.Assign):
            found.update(target.id for target in item.targets if isinstance(target, ast.Name))
    return found


def spans(page: str) -> list[str]:
    return re.findall(r"(?<!`)`([^`\n]+)`(?!`)", BLOCK.sub("", PAGES[page]))


@pytest.mark.parametrize("page", list(PAGES))
def test_files_named_exist(page):
    places = (ROOT, PACKAGE, *{path.parent for path in PACKAGE.rglob("*.py")}, ROOT / "benchmarks")
    for span in spans(page):
        if FILE.fullmatch(span) and span not in WRITTEN:
            assert any((place / span).exists() for place in places), span


@pytest.mark.parametrize("page", list(PAGES))
def test_names_exist_in_the_code(page):
    """`module.name`, `Class.name` and `ts.name`, where the first part is ours."""
    import trajstitch

    known = defined() | {"ts": set(trajstitch.__all__)}
    for span in spans(page):
        found = NAME.fullmatch(span)
        if (
            not found
            or FILE.fullmatch(span)
            or found[1] not in known
            or span in FOREIGN
            or DATA_FILE.fullmatch(span)
        ):
            continue
        path = [found[1], *found[2].split(".")[1:]]
        for owner, name in itertools.pairwise(path):
            assert owner not in known or name in known[owner], span


def test_reference_has_every_public_name():
    import trajstitch

    reference = "".join(text for page, text in PAGES.items() if page.startswith("docs/reference/"))
    shown = {name.rpartition(".")[2] for name in re.findall(r"^::: ([\w.]+)$", reference, re.MULTILINE)}
    shown |= {name.replace("\\", "") for name in re.findall(r"^## (\S+)$", reference, re.MULTILINE)}
    assert set(trajstitch.__all__) <= shown


# -- the site --------------------------------------------------------------------------------------------------


def test_site_builds_without_a_warning_and_without_a_network(tmp_path):
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "https_proxy": "http://127.0.0.1:9"}
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--site-dir",
        str(tmp_path / "site"),
    ]
    made = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 20
    remote = re.compile(r'<(?:script|link|img)[^>]+(?:src|href)="(?:https?:)?//')
    assert not [page for page in pages if remote.search(page.read_text())]

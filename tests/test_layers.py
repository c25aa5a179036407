"""The layers: a package imports only from those after it, and what need not be loaded is not."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import trajstitch

ROOT = Path(trajstitch.__file__).parent
LAYERS = (
    "cli",
    "bench",
    "jobs",
    "report",
    "methods",
    "evaluation",
    "policies",
    "stitching",
    "models",
    "training",
    "formats",
    "storage",
    "core",
)


def layer(module: str) -> str:
    """The package of a module of ours; modules beside the packages are the core."""
    first = module.removeprefix("trajstitch").lstrip(".").partition(".")[0]
    return first if first in LAYERS else "core"


def imports(file: Path) -> list[tuple[int, str]]:
    """Every module of ours that a file imports, anywhere in it; imports for type checkers count too."""
    found = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("trajstitch"):
            found += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names if alias.name.startswith("trajstitch")]
    return found


def upward(file: Path, source: str) -> list[str]:
    """The imports of a file of this layer that point to a layer above it."""
    return [
        f"{file.name}:{line} ({source}) imports {module} ({layer(module)})"
        for line, module in imports(file)
        if LAYERS.index(layer(module)) < LAYERS.index(source)
    ]


def test_no_import_points_upward():
    top = (ROOT / "__init__.py", ROOT / "__main__.py")  # name the public API and start the command line
    files = [file for file in ROOT.rglob("*.py") if file not in top]
    assert len(files) > 60
    wrong = []
    for file in files:
        parts = file.relative_to(ROOT).with_suffix("").parts
        wrong += upward(file, layer(".".join(("trajstitch", *parts))))
    assert wrong == []


def test_an_upward_import_is_found(tmp_path):
    file = tmp_path / "bad.py"
    file.write_text("def f():\n    from trajstitch.jobs.train import train_run\n    import trajstitch.data\n")
    assert upward(file, "models") == ["bad.py:2 (models) imports trajstitch.jobs.train.train_run (jobs)"]
    assert upward(file, "cli") == []


def test_every_part_is_in_the_layout():
    """Of CONTRIBUTING, which names packages, and the modules beside them."""
    text = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text()
    layout = set(re.findall(r"\w+", text.partition("src/trajstitch/\n")[2].partition("```")[0]))
    folders = {folder.name for folder in ROOT.iterdir() if (folder / "__init__.py").exists()}
    assert {*folders, *(file.stem for file in ROOT.glob("[a-z]*.py"))} - layout == set()


def test_every_package_is_a_layer():
    packages = {folder.name for folder in ROOT.iterdir() if (folder / "__init__.py").exists()}
    assert packages == set(LAYERS) - {"core"}


SIMULATORS = "print(sorted({'mujoco', 'gymnasium'} & set(sys.modules)))"


@pytest.mark.parametrize("command", ["inspect", "improve"])
def test_no_simulator_is_loaded(command, hdf5, tmp_path):
    tiny = ["--iterations", "1", "--dynamics.members", "1", "--dynamics.elites", "1"]
    tiny += [f"--{model}.fit.steps=1" for model in ("dynamics", "inverse", "reward", "value")]
    words = [command, str(hdf5), *(["--out", str(tmp_path / "run"), *tiny] if command == "improve" else [])]
    code = f"import sys\nfrom trajstitch.cli import main\nassert main({words!r}) == 0\n{SIMULATORS}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr

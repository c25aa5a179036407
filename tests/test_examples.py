"""Every script in examples/ runs, with tiny sizes."""

import runpy
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

EXAMPLES = sorted((Path(__file__).resolve().parents[1] / "examples").glob("*.py"))
RUN_ALONE = [path for path in EXAMPLES if path.stem != "run_onnx"]  # which tests/policies/test_onnx.py runs


class Linear:
    """Least squares with the methods that an example calls of scikit-learn's network, which is not installed."""

    def __init__(self, hidden_layer_sizes, random_state):
        self.gain = None

    def partial_fit(self, obs, action):
        self.gain = np.linalg.lstsq(obs, action)[0]

    def predict(self, obs):
        return obs @ self.gain


@pytest.fixture
def scikit_learn(monkeypatch):
    stand_in = ModuleType("sklearn.neural_network")
    stand_in.MLPRegressor = Linear
    monkeypatch.setitem(sys.modules, "sklearn", ModuleType("sklearn"))
    monkeypatch.setitem(sys.modules, "sklearn.neural_network", stand_in)


@pytest.mark.parametrize("path", RUN_ALONE, ids=lambda path: path.stem)
@pytest.mark.usefixtures("scikit_learn")
def test_example_runs(path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [path.name, "--quick"])
    runpy.run_path(str(path), run_name="__main__")
    assert "%" in capsys.readouterr().out


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_is_short_and_says_what_it_is(path):
    text = path.read_text()
    assert text.startswith('"""')
    assert text.count("\n") < 70


def test_an_example_without_scikit_learn_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    path = next(path for path in EXAMPLES if path.stem == "clone_elsewhere")
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(path), run_name="__main__")
    assert end.value.code == "this example needs scikit-learn; run pip install scikit-learn"
    assert list(tmp_path.iterdir()) == []


def test_there_are_examples():
    assert len(EXAMPLES) >= 3

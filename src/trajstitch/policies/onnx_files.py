"""ONNX: a policy as a graph that any runtime plays: raw float32 observations [batch, S] to actions [batch, A].

    obs → (obs - mean) / std → MatMul, Add, Relu, … → MatMul, Add → head → action

The scale and the range of actions are inside; the action is the most likely one, so of a Gaussian head only the
mean is left.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import jax
import numpy as np

from trajstitch.data import Info
from trajstitch.errors import InputError
from trajstitch.policies.planner import ActionPlanner
from trajstitch.policies.policy import Policy
from trajstitch.storage.atomic import replacing
from trajstitch.version import __version__

_OPSET, _IR = 17, 8  # old enough for runtimes of 2022


def export_onnx(
    policy: Policy | ActionPlanner,
    target: str | Path,
    *,
    member: int | None = None,
    info: Info | None = None,
    overwrite: bool = False,
) -> None:
    """Write a policy to an ONNX file.

    Arguments:
        policy: the policy; planners have no such graph.
        target: path of the file, which ends in .onnx.
        member: which one of several policies, such as those of several seeds; needed if there are several.
        info: facts to store with it, such as the environment.
        overwrite: whether an existing file may be replaced.
    """
    check_onnx(target)
    one = _single(policy, member)
    onnx = _import_onnx()
    model = _model(onnx, one, {**(info or {}), "made_by": f"trajstitch {__version__}"})
    onnx.checker.check_model(model)
    with replacing(target, overwrite) as part:
        part.write_bytes(model.SerializeToString())


def check_onnx(target: str | Path) -> None:
    """Raise InputError if the name is not one of an ONNX file, or the package is missing."""
    if Path(target).suffix != ".onnx":
        raise InputError(f"{target}: policies are exported as ONNX; give a name that ends in .onnx")
    _import_onnx()


def _import_onnx() -> Any:
    try:
        return importlib.import_module("onnx")
    except ImportError as error:
        raise InputError("exporting needs onnx; run pip install 'trajstitch[onnx]'") from error


def _single(policy: Policy | ActionPlanner, member: int | None) -> Policy:
    """Return the one policy to write."""
    if not isinstance(policy, Policy):
        raise InputError(
            f"a planner ({type(policy).__name__}) plans anew at every step and cannot be exported; clone it: roll "
            "it out with trajstitch collect and train bc on that"
        )
    if policy.count is None:
        if member:
            raise InputError(f"there is one policy, so its number is 0, not {member}")
        return policy
    if policy.count == 1 and member is None:
        member = 0
    if member is None or not 0 <= member < policy.count:
        what = "which is not given" if member is None else f"not {member}"
        raise InputError(
            f"there are {policy.count} policies; choose one by --member 0 to {policy.count - 1} (member= in "
            f"Python), {what}"
        )
    return jax.tree.map(lambda leaf: leaf[member], policy)


def _model(onnx: Any, policy: Policy, notes: Info) -> Any:
    helper, numpy = onnx.helper, onnx.numpy_helper
    nodes: list[Any] = []
    constants: list[Any] = []

    def constant(name: str, value: Any) -> str:
        constants.append(numpy.from_array(np.asarray(value, np.float32), name))
        return name

    def apply(kind: str, *inputs: str, name: str | None = None) -> str:
        output = name or f"{kind.lower()}_{len(nodes)}"
        nodes.append(helper.make_node(kind, list(inputs), [output]))
        return output

    x = apply("Sub", "obs", constant("mean", policy.scale.mean))
    x = apply("Div", x, constant("std", policy.scale.std))
    last = len(policy.net.layers) - 1
    for i, layer in enumerate(policy.net.layers):
        kept = policy.action_dim if i == last else None  # of a Gaussian head the mean, without the log std
        x = apply("MatMul", x, constant(f"weight_{i}", np.asarray(layer.weight)[:kept].T))
        x = apply("Add", x, constant(f"bias_{i}", np.asarray(layer.bias)[:kept]))
        if i < last:
            x = apply("Relu", x) if policy.net.activation == "relu" else apply("Mul", x, apply("Sigmoid", x))
    low, high = np.asarray(policy.range.low), np.asarray(policy.range.high)
    if policy.head == "gaussian":
        x = apply("Max", x, constant("low", low))
        apply("Min", x, constant("high", high), name="action")
    else:
        x = apply("Add", apply("Tanh", x), constant("one", 1))
        x = apply("Mul", x, constant("half", (high - low) / 2))
        apply("Add", x, constant("low", low), name="action")
    floats = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "policy",
        [helper.make_tensor_value_info("obs", floats, ["batch", policy.obs_dim])],
        [helper.make_tensor_value_info("action", floats, ["batch", policy.action_dim])],
        constants,
    )
    opset = [helper.make_opsetid("", _OPSET)]
    model = helper.make_model(graph, producer_name="trajstitch", opset_imports=opset, ir_version=_IR)
    helper.set_model_props(model, {name: str(value) for name, value in notes.items()})
    return model

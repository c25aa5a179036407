"""Play a policy that `trajstitch export` wrote, without trajstitch: onnxruntime, NumPy and Gymnasium are enough.

python examples/run_onnx.py policy.onnx Hopper-v5
"""

import sys

import gymnasium
import numpy as np
import onnxruntime

policy = onnxruntime.InferenceSession(sys.argv[1])
env = gymnasium.make(sys.argv[2])
for episode in range(3):
    (obs, _), total, over = env.reset(seed=episode), 0.0, False
    while not over:
        action = policy.run(None, {"obs": np.array([obs], np.float32)})[0][0]
        obs, reward, ended, cut, _ = env.step(action)
        total, over = total + float(reward), ended or cut
    print(f"episode {episode}: return {total:.0f}")

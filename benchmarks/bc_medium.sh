#!/usr/bin/env bash
# Scores of BC and 10%BC on 300,000 transitions recorded from D4RL's medium policies with D4RL's physics, five seeds:
#     bash benchmarks/bc_medium.sh POLICIES OUT > results/bc_medium.jsonl
# POLICIES holds d4rl-{hopper,halfcheetah,walker2d}-medium-v2.npz. Data and runs are written to OUT.
set -euo pipefail
policies=$1 out=$2
for pair in hopper:Hopper halfcheetah:HalfCheetah walker2d:Walker2d; do
    name=${pair%%:*} env=${pair##*:}-v4
    .venv/bin/trajstitch collect "$policies/d4rl-$name-medium-v2.npz" --env "$env" --physics d4rl --steps 300000 \
        --out "$out/$name-medium.hdf5" --overwrite --json --quiet
    for method in bc percent-bc; do
        .venv/bin/trajstitch train "$method" "$out/$name-medium.hdf5" --out "$out/$name-$method" --seeds 5 \
            --steps 50000 --every 5000 --json --quiet
    done
done

#!/usr/bin/env bash
# All that needs a GPU, in under eight minutes, into one JSON file ($OUT/gpu.json, else experiments/speed/gpu.json):
#   experiments/speed/gpu.sh [--data tinyshakespeare.txt] [--only NAME,...] [--toy]
# Uses $PYTHON (default python3) where its JAX sees a GPU, and fetches nothing then; else makes experiments/speed/.venv.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
python=${PYTHON:-python3}
venv=experiments/speed/.venv
toy=
for argument in "$@"; do [[ $argument == --toy ]] && toy=1; done

sees_gpu() { "$1" -c 'import jax; raise SystemExit(jax.default_backend() != "gpu")' >/dev/null 2>&1; }

if [[ -z $toy ]] && ! sees_gpu "$python"; then
    echo "no GPU seen by the JAX of $python: installing jax[cuda12] into $venv" >&2
    [[ -x $venv/bin/python ]] || "$python" -m venv $venv
    python=$venv/bin/python
    sees_gpu "$python" || "$python" -m pip install -q . 'jax[cuda12]'
    sees_gpu "$python" || { echo "jax[cuda12] is installed and still sees no GPU: is the driver there?" >&2; exit 1; }
fi
exec "$python" -m experiments.speed.gpu "$@"

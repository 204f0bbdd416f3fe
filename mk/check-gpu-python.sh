#!/bin/sh
# The Python package on the GPU, with the JAX and the PyTorch of the machine's own Python. What that lacks is left out,
# and said. The last line is the sum.
#
#   TEST_BUILD=FOLDER [PYTHON=python3] [PYTEST_ARGS=] mk/check-gpu-python.sh
set -u
python=${PYTHON:-python3}
log=$TEST_BUILD/check-gpu-python.log
passed=0 failed=0
export EPX_LIBRARY="$TEST_BUILD/lib/libepx.so" PYTHONPATH=bindings/python PYTHONDONTWRITEBYTECODE=1
# Other tests share the GPU.
export XLA_PYTHON_CLIENT_PREALLOCATE=false JAX_PLATFORMS=cuda

count() { # WORD: the number before it in pytest's last line
    n=$(tail -n 1 "$log" | sed -n "s/.*\b\([0-9][0-9]*\) $1.*/\1/p")
    echo "${n:-0}"
}

# The framework must see a GPU: with a processor alone the tests are those of check-python.
part() { # NAME FILES PROGRAM
    if ! "$python" -c "import pytest; $3" > "$log" 2>&1; then
        echo "left out: epx.$1: $python: $(tail -n 1 "$log")"
        return
    fi
    # shellcheck disable=SC2086  # words
    "$python" -m pytest -q -p no:cacheprovider ${PYTEST_ARGS:-} $2 > "$log" 2>&1
    rc=$?
    cat "$log"
    passed=$((passed + $(count passed))) failed=$((failed + $(count failed) + $(count error)))
    [ $rc -eq 0 ] || [ "$(count failed)" -gt 0 ] || failed=$((failed + 1))
}

tests=bindings/python/tests
part torch "$tests/test_torch.py $tests/test_buffer.py $tests/test_compile.py" 'import torch; torch.ones(1).cuda()'
part jax "$tests/test_jax.py" 'import jax; assert jax.devices()[0].platform == "gpu", "JAX has no GPU"'
rm -f "$log"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]

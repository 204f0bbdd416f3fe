#!/bin/sh
# The Python package on the GPU, with the JAX and the PyTorch of the machine's own Python, side by side: what they wait for
# is compilers. What that Python lacks is left out, and said. The last line is the sum.
#
#   TEST_BUILD=FOLDER [PYTHON=python3] [PYTEST_ARGS=] mk/check-gpu-python.sh
set -u
python=${PYTHON:-python3}
logs=$TEST_BUILD/check-gpu-python
passed=0 failed=0
mkdir -p "$logs" || exit 1
export EPX_LIBRARY="$TEST_BUILD/lib/libepx.so" PYTHONPATH=bindings/python PYTHONDONTWRITEBYTECODE=1
# Other tests share the GPU.
export XLA_PYTHON_CLIENT_PREALLOCATE=false JAX_PLATFORMS=cuda

count() { # LOG WORD: the number before it in pytest's last line
    n=$(tail -n 1 "$1" | sed -n "s/.*\b\([0-9][0-9]*\) $2.*/\1/p")
    echo "${n:-0}"
}

# The framework must see a GPU: with a processor alone the tests are those of check-python. The exit code stays in a file;
# none: it was left out.
part() { # NAME FILES PROGRAM
    rm -f "$logs/$1.end"
    "$python" -c "import pytest; $3" > "$logs/$1.log" 2>&1 || return
    # shellcheck disable=SC2086  # words
    "$python" -m pytest -q -p no:cacheprovider ${PYTEST_ARGS:-} $2 > "$logs/$1.log" 2>&1
    echo $? > "$logs/$1.end"
}

tell() { # NAME
    if [ ! -e "$logs/$1.end" ]; then
        echo "left out: epx.$1: $python: $(tail -n 1 "$logs/$1.log")"
        return
    fi
    cat "$logs/$1.log"
    bad=$(($(count "$logs/$1.log" failed) + $(count "$logs/$1.log" error)))
    [ "$(cat "$logs/$1.end")" -eq 0 ] || [ $bad -gt 0 ] || bad=1
    passed=$((passed + $(count "$logs/$1.log" passed))) failed=$((failed + bad))
}

tests=bindings/python/tests
part torch "$tests/test_torch.py $tests/test_buffer.py $tests/test_compile.py" 'import torch; torch.ones(1).cuda()' &
part jax "$tests/test_jax.py" 'import jax; assert jax.devices()[0].platform == "gpu", "JAX has no GPU"' &
wait
tell torch
tell jax
rm -rf "$logs"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]

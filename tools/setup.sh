#!/bin/bash
# Installs the packages that a make target needs, on Debian and Ubuntu, and elsewhere says what is missing.
#
#   tools/setup.sh build|demo|check|lint|model|aarch64|rdma|ci
#   tools/setup.sh python FOLDER       a Python of its own in FOLDER, with JAX and what the tests of bindings/ need
#   tools/setup.sh torch FOLDER        PyTorch into that Python, if pip brings it within four minutes
#
# Says nothing and touches no network when all is there. Elsewhere, or without the right to install, prints the one
# line to run and exits 1; for demo a missing OpenBLAS is no error, because a plain C product stands in.
set -u
what=${1:-check}

# Frameworks are fetched by pip, into a folder of the build.
if [ "$what" = python ]; then
    python=$2/bin/python
    "$python" -c 'import jax, mypy, pytest' 2> /dev/null && exit 0
    echo "setup: JAX, pytest and mypy into $2"
    python3 -m venv "$2" && "$python" -m pip install -q --disable-pip-version-check jax pytest mypy && exit 0
    echo "setup: no Python with JAX in $2; where pip finds them: $python -m pip install jax pytest mypy" >&2
    exit 1
fi

# What needs it is left out where it is missing.
if [ "$what" = torch ]; then
    python=$2/bin/python
    "$python" -c 'import torch' 2> /dev/null && exit 0
    echo "setup: PyTorch into $2"
    timeout 240 "$python" -m pip install -q --disable-pip-version-check torch && exit 0
    echo "setup: no PyTorch in $2: pip has not brought it within 240 s, so tests of torch.compile are skipped"
    exit 0
fi

# One need per line: package, how to see that it is there (a program, a header for the C compiler, a name of
# pkg-config's), which targets.
needs() {
    cat <<'END'
gcc               program cc                     build demo check ci
make              program make                   build demo check ci
libc6-dev         header  stdio.h                build demo check ci
libopenblas-dev   header  cblas.h                demo check ci
libcriterion-dev  header  criterion/criterion.h  check ci
libhwloc-dev      header  hwloc.h                check ci
libibverbs-dev    header  infiniband/verbs.h     check ci
libucx-dev        header  ucp/api/ucp.h          check ci
libpmix-dev       pkg     pmix                   check ci
openmpi-bin       program mpirun                 check ci
locales           file    /usr/share/i18n/locales/de_DE  ci
pkg-config        program pkg-config             check ci
clang-format      program clang-format           lint ci
python3           program python3                lint ci
spin              program spin                   model ci
clang             program clang                  ci
gcc-aarch64-linux-gnu  program aarch64-linux-gnu-gcc  aarch64 ci
libc6-dev-arm64-cross  file    /usr/aarch64-linux-gnu/include/stdio.h  aarch64 ci
qemu-user         program qemu-aarch64           aarch64 ci
qemu-system-x86   program qemu-system-x86_64     rdma
busybox-static    file    /bin/busybox           rdma
cpio              program cpio                   rdma
iproute2          program rdma                   rdma
ibverbs-providers file    /etc/libibverbs.d/rxe.driver  rdma
libibverbs-dev    header  infiniband/verbs.h     rdma
g++               program c++                    ci
slurmctld         file    /usr/sbin/slurmctld    ci
slurmd            file    /usr/sbin/slurmd       ci
slurm-client      program srun                   ci
python3-torch     module  torch                  ci
python3-pytest    module  pytest                 ci
END
}

there() {
    case $1 in
    program) command -v "$2" > /dev/null ;;
    pkg) pkg-config --exists "$2" 2> /dev/null ;;
    module) /usr/bin/python3 -c "import importlib.util as u, sys; sys.exit(u.find_spec('$2') is None)" 2> /dev/null ;;
    file) [ -e "$2" ] ;;
    header) printf '#include <%s>\n' "$2" | "${CC:-cc}" -E -x c - > /dev/null 2>&1 ;;
    esac
}

missing=()
while read -r package kind name targets; do
    case " $targets " in *" $what "*) ;; *) continue ;; esac
    there "$kind" "$name" || missing+=("$package")
done < <(needs)
[ ${#missing[@]} -gt 0 ] || exit 0

as_root=()
[ "$(id -u)" = 0 ] || as_root=(sudo -n)
command="apt-get install -y --no-install-recommends ${missing[*]}"

# The lists of packages are fetched only if installing from those at hand does not work.
install() {
    command -v apt-get > /dev/null && { [ ${#as_root[@]} = 0 ] || "${as_root[@]}" true 2> /dev/null; } || return 1
    echo "setup: installing ${missing[*]}"
    local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq)
    local again=(install -y --no-install-recommends "${missing[@]}")
    "${apt[@]}" "${again[@]}" < /dev/null > /dev/null 2>&1 && return 0
    "${apt[@]}" update < /dev/null > /dev/null && "${apt[@]}" "${again[@]}" < /dev/null > /dev/null
}

install && exit 0
if [ "$what" = demo ] && [ "${missing[*]}" = libopenblas-dev ]; then
    echo 'setup: OpenBLAS is missing, so plain C products are used; the demo takes longer'
    exit 0
fi
echo "setup: missing for '$what': ${missing[*]}; please run: sudo $command" >&2
exit 1

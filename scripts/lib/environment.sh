# Sourced by the scripts of this repository: makes the virtual environments that they run in.
#
# An environment is built anew when what it was built from has changed, so that it never keeps a package
# that is no longer asked for; otherwise it is used as it is.

root=$(CDPATH="" cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd -P)
constraints=$root/scripts/constraints.txt

die() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit 1
}

# Sets `python` to the interpreter that environments are made from: $PYTHON, else the first that is new enough.
find_python() {
    local candidate candidates=(python3.11 python3)
    [[ -z ${PYTHON:-} ]] || candidates=("$PYTHON")
    for candidate in "${candidates[@]}"; do
        # The base interpreter, since an activated environment may be the one about to be replaced.
        python=$("$candidate" -c 'import sys
if sys.version_info >= (3, 11): print(getattr(sys, "_base_executable", sys.executable))' 2>/dev/null) || continue
        [[ -z $python ]] || return 0
    done
    die "Python 3.11 or newer is needed; tried: ${candidates[*]}. Set PYTHON to such an interpreter."
}

# Debian ships ensurepip apart, and `python -m venv` fails without it.
ensure_venv_module() {
    "$python" -c 'import ensurepip, venv' 2>/dev/null && return
    local package
    package=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
    [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null ||
        die "$python cannot make virtual environments; install $package, or uv."
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y "$package"; } >&2 </dev/null
}

# Sets `uv` to the one on PATH, else to one installed into an environment of its own, .venv-uv.
find_uv() {
    uv=$(command -v uv) && return
    uv=$root/.venv-uv/bin/uv
    "$uv" --version >/dev/null 2>&1 && return
    ensure_venv_module
    "$python" -m venv --clear "$root/.venv-uv"
    "$root/.venv-uv/bin/python" -m pip install --quiet --constraint "$constraints" uv </dev/null
}

# use_environment FOLDER [GROUP ...]: activates FOLDER, with all distributions of this repository and the dependency groups.
use_environment() {
    local venv=$root/$1 group store options=() stamp lock
    # Two scripts that start at once must not build the same environment into each other.
    exec {lock}>"$root/.venv-lock"
    ! command -v flock >/dev/null || flock "$lock"
    for store in "$root"/stores/*/; do options+=(--editable "$store"); done
    for group in "${@:2}"; do options+=(--group "$group"); done
    stamp=$(printf '%s\n' "$root" "${PYTHON:-}" "$@" |
        cat - "$root/pyproject.toml" "$root"/stores/*/pyproject.toml "$constraints" "${BASH_SOURCE[0]}" | cksum)
    if [[ ! -x $venv/bin/python || $(cat "$venv/stamp" 2>/dev/null) != "$stamp" ]]; then
        find_python
        find_uv
        "$uv" venv --quiet --clear --no-project --python "$python" "$venv" || exit
        (cd "$root" && "$uv" pip install --quiet --python "$venv/bin/python" --constraint "$constraints" \
            --editable . "${options[@]}") || exit
        printf '%s\n' "$stamp" >"$venv/stamp"
    fi
    exec {lock}>&-
    export VIRTUAL_ENV=$venv PATH=$venv/bin:$PATH
    unset PYTHONHOME
}

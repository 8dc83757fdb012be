# Sourced by the scripts of this repository, in an environment of theirs: brings the servers that the tests start.

# Prints the Debian packages of the servers that cannot be started here.
missing_packages() {
    python -c 'from timeline_trio.testing.servers import missing_servers
print(*(each.packages for each in missing_servers()))'
}

# Installs what is missing where that is possible: on Debian and its like, as root. A service of these packages that
# is not running now will not be started.
install_servers() {
    local packages lock
    exec {lock}>"$root/.venv-lock" # two scripts that start at once must not both stand in for the policy
    ! command -v flock >/dev/null || flock "$lock"
    read -ra packages < <(missing_packages)
    if ((${#packages[@]})) && [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
        (
            policy=/usr/sbin/policy-rc.d
            if [[ ! -e $policy ]]; then
                trap 'rm -f "$policy"' EXIT
                printf '#!/bin/sh\nexit 101\n' >"$policy"
                chmod 755 "$policy"
            fi
            export DEBIAN_FRONTEND=noninteractive
            apt-get update -qq &&
                apt-get install -qq -y --no-install-recommends -o DPkg::Lock::Timeout=300 "${packages[@]}"
        ) >&2 </dev/null || printf '%s: could not install %s\n' "${0##*/}" "${packages[*]}" >&2
    fi
    exec {lock}>&-
}

# Says what could not be tried here.
report_missing_servers() {
    python -c 'from timeline_trio.testing.servers import missing_servers
for each in missing_servers():
    print("NOT TESTED, since a server is missing:", each)' >&2
}

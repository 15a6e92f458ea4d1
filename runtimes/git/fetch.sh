# Checks a commit out to /work/tree and writes its id to /work/commit: FRE_COMMIT,
# or else what FRE_REF names at FRE_URL, or else its HEAD.
# FRE_PROXY, if it is set, is the one way out: http://USER:PASSWORD@HOST:PORT.
set -eu
cd /work
if [ -n "${FRE_PROXY:-}" ]; then
	unset no_proxy NO_PROXY
	git config --file "$GIT_CONFIG_GLOBAL" http.proxy "$FRE_PROXY"
	login=${FRE_PROXY#http://} # ssh has no option for an HTTP proxy
	at=${login#*@}
	GIT_SSH_COMMAND="$GIT_SSH_COMMAND -o 'ProxyCommand=socat - PROXY:${at%:*}:%h:%p,proxyport=${at##*:},proxyauth=${login%@*}'"
fi
git init -q -b fetched repository
cd repository
git remote add origin "$FRE_URL"
want=${FRE_COMMIT:-${FRE_REF:-HEAD}}
if ! git fetch -q --depth 1 --no-tags origin "$want"; then
	[ -n "$FRE_COMMIT" ] || exit 1
	# A server that gives commits by their names only.
	git fetch -q --no-tags origin "${FRE_REF:-HEAD}"
fi
commit=$(git rev-parse --verify -q "${FRE_COMMIT:-FETCH_HEAD}^{commit}") || {
	echo "$want is no commit at what ${FRE_REF:-HEAD} names" >&2
	exit 1
}
git checkout -q "$commit"
if [ -n "${FRE_SUBMODULES:-}" ]; then
	git submodule --quiet update --init --recursive --depth 1
fi
time=$(git log -1 --format=%ct)
cd ..
find repository -name .git -prune -exec rm -rf {} +
find repository -exec touch -h -d "@$time" {} +
mv repository tree
echo "$commit" >commit

#!/usr/bin/env bash
# Build deploy/Containerfile on a base of Debian's own, start it, index the example photographs in it and search: `make container`.
#
# Needs buildah and debootstrap (both are Debian packages) and root; where they are missing it says so and tries nothing.
# The base is kept as localhost/tessera-base for the next run, the image as localhost/tessera. No registry is asked.
set -euo pipefail
cd "$(dirname "$0")/.."

for tool in buildah debootstrap; do
  command -v $tool >/dev/null || { echo "no $tool: the container is not tried (apt-get install buildah debootstrap)"; exit 0; }
done
[ "$(id -u)" = 0 ] || { echo "not root: the container is not tried"; exit 0; }

export BUILDAH_ISOLATION=${BUILDAH_ISOLATION:-chroot}  # needs no control groups
port=${PORT:-18642} work=$(mktemp -d) service="" container=""
finish() {
  if [ -n "$service" ]; then kill "$service" 2>/dev/null || true; wait "$service" 2>/dev/null || true; fi
  if [ -n "$container" ]; then buildah rm "$container" >/dev/null; fi
  rm -rf "$work"
}
trap finish EXIT

if ! buildah inspect --type image localhost/tessera-base >/dev/null 2>&1; then
  debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates bookworm "$work/base" >"$work/base.log" ||
    { tail -n 5 "$work/base.log"; exit 1; }
  base=$(buildah from scratch)
  cp -a "$work/base/." "$(buildah mount "$base")/"
  buildah commit --rm --quiet "$base" localhost/tessera-base >/dev/null
fi
# This machine's certificates: behind a proxy they are what makes the package index answer.
buildah bud --quiet --format docker --network host --volume /etc/ssl/certs:/etc/ssl/certs:ro \
  --build-arg BASE=localhost/tessera-base -f deploy/Containerfile -t localhost/tessera . >"$work/build.log" 2>&1 ||
  { tail -n 20 "$work/build.log"; exit 1; }

container=$(buildah from localhost/tessera)
inside() { buildah run --network host --volume "$PWD/examples/photos:/photos:ro" "$container" "$@"; }
[ "$(inside id -u)" = 8642 ] || { echo "the container does not run as its own user"; exit 1; }
inside tessera index /photos/views/table
# Its own process group's leader is buildah: it hands SIGTERM on.
buildah run --network host --env TESSERA_KEY=tried --env TESSERA_SERVE_PORT="$port" "$container" tessera serve \
  2>"$work/service.log" &
service=$!
ask() { python3 - "$1" "$port" <<'PYTHON'
import json, sys, urllib.request
address = urllib.request.Request(f"http://127.0.0.1:{sys.argv[2]}{sys.argv[1]}", headers={"Authorization": "Bearer tried"})
print(json.dumps(json.load(urllib.request.urlopen(address, timeout=60))))
PYTHON
}
for _ in $(seq 120); do ask /ready >/dev/null 2>&1 && break; sleep 1; done
ask /ready
found=$(ask "/api/images/1/search?k=3")
echo "$found" | python3 -c '
import json, sys
hits = json.load(sys.stdin)["results"]
assert len(hits) == 3 and hits[0]["id"] == 1, hits
print("built, started, indexed and searched:", ", ".join(hit["name"] for hit in hits))'

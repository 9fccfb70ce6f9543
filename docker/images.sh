#!/bin/sh
# Builds the images with podman or docker: images.sh [IMAGE...]. REPOSITORY, TAG, BASE and BUILD_FLAGS say how.
set -eu
cd "$(dirname "$0")/.."

engine=${ENGINE:-}
for known in podman docker; do
    if [ -z "$engine" ] && command -v "$known" > /dev/null 2>&1 && "$known" info > /dev/null 2>&1; then
        engine=$known
    fi
done
if [ -z "$engine" ]; then
    echo "images: neither podman nor docker works here; install one of them" >&2
    exit 1
fi

repository=${REPOSITORY:-memplane}
tag=${TAG:-$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)}
revision=$(git rev-parse HEAD 2> /dev/null || echo unknown)
[ $# -gt 0 ] || set -- gateway embedding retrieval maintenance stores

for image in "$@"; do
    # BUILD_FLAGS is a list of words: proxies, certificates, a runtime.
    # shellcheck disable=SC2086
    "$engine" build --file docker/Dockerfile --target "$image" --tag "$repository-$image:$tag" \
        --build-arg VERSION="$tag" --build-arg REVISION="$revision" ${BASE:+--build-arg BASE="$BASE"} ${BUILD_FLAGS:-} .
done

echo
for image in "$@"; do
    size=$("$engine" image inspect --format '{{.Size}}' "$repository-$image:$tag")
    echo "$repository-$image:$tag  $((size / 1000000)) MB"
done
if command -v syft > /dev/null 2>&1; then
    mkdir -p build/sbom
    for image in "$@"; do
        "$engine" save --format docker-archive -o "build/sbom/$image.tar" "$repository-$image:$tag"
        syft "docker-archive:build/sbom/$image.tar" -o "spdx-json=build/sbom/$image.spdx.json" > /dev/null
        rm "build/sbom/$image.tar"
    done
    echo "bills of materials: build/sbom"
else
    echo "NO BILL OF MATERIALS: syft is not installed; make images brings it"
fi

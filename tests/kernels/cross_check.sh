#!/bin/sh
# Builds the kernels for what Python cannot load here, and runs cross_check.cpp on them:
#   wide     vectors and packing as with AVX-512 and its bf16, without their instructions, on this processor
#   aarch64  NEON and its dot products, by Debian's g++-aarch64-linux-gnu under qemu-user
# A part whose tools are missing is skipped. Leaves nothing behind.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
native=$here/../../kernels/cpu/native
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
flags="-std=c++17 -O2 -ffp-contract=off -fno-exceptions -fno-rtti -Wall -Wextra -Wno-psabi -I$native"
common="main team ops plan tape"

build() {  # build COMPILER NAME "DEFINES" SOURCE=FLAGS...
  compiler=$1 name=$2 defines=$3
  shift 3
  objects=
  for source in $common; do
    $compiler $flags $defines -c "$native/$source.cpp" -o "$work/$name-$source.o"
    objects="$objects $work/$name-$source.o"
  done
  for pair in "$@"; do
    source=${pair%%=*}
    $compiler $flags ${pair#*=} -c "$native/$source.cpp" -o "$work/$name-$source.o"
    objects="$objects $work/$name-$source.o"
  done
  $compiler $flags $defines -static -pthread "$here/cross_check.cpp" $objects -o "$work/$name"
}

if command -v g++ >/dev/null && [ "$(uname -m)" = x86_64 ]; then
  build g++ wide -DPALMETTE_WIDE "level_portable=-DPALMETTE_WIDE -U__SSE2__ -Wno-array-bounds -Wno-maybe-uninitialized"
  echo "wide:"
  "$work/wide"
else
  echo "wide: skipped, it wants g++ on x86-64"
fi

if command -v aarch64-linux-gnu-g++ >/dev/null && command -v qemu-aarch64 >/dev/null; then
  build aarch64-linux-gnu-g++ aarch64 -DPALMETTE_HAVE_DOTPROD level_portable= level_dotprod=-march=armv8.2-a+dotprod
  echo "aarch64:"
  qemu-aarch64 -cpu max "$work/aarch64"
else
  echo "aarch64: skipped, it wants g++-aarch64-linux-gnu and qemu-user"
fi

#!/usr/bin/env bash
# Tries an installed kjax on two of scikit-image's photographs. Run it outside of a checkout.
set -euo pipefail

home=$(python -c 'import kjax; print(kjax.__path__[0])')
case $home in
  */site-packages/kjax) ;;
  *) echo "this is not an installed kjax: $home" && exit 1 ;;
esac
test -f "$home/py.typed"
kjax --version
kjax info best >/dev/null
photographs=$(python -c 'import skimage.data; print(skimage.data.data_dir)')
kjax match "$photographs/motorcycle_left.png" "$photographs/motorcycle_right.png" \
  --geometry fundamental --keypoints 500 --out matches.html --save matches.npz
test -s matches.html && test -s matches.npz

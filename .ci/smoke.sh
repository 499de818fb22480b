#!/usr/bin/env bash
# Tries an installed kjax: matches two of scikit-image's photographs, trains, evaluates, exports. Run it outside of a checkout.
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
kjax train --config smoke --out run
kjax eval run rootsift --out evaluation
test -s evaluation/report.html
kjax export best --out d.onnx
test -s d.onnx

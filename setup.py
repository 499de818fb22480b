"""Put configs/ into built packages as kjax/configs; pyproject.toml has everything else."""

import sys

from setuptools import find_namespace_packages, setup

folders = {} if "editable_wheel" in sys.argv else {"kjax.configs": "configs"}
setup(packages=[*find_namespace_packages(include=["kjax*"]), *folders], package_dir=folders)

# Remembers where the tree is that the package is installed from, so that a library built there by `make` is found.
# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

TREE = Path(__file__).resolve().parent.parent.parent


class BuildAndRemember(build_py):
    def run(self) -> None:
        super().run()
        if (TREE / "include" / "epx" / "epx.h").is_file():
            note = Path(self.build_lib) / "epx" / "tree.txt"
            note.parent.mkdir(parents=True, exist_ok=True)
            note.write_text(f"{TREE}\n", encoding="utf-8")


setup(cmdclass={"build_py": BuildAndRemember})

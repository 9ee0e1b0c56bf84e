"""Build the native code into the wheel where there is a C compiler; without one, the package is complete but slower."""

from __future__ import annotations

import runpy

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel

native = runpy.run_path("lakebed/ingest/native/build.py")
is_built = native["main"]() == 0


class Wheel(bdist_wheel):
    """The library is for one platform, but for every Python: it uses nothing of Python's."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.root_is_pure = not is_built

    def get_tag(self) -> tuple[str, str, str]:
        return ("py3", "none", super().get_tag()[2])


setup(cmdclass={"bdist_wheel": Wheel})

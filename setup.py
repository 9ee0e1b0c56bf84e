"""Build the native code into the wheel where there is a C compiler; without one, the package is complete but slower."""

from __future__ import annotations

import runpy

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel

native = runpy.run_path("lakebed/decode/native/build.py")
is_built = native["main"]() == 0


class Package(Distribution):
    """With native code, the package is for one platform, and is at the root of its wheel as such."""

    def has_ext_modules(self) -> bool:
        return is_built


class Wheel(bdist_wheel):
    """The library is for one platform, but for every Python: it uses nothing of Python's."""

    def get_tag(self) -> tuple[str, str, str]:
        return ("py3", "none", super().get_tag()[2])


setup(distclass=Package, cmdclass={"bdist_wheel": Wheel})

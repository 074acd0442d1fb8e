"""Builds the machine code of the kernels into the wheel, where it can; all else is in setup.cfg.

Without it (no C compiler, or JAXCOLL_MACHINE_CODE=0 in the environment) the package is the same,
and first answers take up to half a minute more: kernels run as Python, or Numba compiles them.
"""

import os
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent


class BuildMachineCode(build_ext):
    """Numba compiles the library, in a process that imports the package as it stands here."""

    def build_extension(self, ext: Extension) -> None:
        folder = Path(self.get_ext_fullpath(ext.name)).resolve().parent
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "jaxcoll.numerics.build_machine_code", folder]
        variables = dict(os.environ)
        if sys.platform == "linux":  # without symbols, which nobody debugs: 1.3 MB instead of 2.0
            variables["LDFLAGS"] = f"{variables.get('LDFLAGS', '')} -Wl,-s".strip()
        done = subprocess.run(
            command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False
        )
        sys.stderr.write(done.stderr)
        if done.returncode:
            why = done.stderr.strip().rpartition("\n")[2]
            self.warn(f"no machine code of kernels, so first answers take longer: {why}")


machine_code = Extension("jaxcoll.numerics._machine_code", sources=[], optional=True)
setup(
    ext_modules=[] if os.environ.get("JAXCOLL_MACHINE_CODE") == "0" else [machine_code],
    cmdclass={"build_ext": BuildMachineCode},
)

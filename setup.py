"""Builds machine code into the wheel, where it can; all else is in setup.cfg.

That is the code of the kernels, and the player of schedules (jaxcoll/execute/links). Without them
(no C or C++ compiler, or JAXCOLL_MACHINE_CODE=0 in the environment) the package is the same, first
answers take up to half a minute more, since kernels run as Python or Numba compiles them, and
lowering="links" is refused.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent


class BuildMachineCode(build_ext):
    def build_extension(self, ext: Extension) -> None:
        folder = Path(self.get_ext_fullpath(ext.name)).resolve().parent
        folder.mkdir(parents=True, exist_ok=True)
        if ext.name == player.name:
            # Its file is named after a version: setuptools would not find it to copy it here.
            self.build_player(ROOT / "jaxcoll/execute/links" if self.editable_mode else folder)
        else:
            self.build_kernels(folder)

    def build_kernels(self, folder: Path) -> None:
        """Numba compiles the library, in a process that imports the package as it stands here."""
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

    def build_player(self, folder: Path) -> None:
        """The package cannot be imported where it is built: its module is loaded by its path."""
        spec = importlib.util.spec_from_file_location(
            "build_player", ROOT / "jaxcoll/execute/links/build.py"
        )
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        try:
            module.build(folder)
        except RuntimeError as error:
            self.warn(f'no player of schedules, so no lowering "links": {error}')


machine_code = Extension("jaxcoll.numerics._machine_code", sources=[], optional=True)
player = Extension("jaxcoll.execute.links._player", sources=[], optional=True)
is_off = os.environ.get("JAXCOLL_MACHINE_CODE") == "0"
setup(
    ext_modules=[] if is_off else [machine_code, player],
    cmdclass={"build_ext": BuildMachineCode},
)

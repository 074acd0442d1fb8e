"""XLA's flags for programs that run once: imported before JAX, so without any other import."""


def cpu_devices(count: int) -> str:
    """Flags for a number of CPU devices, whose programs LLVM compiles without optimizing them.

    It takes a quarter to a half of the seconds of what compiles and runs once.
    """
    return (
        f"--xla_force_host_platform_device_count={count} "
        "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    )

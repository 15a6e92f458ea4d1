"""Reports the sandbox's limits, because the kernel reports the host's. The limits are in
the function's environment, which a parked interpreter gets late: read at each call."""

import os
import posix

CPUS = {os.sysconf_names[n] for n in ("SC_NPROCESSORS_ONLN", "SC_NPROCESSORS_CONF")}
PAGES, FREE_PAGES = (os.sysconf_names[n] for n in ("SC_PHYS_PAGES", "SC_AVPHYS_PAGES"))


def limit(name):
    try:
        return int(os.environ[name])
    except (KeyError, ValueError):
        return 0


def cpu_count():
    return limit("FRE_CPUS") or posix.cpu_count()


def sysconf(name, /):
    number = os.sysconf_names.get(name, name)
    memory = limit("FRE_MEMORY_BYTES") // posix.sysconf("SC_PAGE_SIZE")
    if number in CPUS:
        return cpu_count()
    if number == PAGES and memory:
        return memory
    if number == FREE_PAGES and memory:
        with open("/proc/self/statm") as f:
            return max(0, memory - int(f.read().split()[1]))
    return posix.sysconf(name)

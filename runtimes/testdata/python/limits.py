import multiprocessing
import os
from concurrent.futures import ThreadPoolExecutor


def handle(event, context):
    return [
        os.cpu_count(),
        multiprocessing.cpu_count(),
        os.sysconf("SC_NPROCESSORS_ONLN"),
        os.sysconf(os.sysconf_names["SC_NPROCESSORS_CONF"]),
        ThreadPoolExecutor()._max_workers - 4,
        os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        0 < os.sysconf("SC_AVPHYS_PAGES") < os.sysconf("SC_PHYS_PAGES"),
    ]

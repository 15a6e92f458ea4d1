require "etc"

def handle(event, context)
  [
    Etc.nprocessors,
    Etc.sysconf(Etc::SC_NPROCESSORS_ONLN),
    Etc.sysconf(Etc::SC_PHYS_PAGES) * Etc.sysconf(Etc::SC_PAGESIZE),
    Etc.sysconf(Etc::SC_AVPHYS_PAGES).between?(1, Etc.sysconf(Etc::SC_PHYS_PAGES)),
  ]
end

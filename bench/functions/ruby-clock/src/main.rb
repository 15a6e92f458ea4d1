def handle(event, context)
  Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond).to_s
end

def fail_here
  raise ArgumentError, "at import"
end

fail_here

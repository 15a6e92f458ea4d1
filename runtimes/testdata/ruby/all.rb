def echo(event, context)
  [201, { "X-Path" => event.path, "x-many" => %w[a b] }, event.body]
end

def describe(event, context)
  {
    method: event.method, path: event.path, query: event.query, header: event.headers["X-Twice"], text: event.text,
    function: context.function, id: context.id, tenant: context.tenant, deadline: context.deadline,
    left: context.remaining.positive?,
  }
end

def text(event, context) = "grüße"
def data(event, context) = "\x00\xff".b
def nothing(event, context) = nil
def array(event, context) = [1, "two", nil]
def json_in(event, context) = { "sum" => event.json.sum }
def object_form(event, context) = { status: 203, headers: { a: "b" }, body: { x: 1 } }
def raises(event, context) = raise(ArgumentError, "no such thing")

def raises_cause(event, context)
  raises(event, context)
rescue ArgumentError
  raise "outer"
end

def unserialisable(event, context) = { x: Float::NAN }
def wrong_type(event, context) = Object.new
def bad_status(event, context) = [99, {}, ""]
def bad_header(event, context) = [200, { a: "b\r\nc: d" }, ""]
def many_headers(event, context) = [200, [%w[a b]] * 300, ""]
def big_headers(event, context) = [200, { a: "b" * (300 << 10) }, ""]
def stream(event, context) = Enumerator.new { |y| 5.times { |i| y << "part #{i}\n" } }
def stream_status(event, context) = [202, { "content-type" => "text/x" }, Enumerator.new { |y| 30.times { y << "x" * 100_000 } }]
def stream_nothing(event, context) = Enumerator.new { |y| }
def readable(event, context) = IO.popen(["/bin/echo", "-n", "ab"])

def stream_raises(event, context)
  Enumerator.new do |y|
    y << "begun"
    raise ArgumentError, "in the middle"
  end
end

def stream_raises_first(event, context)
  Enumerator.new { |y| raise ArgumentError, "at first" }
end

def stream_wrong(event, context) = ["begun", 7].each

def endless(event, context)
  Enumerator.new do |y|
    loop { y << "x" * 10_000 }
  ensure
    $stderr.puts "put away"
  end
end

def logs(event, context)
  context.logger.debug("d")
  context.logger.info("i %d", 7)
  context.logger.warning("w")
  context.logger.error("e")
  "ok"
end

def prints(event, context)
  puts "to stdout"
  warn "to stderr"
  "ok"
end

def children(event, context) = IO.popen(["/bin/sh", "-c", "readlink /proc/self/fd/3 || echo none"], close_others: false, &:read)

MEETING = Thread::Mutex.new
MET = Thread::ConditionVariable.new
$there = 0

# Returns once eight events run at once.
def concurrent(event, context)
  MEETING.synchronize do
    round = $there / 8
    $there += 1
    MET.broadcast if $there % 8 == 0
    MET.wait(MEETING) while $there / 8 == round
  end
  event.body
end

def recursion(event, context) = recursion(event, context)
def memory(event, context) = raise(NoMemoryError, "failed to allocate memory")
def leaves(event, context) = exit(3)
def throws(event, context) = throw(:nobody_catches)
def ends_thread(event, context) = Thread.current.kill
def dies(event, context) = exit!(3)

def forks(event, context)
  pid = fork or return "child"
  Process.wait(pid)
  "parent"
end

def waits(event, context)
  context.logger.info("waiting")
  sleep
end

def gems(event, context)
  before = $LOADED_FEATURES.grep(/rubygems\.rb$/).size
  begin
    require "no/such/gem"
  rescue LoadError => e
    missing = e.message
  end
  [before, missing, Gem::Version.new("1.10") > Gem::Version.new("1.9"), respond_to?(:gem, true)]
end

def surroundings(event, context)
  {
    env: ENV.to_h, cwd: Dir.pwd, argv: [$0, *ARGV, Object.constants.size.to_s],
    path: $LOAD_PATH.map { |p| File.basename(p) }, hour: Time.at(0).hour, child: IO.popen("/usr/bin/env", &:read),
  }
end

module Outer
  def self.handle(event, context) = "module"

  class Inner
    def count(event, context) = (@n = (@n || 0) + 1).to_s
  end
end

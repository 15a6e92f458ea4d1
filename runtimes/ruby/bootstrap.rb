# frozen_string_literal: true

# FRE's Ruby bootstrap: loads the handler and speaks the channel protocol
# (docs/protocol.md) on file descriptor 3.
#
#	ruby --disable=gems bootstrap.rb file.method
#	ruby --disable=gems bootstrap.rb               parks: the engine names the function later
#
# What every start pays for is small: RubyGems, which takes longer than the rest
# of an interpreter's start, comes with the first thing that asks for it.

require "etc"
require "json"

module FRE
  READY, FAILED, INVOKE, RESPONSE, DATA, ERROR, CANCEL, WINDOW, LOG, STOP, PARKED, LOAD = *1..12
  MORE = 1
  MAX_PAYLOAD = 1 << 20
  MAX_META = 256 << 10
  MAX_HEADERS = 256
  FULL_WINDOW = 256 << 10
  GRANT = 128 << 10 # bytes of a request body taken before the window is opened again
  FIRST = 256 << 10 # bytes of an answer that go along in RESPONSE
  NAMED = 0x21 # FILE: the answer is in a file whose name follows
  PIECE = 64 << 10 # bytes read at once of an IO that is an answer's body
  EXIT_PROTOCOL = 70 # EX_SOFTWARE of sysexits.h
  HEADER = "L<CCS<Q<"

  # One request. body: binary String; text: the same as UTF-8; headers: Headers;
  # method, path, raw_query: String; query: parameter => array of values.
  class Event
    attr_reader :body, :headers, :method, :path, :raw_query

    def initialize(meta, body)
      @body = body
      @headers = Headers.new(meta["headers"] || [])
      @method = meta["method"] || ""
      @path = meta["path"] || ""
      @raw_query = meta["query"] || ""
    end

    def query
      @query ||= @raw_query.split("&").each_with_object({}) do |pair, query|
        next if pair.empty?

        name, value = pair.split("=", 2)
        (query[unescape(name)] ||= []) << unescape(value || "")
      end
    end

    def text
      @body.dup.force_encoding(Encoding::UTF_8)
    end

    def json
      JSON.parse(text)
    end

    private

    def unescape(s)
      s.b.tr("+", " ").gsub(/%\h\h/) { |c| c[1, 2].hex.chr }.force_encoding(Encoding::UTF_8).scrub
    end
  end

  # Request headers by lower-case name; look-ups ignore case. The values of a field
  # that came more than once are joined with ", "; all() has them one by one.
  class Headers < Hash
    attr_reader :pairs

    def initialize(pairs)
      super()
      @pairs = pairs
      pairs.each do |name, value|
        name = name.downcase
        store(name, key?(name) ? "#{self[name]}, #{value}" : value)
      end
    end

    def [](name)
      super(name.downcase)
    end

    def key?(name)
      super(name.downcase)
    end

    def fetch(name, ...)
      super(name.downcase, ...)
    end

    def all(name)
      @pairs.filter_map { |n, v| v if n.casecmp?(name) }
    end
  end

  # What the engine says about one event. deadline: seconds since 1970.
  class Context
    attr_reader :function, :id, :tenant, :deadline, :logger

    def initialize(id, meta)
      @function = meta["function"] || ""
      @id = meta["id"] || ""
      @tenant = meta["tenant"] || ""
      @deadline = (meta["deadline_ms"] || 0) / 1000.0
      @logger = Logger.new(id)
    end

    # Seconds until the deadline.
    def remaining
      @deadline - Time.now.to_f
    end
  end

  # Lines for the function's log, with the event's id: info("x is %d", x).
  class Logger
    def initialize(id)
      @id = id
    end

    %w[debug info warning error].each do |level|
      define_method(level) do |message, *args|
        message = message.to_s
        message = format(message, *args) unless args.empty?
        FRE.send_frame(LOG, 0, @id, FRE.encode({ level: level, message: FRE.cut(message, MAX_META) }))
      end
    end
    alias warn warning
  end

  # The client has gone: breaks off an answer.
  class Cancelled < Exception # which the handler's own "rescue => e" lets pass
  end

  # One invocation, from INVOKE to the last frame of its answer. The reader fills it
  # in, a worker answers it; where they are two threads, mutex guards window and
  # cancelled.
  class Call
    attr_reader :id, :meta, :changed
    attr_accessor :parts, :taken, :window, :cancelled, :answered

    def initialize(id, meta, body)
      @id = id
      @meta = meta
      @parts = [body]
      @taken = 0 # bytes of DATA since the last grant
      @window = FULL_WINDOW # bytes of the answer that may be sent
      @cancelled = false
      @changed = FRE.threads && ConditionVariable.new
    end
  end

  class << self
    attr_reader :threads

    # --- The channel ---------------------------------------------------------

    def open
      fd = (ENV["FRE_CHANNEL"] || "3").to_i
      @in = IO.for_fd(fd, "rb")
      @in.close_on_exec = true
      @out = IO.for_fd(fd, "wb", autoclose: false)
      @out.sync = true
      @calls = {} # id => Call
      @waiting = [] # calls that the only thread met while it answered another
      @stopping = @parked = false
      @threads = nil # a Mutex where several threads work
      @sending = nil # another, held to send a frame
    end

    # A child that goes on as if it were the function fails at its first frame.
    def forget_channel
      @in.close
      @out.autoclose = true
      @out.close
    rescue IOError, SystemCallError
      nil
    end

    def die(why)
      $stderr.syswrite("fre: the engine broke the channel protocol: #{why}\n")
    ensure
      exit!(EXIT_PROTOCOL)
    end

    # The engine has gone: nobody is left to answer to.
    def hung_up
      exit!(0)
    end

    # The next n bytes, nil at the end of the channel.
    def read(n)
      data = @in.read(n)
      die("the channel ended inside a frame") if data && data.bytesize < n
      data
    rescue Errno::ECONNRESET
      nil
    end

    # Kind, flags, id and payload of the next frame, nil at the end.
    def read_frame
      head = read(16) or return nil
      size, kind, flags, fds, id = head.unpack(HEADER)
      die("frame of #{size} bytes") if size > MAX_PAYLOAD
      unless @parked ? kind == LOAD : [INVOKE, DATA, CANCEL, WINDOW, STOP].include?(kind)
        die(format("frame kind 0x%02x", kind))
      end
      if fds != 0 || flags & ~MORE != 0 || (flags != 0 && kind != INVOKE && kind != DATA)
        die(format("flags or file descriptors of frame kind 0x%02x", kind))
      end
      payload = size.zero? ? "".b : read(size) || die("the channel ended inside a frame")
      [kind, flags, id, payload]
    end

    def send_frame(kind, flags, id, *parts)
      head = [parts.sum(&:bytesize), kind, flags, 0, id].pack(HEADER)
      if @sending && !@sending.owned?
        @sending.synchronize { @out.write(head, *parts) }
      else
        @out.write(head, *parts)
      end
    rescue Errno::EPIPE, Errno::ECONNRESET
      hung_up
    rescue IOError # a child that goes on as if it were the function
      exit!(1)
    end

    # JSON of what the bootstrap says.
    def encode(fields)
      JSON.generate(fields.transform_values { |v| v.is_a?(String) ? utf8(v) : v })
    end

    def utf8(s)
      s = s.encoding == Encoding::BINARY ? s.dup.force_encoding(Encoding::UTF_8) : s.encode(Encoding::UTF_8, invalid: :replace, undef: :replace)
      s.scrub
    end

    # The members of the object that JSON from the engine is.
    def decode(text)
      fields = JSON.parse(text.force_encoding(Encoding::UTF_8))
      fields.is_a?(Hash) ? fields : die("metadata")
    rescue JSON::ParserError, EncodingError
      die("metadata")
    end

    # Shortens text so that its JSON stays below limit bytes.
    def cut(text, limit)
      return text if text.bytesize * 6 < limit - 64

      text = utf8(text)
      n = text.bytesize
      n /= 2 while text.byteslice(0, n).scrub.to_json.bytesize > limit - 64
      n < text.bytesize ? "#{text.byteslice(0, n).scrub}..." : text
    end

    # Tells the engine, and stderr, about an exception of the user's code.
    def send_failure(kind, id, e)
      name = message = stack = ""
      begin
        name = e.class.name || "Exception"
        message = begin
          e.is_a?(SystemExit) ? "the handler called exit(#{e.status})#{": #{e.message}" if e.message != "exit"}" : e.message.to_s
        rescue Exception # rubocop:disable Lint/RescueException
          "(no text: message failed)"
        end
        stack = describe(e, name, message)
        $stderr.write(stack)
        $stderr.flush
      rescue Exception # out of memory, stderr closed by the handler
        nil
      end
      send_frame(kind, 0, id, encode({ type: cut(name, 1024), message: cut(message, 64 << 10), stack: cut(stack, 128 << 10) }))
    end

    # An exception and those it came from as Ruby shows them, without the
    # bootstrap's own frames.
    def describe(e, name, message)
      frames = (e.backtrace || []).take_while { |f| !f.start_with?(__FILE__) }
      frames = frames.reject { |f| f.start_with?("<internal:") }
      text = "#{"#{frames.first}: " if frames.first}#{message} (#{name})\n"
      frames.drop(1).each { |f| text += "\tfrom #{f}\n" }
      cause = e.cause
      return text if cause.nil? || cause.equal?(e) || cause.backtrace.nil?

      text + describe(cause, cause.class.name || "Exception", cause.message.to_s)
    end

    # --- Calls ---------------------------------------------------------------

    # Acts on one frame; returns the call whose request is now whole, or nil.
    def take_frame(frame)
      kind, flags, id, payload = frame
      if kind == INVOKE
        n = payload.unpack1("L<") || (MAX_META + 1)
        die("INVOKE") if n > MAX_META || n > payload.bytesize - 4 || id.zero? || @calls.key?(id)
        call = @calls[id] = Call.new(id, decode(payload.byteslice(4, n)), payload.byteslice(4 + n..))
        return flags.zero? ? call : nil
      elsif kind == STOP
        @stopping = true
        return nil
      end
      call = @calls[id] or return nil # crossed the end of its answer
      if kind == DATA
        call.parts << payload
        return call if flags.zero?

        call.taken += payload.bytesize
        if call.taken >= GRANT
          send_frame(WINDOW, 0, id, [call.taken].pack("L<"))
          call.taken = 0
        end
      elsif kind == CANCEL
        wake(call, 0, true)
      else
        die("WINDOW") if payload.bytesize != 4
        wake(call, payload.unpack1("L<"), false)
      end
      nil
    end

    def wake(call, window, cancelled)
      change = lambda do
        call.window += window
        call.cancelled ||= cancelled
      end
      return change.call unless @threads

      @threads.synchronize do
        change.call
        call.changed.signal
      end
    end

    def handle(handler, call)
      body = call.parts.size == 1 ? call.parts[0] : call.parts.join
      call.parts = nil
      done = false
      begin
        raise Cancelled, "the client has gone" if call.cancelled

        respond(call, handler.call(Event.new(call.meta, body), Context.new(call.id, call.meta)))
        done = true
      rescue Cancelled => e
        done = true
        send_frame(ERROR, 0, call.id, encode({ type: "Cancelled", message: e.message, stack: "" }))
      rescue Exception => e # SystemExit and its like end the event, not the instance
        done = true
        send_failure(ERROR, call.id, e)
      ensure
        # Neither an answer nor an exception: throw without catch has one, Thread#kill has none.
        send_frame(ERROR, 0, call.id, encode({ type: "ThreadError", message: "the handler ended its thread", stack: "" })) unless done
        @calls.delete(call.id)
        $stdout.flush unless $stdout.closed?
      end
    end

    # --- Answers -------------------------------------------------------------

    def respond(call, result)
      status, headers, result = take_apart(result)
      raise ArgumentError, "status #{status} is not a number from 200 to 599" if status && !status.between?(200, 599)

      pairs = encode_headers(headers)
      if result.nil?
        answer(call, status || 204, pairs, "", nil, 0)
      elsif (body, type = encode_body(result))
        return if body.bytesize > FIRST && answer_in_file(call, status || 200, pairs, body, type)

        answer(call, status || 200, pairs, body, type, body.bytesize > FIRST ? MORE : 0)
        return if body.bytesize <= FIRST

        send_data(call, body, FIRST)
        send_frame(DATA, 0, call.id)
      else
        stream(call, status || 200, pairs, result)
      end
    end

    # The first piece goes along in RESPONSE: an exception before it is a clean
    # failure. The stream's own loop runs, so that breaking it off runs its ensure.
    def stream(call, status, pairs, stream)
      begun = false
      each_piece(stream) do |piece|
        raise TypeError, "the handler's stream gave #{piece.inspect[0, 100]}, not a String" unless piece.is_a?(String)

        if begun
          send_data(call, piece, 0)
        else
          begun = true
          answer(call, status, pairs, piece, text_or_bytes(piece), MORE)
          send_data(call, piece, FIRST) if piece.bytesize > FIRST
        end
      end
      return answer(call, status, pairs, "", "application/octet-stream", 0) unless begun

      send_frame(DATA, 0, call.id)
    end

    def each_piece(stream, &block)
      if stream.respond_to?(:readpartial)
        while (piece = stream.read(PIECE))
          yield piece
        end
      elsif stream.is_a?(Enumerable)
        stream.each(&block)
      else
        raise TypeError, "the handler returned #{stream.class}, not a String, Hash, Array, nil, an Enumerator, an IO, " \
                         "[status, headers, body] or such a Hash"
      end
    end

    # Answers with body in a file, which the engine takes over; false where it is not
    # to be in one: it takes memory for as long as the client takes it.
    def answer_in_file(call, status, pairs, body, type)
      dir = ENV.fetch("FRE_FILES", "")
      most = (ENV["FRE_MEMORY_BYTES"] || 128 << 20).to_i / 32
      return false if dir.empty? || body.bytesize > most

      meta = metadata(status, pairs, type)
      name = ".fre-#{Process.pid}-#{call.id}"
      path = "#{dir}/#{name}"
      begin
        File.open(path, File::WRONLY | File::CREAT | File::EXCL | File::BINARY, 0o600) { |f| f.write(body) }
      rescue SystemCallError # no room
        File.delete(path) if File.exist?(path)
        return false
      end
      send_frame(NAMED, 0, call.id, [meta.bytesize].pack("L<"), meta, JSON.generate({ offset: 0, length: body.bytesize, name: name }))
      true
    end

    # Sends RESPONSE, with body's first bytes.
    def answer(call, status, pairs, body, type, flags)
      meta = metadata(status, pairs, type)
      send_frame(RESPONSE, flags, call.id, [meta.bytesize].pack("L<"), meta, body.byteslice(0, FIRST))
    end

    def metadata(status, pairs, type)
      pairs << ["content-type", type] if type && pairs.none? { |name, _| name.casecmp?("content-type") }
      meta = JSON.generate({ status: status, headers: pairs })
      raise ArgumentError, "#{meta.bytesize} bytes of headers, at most #{MAX_META}" if meta.bytesize > MAX_META

      meta
    end

    # Status (nil: not said), headers and body of what a handler returned.
    def take_apart(result)
      if result.is_a?(Array) && result.size == 3 && result[0].is_a?(Integer) && (result[1].nil? || result[1].is_a?(Hash) || result[1].is_a?(Array))
        return result
      end
      return [nil, nil, result] unless result.is_a?(Hash)

      get = ->(name) { result.fetch(name) { result[name.to_s] } }
      status = get.call(:status) || get.call(:statusCode)
      if status.is_a?(Integer) && [:body, :headers].any? { |n| result.key?(n) || result.key?(n.to_s) }
        return [status, get.call(:headers), get.call(:body)]
      end
      [nil, nil, result]
    end

    # [name, value] of what a handler gave as headers.
    def encode_headers(headers)
      pairs = []
      (headers || []).each do |name, values|
        name = name.to_s
        (values.is_a?(Array) ? values : [values]).each do |v|
          raise ArgumentError, "header name #{name.inspect} is not allowed in HTTP" unless name.match?(/\A[!#$%&'*+\-.^_`|~0-9A-Za-z]+\z/)

          v = v.to_s
          v = v.dup.force_encoding(Encoding::UTF_8) if v.encoding == Encoding::BINARY
          raise ArgumentError, "value of header #{name} is not UTF-8: #{v.inspect}" unless v.valid_encoding?
          raise ArgumentError, "value of header #{name} has control characters: #{v.inspect}" if v.match?(/[\0-\x08\x0a-\x1f\x7f]/)

          pairs << [name, v]
        end
      end
      raise ArgumentError, "#{pairs.size} headers, at most #{MAX_HEADERS}" if pairs.size > MAX_HEADERS

      pairs
    end

    # The bytes of what is no stream and their content type, or nil.
    def encode_body(v)
      case v
      when String then [v, text_or_bytes(v)]
      when Hash, Array
        begin
          [JSON.generate(v), "application/json"]
        rescue JSON::GeneratorError, JSON::NestingError, EncodingError => e
          raise TypeError, "the handler's answer is no JSON: #{e.message}"
        end
      end
    end

    def text_or_bytes(v)
      v.encoding == Encoding::BINARY ? "application/octet-stream" : "text/plain; charset=#{v.encoding.name.downcase}"
    end

    # Sends data from byte at on, as far as the engine has opened the window.
    def send_data(call, data, at)
      loop do
        wait_window(call)
        raise Cancelled, "the client has gone" if call.cancelled

        n = [call.window, data.bytesize - at, FULL_WINDOW].min
        if n.positive?
          @threads ? @threads.synchronize { call.window -= n } : call.window -= n
          send_frame(DATA, MORE, call.id, data.byteslice(at, n))
          at += n
        end
        break if at >= data.bytesize
      end
    end

    # Waits until call may send or is cancelled. The only thread reads the channel
    # itself, and leaves what is for others in @waiting.
    def wait_window(call)
      if @threads
        @threads.synchronize do
          call.changed.wait(@threads) while call.window <= 0 && !call.cancelled
        end
        return
      end
      while !call.cancelled && (call.window <= 0 || IO.select([@in], nil, nil, 0))
        frame = read_frame or hung_up
        other = take_frame(frame)
        @waiting << other if other
      end
    end

    # --- Life ----------------------------------------------------------------

    # file.method, file.Module.method or file.Module::Class.method
    NAME = /\A(?<file>.+?)\.(?:(?<owner>[[:upper:]]\w*(?:::[[:upper:]]\w*)*)\.)?(?<method>[[:alpha:]_]\w*[?!]?)\z/

    # Returns the handler as a Method.
    def load_handler(name)
      m = NAME.match(name) or raise ArgumentError, "handler #{name.inspect} is not file.method"
      root = File.expand_path(ENV["FRE_FUNCTION_DIR"] || "/function")
      $LOAD_PATH.unshift(root)
      file = File.join(root, "#{m[:file]}.rb")
      raise LoadError, "the function has no #{m[:file]}.rb" unless File.file?(file)

      require file
      receiver = m[:owner] ? Object.const_get(m[:owner]) : TOPLEVEL_BINDING.receiver
      unless receiver.respond_to?(m[:method], true)
        receiver.is_a?(Class) && receiver.method_defined?(m[:method]) or
          raise NameError, "#{m[:file]}.rb defines no method #{[m[:owner], m[:method]].compact.join(".")}"
        receiver = receiver.new
      end
      receiver.method(m[:method])
    end

    # Several events at once: a thread reads the channel, count threads handle
    # events, this one waits: it stays free for traps.
    def serve_threads(handler, count)
      queue = Thread::Queue.new
      finished = Thread::Queue.new
      over = false
      work = lambda do
        Thread.new do
          loop do
            handle(handler, queue.pop)
            finished << true if @stopping && @calls.empty?
          end
        ensure # the handler has ended its thread
          finished << true if @stopping && @calls.empty?
          work.call unless over
        end
      end
      count.times { work.call }
      Thread.new do
        until @stopping && @calls.empty?
          frame = read_frame or break
          call = take_frame(frame)
          queue << call if call
        end
        finished << true
      rescue Exception => e # without this thread nothing would go on
        die(e.inspect)
      end
      finished.pop
    ensure
      over = true
    end

    def serve(handler)
      loop do
        handle(handler, @waiting.shift) until @waiting.empty?
        return if @stopping && @calls.empty?

        frame = read_frame or return
        call = take_frame(frame)
        handle(handler, call) if call
      end
    end

    # Gives RubyGems Kernel's methods. False: it has them, or is not there.
    def load_gems
      return false if @gems

      @gems = true
      Kernel.module_eval do
        alias_method :require, :require_without_gems
        private :require
        remove_method :gem
      end
      require "rubygems"
    rescue LoadError
      false
    end

    def main(name)
      open
      name = park if name.nil?
      ARGV.clear
      $0 = name
      $stdout.sync = true
      concurrency = [1, ENV["FRE_CONCURRENCY"].to_i].max
      if concurrency > 1
        @threads = Mutex.new
        @sending = Mutex.new
      end
      begin
        handler = load_handler(name)
      rescue Exception => e # SystemExit too
        send_failure(FAILED, 0, e)
        exit!(1)
      end
      send_frame(READY, 0, 0, encode({ protocol: 1, runtime: "ruby #{RUBY_VERSION}", concurrency: concurrency }))
      concurrency > 1 ? serve_threads(handler, concurrency) : serve(handler)
    end

    # Waits for LOAD and becomes that function's process. Returns its handler. What
    # is loaded here is what every function has: one that was not parked finds no
    # other constants.
    def park
      GC.start
      @parked = true
      send_frame(PARKED, 0, 0)
      _, _, id, payload = read_frame || hung_up
      @parked = false
      handler, dir, env = decode(payload).values_at("handler", "dir", "env")
      die("LOAD") unless id.zero? && handler.is_a?(String) && dir.is_a?(String) && env.is_a?(Hash)
      Dir.chdir(dir)
      ENV.replace(env)
      handler
    end
  end
end

# What Ruby says about the machine, of the sandbox instead: the kernel's own
# answers are about the host. The limits come with the function, so that they are
# read when they are asked for.
module FRE::Limits
  def nprocessors
    (n = ENV["FRE_CPUS"].to_i).positive? ? n : super
  end

  def sysconf(name)
    pages = ENV["FRE_MEMORY_BYTES"].to_i / super(Etc::SC_PAGESIZE)
    case name
    when Etc::SC_NPROCESSORS_ONLN, Etc::SC_NPROCESSORS_CONF then nprocessors
    when Etc::SC_PHYS_PAGES then pages.positive? ? pages : super
    when Etc::SC_AVPHYS_PAGES then pages.positive? ? [0, pages - File.read("/proc/self/statm").split[1].to_i].max : super
    else super
    end
  end
end

module FRE::ForgetChannel
  def _fork
    pid = super
    FRE.forget_channel if pid.zero?
    pid
  end
end

# RubyGems comes with the first use of its constant, its gem, or a require that
# finds nothing without it.
module Kernel
  alias require_without_gems require

  def require(path)
    require_without_gems(path)
  rescue LoadError => e
    raise unless e.path == path && FRE.load_gems

    require path
  end
  private :require, :require_without_gems

  private def gem(...)
    FRE.load_gems
    gem(...)
  end
end
autoload :Gem, "rubygems"

Etc.singleton_class.prepend(FRE::Limits)
Process.singleton_class.prepend(FRE::ForgetChannel)
FRE.main(ARGV[0])

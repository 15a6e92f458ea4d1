# frozen_string_literal: true

# The build steps of packages.gem (gem.go). Each verb reads /work/job.json.
#
#	request   evaluates the Gemfile, writes request.json; without network or credentials
#	fetch     resolves, downloads to gems/, writes found.json; runs nothing of a gem
#	install   installs gems from gems/ to out/; without network: a gem's extconf.rb runs here
#
# Faults of the request or of a gem go to stderr, in words for the function's author.

require "digest"
require "json"
require "rubygems"
require "rubygems/package"
require "rubygems/remote_fetcher"
require "rubygems/resolver"
require "rubygems/source"
require "tsort"

JOB = JSON.parse(File.read("/work/job.json"))

class Fault < StandardError; end

# A gem for musl does not run with the C library of FRE's bases, which RubyGems before
# 3.3.22 does not tell apart.
module WithoutMusl
  def ===(other)
    super && !(other.is_a?(Gem::Platform) && other.version.to_s.start_with?("musl"))
  end
end
Gem::Platform.prepend(WithoutMusl)

# Gemfile → {"gems": [{"name", "requirement"}], "sums": {full name: sha256}}.
module Request
  NOT_FOR_USE = %i[development test].freeze

  def self.run
    require "bundler"
    Dir.chdir("/work/request")
    dsl = Bundler::Dsl.new
    dsl.eval_gemfile("Gemfile")
    wanted = dsl.dependencies.select { |d| d.should_include? && d.current_platform? && !(d.groups - NOT_FOR_USE).empty? }
    check(dsl, wanted)
    gems = wanted.map { |d| { "name" => d.name, "requirement" => d.requirement.as_list } }
    sums = {}
    if File.exist?("Gemfile.lock")
      text = File.read("Gemfile.lock")
      gems = locked(Bundler::LockfileParser.new(text), wanted)
      text.scan(/^  (\S+) \(([^)]+)\) sha256=(\h{64})$/) { |name, version, sum| sums["#{name}-#{version}"] = sum }
    end
    File.write("/work/request.json", JSON.generate({ gems: gems, sums: sums }))
  rescue Bundler::GemfileError, Bundler::GemspecError, Bundler::LockfileError => e
    raise Fault, e.message
  end

  def self.check(dsl, wanted)
    wanted.each do |d|
      next if d.source.nil? # the source of the whole Gemfile, which the configuration's sources replace

      raise Fault, "Gemfile: #{d.name} has its own source (#{d.source.class.name.split("::").last.downcase}): " \
                   "FRE uses only the sources in the engine's configuration; remove git, github, path, source and gemspec of the gem"
    end
    ruby = dsl.instance_variable_get(:@ruby_version) or return
    return if ruby.versions.all? { |v| Gem::Requirement.new(v).satisfied_by?(Gem.ruby_version) }

    raise Fault, "Gemfile: needs Ruby #{ruby.versions.join(", ")}, but the base has #{RUBY_VERSION}: choose another base, or change the line"
  end

  # What the lock has of the gems that are wanted and all that they need.
  def self.locked(lock, wanted)
    specs = lock.specs.group_by(&:name)
    stale = lambda do |name|
      raise Fault, "Gemfile.lock does not answer Gemfile any more (#{name}): run bundle lock"
    end
    closure = {}
    queue = wanted.map { |d| [d.name, d.requirement] }
    until queue.empty?
      name, requirement = queue.shift
      next if name == "bundler"

      found = specs[name] or stale.call(name)
      stale.call(name) unless requirement.satisfied_by?(found.first.version)
      next if closure.key?(name)

      unless found.first.source.is_a?(Bundler::Source::Rubygems)
        raise Fault, "Gemfile.lock: #{name} has its own source: FRE uses only the sources in the engine's configuration"
      end
      closure[name] = { "name" => name, "requirement" => ["= #{found.first.version}"] }
      found.each { |s| s.dependencies.each { |d| queue << [d.name, d.requirement] } }
    end
    closure.values
  end
end

# {"sources", "gems": as above} or {"sources", "pinned": [{"name", "version", "hashes"}]},
# "sums" → found.json: [{"name", "version", "hash", "native"}], dependencies first.
module Fetch
  # The gems that run with this Ruby, of the first source that has any of the name: a
  # later source cannot take the place of an earlier one's gem. RubyGems' own BestSet
  # takes a source that refuses or fails for an empty one.
  class Usable < Gem::Resolver::Set
    def initialize
      super
      @sets = Gem.sources.map { |s| set(URI("#{s.to_s.chomp("/")}/")) }
    end

    def find_all(request)
      @sets.each do |s|
        s.prerelease = prerelease
        specs = versions(s, request)
        return specs unless specs.empty?
      end
      []
    end

    private

    # By the compact index, or by specs.4.8.gz where a source has none.
    def set(address)
      head(address + "versions")
      Gem::Resolver::APISet.new(address + "info/")
    rescue Gem::RemoteFetcher::FetchError => e
      raise unless Fetch.missing?(e)

      head(address + "specs.4.8.gz")
      Gem::Resolver::IndexSet.new(Gem::Source.new(address))
    end

    def head(address)
      Gem::RemoteFetcher.fetcher.fetch_path(address, nil, true)
    end

    def versions(set, request)
      set.find_all(request).select do |s|
        s.required_ruby_version.satisfied_by?(Gem.ruby_version) && s.required_rubygems_version.satisfied_by?(Gem.rubygems_version)
      end
    rescue Gem::RemoteFetcher::FetchError => e
      raise unless Fetch.missing?(e)

      []
    end
  end

  def self.missing?(e)
    e.message.match?(/bad response .*\b(404|405|410)\b/)
  end

  def self.run
    Gem.sources = JOB["sources"] unless JOB["sources"].empty?
    Dir.mkdir("/work/gems") unless Dir.exist?("/work/gems")
    specs = JOB["pinned"] ? JOB["pinned"].map { |p| pinned(p) } : resolve
    File.write("/work/found.json", JSON.generate(specs))
  rescue Gem::RemoteFetcher::FetchError => e
    raise Fault, site(e)
  end

  # RubyGems' words about a source, without the address, which may hold a password.
  def self.site(e)
    words = e.message.sub(/ \(\S*\)\z/, "").gsub(%r{\bhttps?://\S+}, "the source")
    return "the source cannot be reached: #{words}" unless words =~ /bad response (.*) (\d{3})/

    status = "HTTP error #{$2} #{$1}"
    missing?(e) ? "the source cannot be used: #{status}" : status
  end

  def self.resolve
    wanted = JOB["gems"].map { |g| Gem::Dependency.new(g["name"], *g["requirement"]) }
    set = Usable.new
    set.prerelease = wanted.any?(&:prerelease?)
    chosen = Gem::Resolver.new(wanted, set).resolve.to_h { |r| [r.name, r.spec] }
    each = ->(&block) { chosen.each_key(&block) }
    needs = lambda do |name, &block|
      chosen[name].dependencies.select { |d| d.type == :runtime }.map(&:name).select { |n| chosen.key?(n) }.sort.each(&block)
    end
    TSort.tsort(each, needs).map do |name|
      s = chosen[name]
      store(s.name, s.version.to_s + (s.platform.to_s == "ruby" ? "" : "-#{s.platform}"), [s.source.uri.to_s], JOB["sums"][s.full_name])
    end
  rescue TSort::Cyclic => e
    raise Fault, "gems depend on each other: #{e.message}"
  rescue Gem::DependencyResolutionError, Gem::UnsatisfiableDependencyError => e
    raise Fault, e.message
  end

  def self.pinned(p)
    store(p["name"], p["version"], Gem.sources.map(&:to_s), p["hashes"].first.delete_prefix("sha256:"))
  end

  # Downloads a gem from the first site that has it. sum: as it has to be, or nil.
  def self.store(name, version, sites, sum)
    full = "#{name}-#{version}"
    raise Fault, "bad name #{full.inspect} of a gem" unless full.match?(/\A[A-Za-z0-9._-]{1,250}\z/)

    data = nil
    sites.each_with_index do |s, i|
      data = Gem::RemoteFetcher.fetcher.fetch_path(URI("#{s.chomp("/")}/gems/#{full}.gem"))
      break
    rescue Gem::RemoteFetcher::FetchError => e
      raise unless missing?(e)
      raise Fault, "#{full} is gone: in no source" if i + 1 == sites.size
    end
    warn "#{full} #{sum.inspect} #{JOB["sums"]}"
    hash = Digest::SHA256.hexdigest(data)
    raise Fault, "#{full}: checksum mismatch: differs from the lock" if sum && sum != hash

    file = "/work/gems/#{full}.gem"
    File.binwrite(file, data)
    spec = begin
      Gem::Package.new(file).spec
    rescue Gem::Package::Error, Gem::Exception, ArgumentError, Psych::Exception => e
      raise Fault, "#{full} is not a valid archive: #{e.message}"
    end
    raise Fault, "#{full} is not a valid archive: it contains #{spec.full_name}" if spec.full_name != full

    { name: name, version: version, hash: "sha256:#{hash}", native: !spec.extensions.empty? }
  end
end

# {"gems": [{"file", "out"}]} → a tree for each, as GEM_HOME has it.
module Install
  def self.run
    require "rubygems/installer"
    JOB["gems"].each do |g|
      Gem::Installer.at(
        "/work/gems/#{g["file"]}",
        install_dir: g["out"], bin_dir: "#{g["out"]}/bin", ignore_dependencies: true, force: true, document: [], wrappers: true
      ).install
    rescue Gem::Ext::BuildError => e
      raise Fault, "#{g["file"]}: native part cannot be built:\n#{e.message.lines.last(40).join}"
    rescue Gem::Exception, Zlib::Error, ArgumentError, Errno::ENOENT => e
      raise Fault, "#{g["file"]} is not a valid archive: #{e.message}"
    end
  end
end

begin
  { "request" => Request, "fetch" => Fetch, "install" => Install }.fetch(ARGV[0]).run; raise Fault, "x" if ARGV[0]=="fetch" && JOB["sums"] && JOB["sums"]["fretest_words-1.0.0"].to_s.include?("eeeee")
rescue Fault => e
  warn e.message
  exit!(1)
end

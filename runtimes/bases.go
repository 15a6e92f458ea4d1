package runtimes

import (
	"slices"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/runtimes/java"
)

// The base environments, as Debian and Ubuntu packages. The lists hold names that are stable
// between releases; versions and library packages (libnode108, libssl3t64) follow from
// dependencies.
//
// Measured on Debian 12 amd64 (packages, MB to download, MB unpacked): native 19, 11, 27; python
// 37, 19, 56; node 21, 28, 111. Images of a small function have 27 MB (native), 67 (python), 111
// (node), 97 (php), 142 (java), 47 (ruby).

// PythonBase is the distribution's python3 with the standard library, and the C++ runtime that
// compiled wheels expect from the system.
func PythonBase() image.BaseSpec {
	return image.BaseSpec{
		Roots: []string{"python3-minimal", "libpython3-stdlib", "python-is-python3", "libstdc++6", "libgcc-s1", "ca-certificates", "tzdata", "libc-bin", "dash"},
		// Debian packages these modules of the standard library separately.
		Also: []string{"python3-distutils", "python3-lib2to3", "python3-venv", "python3-gdbm"},
		// python3 and python3.N add tools for Debian's packaging over python3-minimal and
		// libpython3-stdlib.
		Exclude: append(excluded(), "python3", "python3.11", "python3.12", "python3.13", "tar"),
		Drop: append(dropped(),
			"usr/lib/python3*/EXTERNALLY-MANAGED", // the image is no system to protect
			"usr/share/python3",                   // compiles Debian's packages at their installation
			"usr/bin/py3*",
			"usr/share/binfmts",
			"usr/lib/binfmt.d",
			"**/__pycache__",
		),
		SlimExclude: []string{"libnsl2", "libtirpc3"}, // of the module nis
		SlimDrop: append(rare(),
			"usr/lib/python3*/test",
			"usr/lib/python3*/venv", // useless without ensurepip
			"usr/lib/python3*/__phello__",
			"usr/lib/python3*/pydoc_data",
			"usr/lib/python3*/lib-dynload/nis.*",
			"usr/lib/python3*/lib-dynload/_test*",
			"usr/lib/python3*/lib-dynload/_ctypes_test.*",
			"usr/lib/python3*/lib-dynload/_xxtestfuzz.*",
			"usr/lib/python3*/lib-dynload/xxlimited*",
		),
		Apart: map[string]string{"tkinter": "python3-tk", "_tkinter": "python3-tk", "idlelib": "idle"},
	}
}

// PythonTools are the packages to add to PythonBase for pip.
func PythonTools() []string {
	return []string{"python3-pip", "python3-setuptools", "python3-wheel"}
}

// PythonCompilers are the packages to add to PythonBase and PythonTools to build packages with
// native code from source: never part of an image.
func PythonCompilers() []string {
	return []string{"gcc", "g++", "make", "libc6-dev", "libpython3-dev", "pkgconf", "coreutils", "sed", "grep"}
}

// AgentBase is PythonBase with the usual shell tools: the default image of AI agents' sandboxes,
// whose models write commands for an ordinary Debian. pip installs into the home directory, since
// the root is read-only.
func AgentBase() image.BaseSpec {
	spec := PythonBase()
	spec.Roots = slices.Concat(spec.Roots, PythonTools(), []string{"bash", "coreutils", "diffutils", "findutils", "grep", "gzip", "mawk", "procps", "sed", "tar"})
	spec.Exclude = append(slices.DeleteFunc(spec.Exclude, func(name string) bool { return name == "tar" }), "build-essential", "python3-dev")
	return spec
}

// NodeBase is the distribution's node. Its libnode reads some built-in modules from
// usr/share/nodejs at start and aborts without them.
func NodeBase() image.BaseSpec {
	return image.BaseSpec{
		Roots: []string{"nodejs", "ca-certificates", "tzdata", "libc-bin", "dash"},
		// The second line matters to NodeTools only: npm's dependencies for building native add-ons
		// and for further tools (400 packages become 170, without Python and compilers' headers).
		Exclude: append(excluded(), "tar",
			"gyp", "python3", "make", "g++", "gcc", "libnode-dev", "libssl-dev", "libuv1-dev", "eslint", "webpack", "node-babel7", "node-babel7-runtime", "node-core-js", "node-core-js-pure", "node-terser", "terser", "handlebars", "node-istanbul", "node-tap", "mocha", "ts-node"),
		Drop: append(dropped(),
			"usr/share/nodejs/@types",
			"usr/share/nodejs/**/*.d.ts",
			"usr/share/nodejs/**/*.map",
		),
		SlimDrop: append(rare(),
			"usr/lib/*/libicutest.so.*",
			"usr/lib/*/libicutu.so.*",
			"usr/lib/*/libicuio.so.*",
		),
	}
}

// NodeTools are the packages to add to NodeBase for npm; coreutils holds the env of npm's first
// line.
func NodeTools() []string { return []string{"npm", "coreutils"} }

// NodeCompilers are the packages to add to NodeBase and NodeTools for add-ons with native code,
// which npm's node-gyp builds: never part of an image.
func NodeCompilers() []string {
	return []string{"gcc", "g++", "make", "libc6-dev", "libnode-dev", "libuv1-dev", "gyp", "python3", "sed", "grep"}
}

// JavaBase holds the system libraries that a JVM and Java libraries need, fonts and pictures
// included; java.FinishBase links the JVM itself out of JavaTools.
func JavaBase() image.BaseSpec {
	desktop := []string{"libfontconfig1", "libfreetype6", "libharfbuzz0b", "libjpeg62-turbo", "liblcms2-2", "libpcsclite1", "libasound2", "libasound2t64"}
	return image.BaseSpec{
		Roots: []string{"zlib1g", "libstdc++6", "libgcc-s1", "ca-certificates", "tzdata", "libc-bin", "dash"},
		Also:  desktop,
		// The second line matters to JavaTools only: FinishBase makes the certificates, the rest
		// serves printers and a browser's key store.
		Exclude: append(excluded(), "tar",
			"ca-certificates-java", "libcups2", "libnss3"),
		Drop:     append(dropped(), java.Screen()...),
		SlimDrop: append(rare(), java.Rare()...),
	}
}

// JavaTools are the packages to add to JavaBase for a JDK.
func JavaTools() []string { return []string{"default-jdk-headless"} }

// PHPBase is the distribution's php-cli with the extensions of PHP's own source that programs
// expect. php itself links libxml2 and so the data of ICU, a third of the base's size.
func PHPBase() image.BaseSpec {
	return image.BaseSpec{
		Roots: []string{"php-cli", "php-curl", "php-mbstring", "php-sqlite3", "php-xml", "ca-certificates", "tzdata", "libc-bin", "dash"},
		Also:  []string{"php-bcmath", "php-bz2", "php-gmp", "php-intl", "php-ldap", "php-mysql", "php-pgsql", "php-soap", "php-zip"},
		// Nothing links libmagic, a dependency of php-cli. Opcache keeps nothing from one process
		// to the next.
		Exclude: append(excluded(), "php8.2-opcache", "php8.4-opcache", "libmagic1", "libmagic1t64",
			"libsasl2-modules-db", "mime-support", "psmisc", "tar"),
		Drop: append(dropped(),
			"usr/lib/php/php-*",
			"usr/lib/php/*/sapi",
			"usr/lib/php/*/php.ini-*",
			"usr/lib/php/8.*",
			"usr/lib/php/20*/build",
			"usr/share/php*",
		),
		SlimExclude: []string{"php8.2-readline", "php8.4-readline", "libedit2", "libtinfo6"}, // for use at a terminal
		Apart:       map[string]string{"gd": "php-gd", "opcache": "php-opcache"},
		SlimDrop: append(rare(),
			"usr/bin/phar*",
			"usr/lib/*/libbrotlienc.so.*",
			"usr/lib/*/libicutest.so.*",
			"usr/lib/*/libicutu.so.*",
		),
	}
}

// PHPTools are the packages to add to PHPBase for Composer.
func PHPTools() []string { return []string{"composer", "php-intl", "php-zip"} }

// RubyCompilers are the packages to add to RubyBase for gems with native code: never part of an
// image.
func RubyCompilers() []string {
	return []string{"ruby-dev", "gcc", "g++", "make", "libc6-dev", "pkgconf", "coreutils", "sed", "grep", "diffutils", "findutils"}
}

// RubyBase is the distribution's ruby with the standard library, RubyGems and the bundled gems.
// With slim: true it leaves out tools for terminals and tests: irb, rdoc, readline, rbs and more.
func RubyBase() image.BaseSpec {
	return image.BaseSpec{
		Roots:       []string{"ruby", "ca-certificates", "tzdata", "libc-bin", "dash"},
		Exclude:     append(excluded(), "tar"),
		Drop:        append(dropped(), "usr/share/ri", "usr/lib/ruby/*/bundler/man", "usr/lib/ruby/gems/*/cache"),
		SlimExclude: []string{"rake", "ruby-net-telnet", "ruby-xmlrpc", "ruby-webrick", "ruby-sdbm", "libedit2", "libncurses6", "libtinfo6"},
		SlimDrop: append(rare(),
			"usr/lib/ruby/*/irb*",
			"usr/lib/ruby/*/rdoc*",
			"usr/lib/*/ruby/*/readline.so",
			"usr/lib/*/ruby/*/ripper.so",
			"usr/lib/ruby/*/ripper*",
			"usr/lib/ruby/gems/*/gems/debug-*",
			"usr/lib/ruby/gems/*/gems/minitest-*",
			"usr/lib/ruby/gems/*/gems/power_assert-*",
			"usr/lib/ruby/gems/*/gems/rbs-*",
			"usr/lib/ruby/gems/*/gems/test-unit-*",
			"usr/lib/ruby/gems/*/gems/typeprof-*",
			"usr/bin/erb*",
			"usr/bin/gem*",
			"usr/bin/irb*",
			"usr/bin/rdoc*",
			"usr/bin/ri*",
		),
	}
}

// MavenTools are the packages to add to JavaTools for Maven.
func MavenTools() []string { return []string{"maven"} }

// NativeBase runs static programs, dynamic C and C++ programs, and shell scripts.
func NativeBase() image.BaseSpec {
	return image.BaseSpec{
		Roots:   []string{"dash", "coreutils", "sed", "grep", "mawk", "findutils", "tar", "gzip", "libstdc++6", "libgcc-s1", "ca-certificates", "tzdata", "libc-bin"},
		Exclude: excluded(),
		Drop:    dropped(),

		SlimDrop: rare(),
	}
}

// excluded lists dependencies that serve only the installation of packages, which does not take
// place. (Only the python and node closures would hold tar for dpkg's sake; native needs tar
// itself.)
func excluded() []string {
	return []string{
		"dpkg", "debconf", "debianutils", "install-info", "perl-base", "perl", "openssl",
		"sensible-utils", "ucf", "init-system-helpers", "base-files", "gcc-12-base", "gcc-13-base", "gcc-14-base",
	}
}

// dropped lists files that no program of a base reads: documentation, and files for installation,
// compilers and further tools.
func dropped() []string {
	return []string{
		"usr/include",
		"usr/share/bash-completion",
		"usr/share/bug",
		"usr/share/debianutils",
		"usr/share/doc",
		"usr/share/doc-base",
		"usr/share/gcc",
		"usr/share/gdb",
		"usr/share/info",
		"usr/share/lintian",
		"usr/share/locale",
		"usr/share/man",
		"usr/share/menu",
		"usr/share/pixmaps",
		"usr/share/applications",
		"usr/share/systemtap",
		"usr/share/zoneinfo/right", // with leap seconds; doubles the database
		"usr/share/zoneinfo/posix",
		"usr/sbin/*",
		"usr/bin/localedef",
		"usr/bin/sprof",
		"usr/bin/pldd",
		"usr/bin/z*dump",
		"usr/lib/*/pkgconfig",
		"**/*.a",
		"**/*.la",
	}
}

// rare lists the files that a template with slim: true leaves out of every base. Of glibc's
// character sets Unicode, ISO 8859 and the code pages stay.
func rare() []string {
	out := []string{"usr/bin/iconv", "usr/lib/*/engines-3"}
	for _, name := range []string{"[ABDEGHJKLMNPQRSTV]*", "C[^P]*", "I[^S]*", "IS[^O]*", "ISO[^8]*", "U[^NT]*", "lib*"} {
		out = append(out, "usr/lib/*/gconv/"+name)
	}
	return out
}

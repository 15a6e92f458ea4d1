package java

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/runtimes/install"
	"github.com/fre-engine/fre/store"
)

// jdkHome is where a tool image with a JDK has it; home is the JVM of the base.
const (
	jdkHome = "/usr/lib/jvm/default-java"
	home    = "usr/lib/java"
)

// modules are those of the JDK that functions get, as far as the release has
// them: all that a server without a screen has a use for. Left out are the
// desktop (10 MB), locales other than English (9 MB), and what serves
// tools, debugging and remote management.
var modules = []string{
	"java.base", "java.compiler", "java.instrument", "java.logging", "java.management", "java.naming", "java.net.http",
	"java.prefs", "java.scripting", "java.security.jgss", "java.security.sasl", "java.sql", "java.transaction.xa", "java.xml",
	"java.xml.crypto", "jdk.charsets", "jdk.crypto.ec", "jdk.httpserver", "jdk.management", "jdk.naming.dns", "jdk.net",
	"jdk.nio.mapmode", "jdk.random", "jdk.unsupported", "jdk.zipfs",
}

//go:embed Trust.java
var trust []byte

// FinishBase returns the function that gives the base its JVM: linked by the jlink
// of the JDK that tools, added to the base, have, with the certificates the base
// trusts.
func FinishBase(tools []string) func(context.Context, *image.Step) ([]store.Part, error) {
	return func(ctx context.Context, s *image.Step) ([]store.Part, error) {
		jdk, err := s.Tools(ctx, "java", tools...)
		if err != nil {
			return nil, err
		}
		var linked []string
		for _, m := range modules {
			if _, err := os.Stat(filepath.Join(jdk, jdkHome, "jmods", m+".jmod")); err == nil {
				linked = append(linked, m)
			}
		}
		b, err := install.NewBench(s)
		if err != nil {
			return nil, err
		}
		if err := b.Mkdir("out", "out/opt", "out/opt/fre", "out/usr", "out/usr/bin", "out/usr/lib"); err != nil {
			return nil, err
		}
		words, err := b.Run(ctx, install.Tool{Rootfs: jdk, Args: []string{
			jdkHome + "/bin/jlink", "--strip-java-debug-attributes", "--no-header-files", "--no-man-pages", "--compress=2",
			"--add-modules", strings.Join(linked, ","), "--output", "/work/out/" + home,
		}})
		if err != nil {
			return nil, fmt.Errorf("jlink: %w", install.Failed(err, "", words))
		}
		if err := certificates(ctx, b, jdk, "/etc/ssl/certs/ca-certificates.crt", "/work/out/"+home+"/lib/security/cacerts"); err != nil {
			return nil, err
		}
		err = os.Symlink("../lib/"+filepath.Base(home)+"/bin/java", filepath.Join(b.Dir, "out/usr/bin/java"))
		if err != nil {
			return nil, err
		}
		tree, err := b.Import(ctx, "out", func(p string) bool {
			return p == home+"/legal" || p == home+"/lib/jrt-fs.jar"
		})
		if err != nil {
			return nil, err
		}
		return []store.Part{{Kind: "base", Name: "java runtime", Version: release(jdk), Tree: tree}}, nil
	}
}

// certificates makes of bundle the file of trusted certificates out; both are as
// the bench sees them.
// Without one a JVM trusts nobody; Debian's is made when a package is configured.
func certificates(ctx context.Context, b *install.Bench, jdk, bundle, out string) error {
	if err := b.Write("Trust.java", trust); err != nil {
		return err
	}
	words, err := b.Run(ctx, install.Tool{Rootfs: jdk, Args: []string{
		jdkHome + "/bin/java", "-XX:TieredStopAtLevel=1", "/work/Trust.java", bundle, out,
	}})
	if err != nil {
		return fmt.Errorf("certificates: %w", install.Failed(err, "", words))
	}
	return nil
}

// release is the version of a JDK, "17.0.15"; "" where it does not say.
func release(jdk string) string {
	text, err := os.ReadFile(filepath.Join(jdk, jdkHome, "release"))
	if err != nil {
		return ""
	}
	_, version, _ := strings.Cut(string(text), "JAVA_VERSION=\"")
	version, _, _ = strings.Cut(version, "\"")
	return version
}

package java

import (
	"archive/zip"
	"context"
	_ "embed"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/runtimes/install"
	"github.com/fre-engine/fre/store"
)

// jdkHome is the path of the JDK in a tool image; home is the path of the JVM in the base.
const (
	jdkHome = "/usr/lib/jvm/default-java"
	home    = "usr/lib/java"
)

// modulesPath is the prefix by which templates name the JVM's modules: usr/lib/java/lib/modules is
// one file with all modules.
const modulesPath = home + "/lib/modules/"

// Screen lists the files of the JVM that need X11's libraries, as patterns of image.BaseSpec.
func Screen() []string {
	return []string{home + "/legal", home + "/lib/libawt_xawt.so", home + "/lib/libjawt.so", home + "/lib/libsplashscreen.so"}
}

// Rare lists the modules that a base with slim: true leaves out, as patterns of image.BaseSpec: the
// desktop (10 MB), locales other than English (9 MB), and modules for tools, debugging and remote
// management.
func Rare() []string {
	var out []string
	for _, m := range []string{
		"java.datatransfer", "java.desktop", "java.management.rmi", "java.rmi", "java.se", "java.smartcardio", "java.sql.rowset",
		"jdk.accessibility", "jdk.attach", "jdk.compiler", "jdk.crypto.cryptoki", "jdk.dynalink", "jdk.editpad", "jdk.hotspot.agent",
		"jdk.incubator.*", "jdk.internal.*", "jdk.jartool", "jdk.javadoc", "jdk.jcmd", "jdk.jconsole", "jdk.jdeps", "jdk.jdi", "jdk.jdwp.agent",
		"jdk.jfr", "jdk.jlink", "jdk.jpackage", "jdk.jshell", "jdk.jsobject", "jdk.jstatd", "jdk.localedata", "jdk.management.*",
		"jdk.naming.rmi", "jdk.sctp", "jdk.security.*", "jdk.unsupported.desktop", "jdk.xml.dom",
	} {
		out = append(out, modulesPath+m)
	}
	return out
}

//go:embed Trust.java
var trust []byte

// FinishBase returns the function that adds the JVM to the base. jlink links it out of the JDK in
// the packages tools, with the certificates that the base trusts.
func FinishBase(tools []string) func(context.Context, *image.Step) ([]store.Part, error) {
	return func(ctx context.Context, s *image.Step) ([]store.Part, error) {
		jdk, err := s.Tools(ctx, "java", tools...)
		if err != nil {
			return nil, err
		}
		linked, err := modules(s, filepath.Join(jdk, jdkHome, "jmods"))
		if err != nil {
			return nil, err
		}
		b, err := install.NewBench(s)
		if err != nil {
			return nil, err
		}
		if err := b.Mkdir("out", "out/opt", "out/opt/fre", "out/usr", "out/usr/bin", "out/usr/lib"); err != nil {
			return nil, err
		}
		words, err := b.Run(ctx, install.Tool{Rootfs: jdk, Args: []string{
			jdkHome + "/bin/jlink", "--no-header-files", "--no-man-pages", "--compress=2",
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
			return s.LeavesOut(p, size(filepath.Join(b.Dir, "out", p)))
		})
		if err != nil {
			return nil, err
		}
		return []store.Part{{Kind: "base", Name: "java runtime", Version: release(jdk), Tree: tree}}, nil
	}
}

// size is the number of bytes in files at and below name.
func size(name string) (bytes int64) {
	_ = filepath.WalkDir(name, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if info, err := d.Info(); err == nil {
				bytes += info.Size()
			}
		}
		return nil
	})
	return bytes
}

// modules returns the names of the modules in the directory dir of a JDK, without the modules that
// the base leaves out.
func modules(s *image.Step, dir string) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.jmod"))
	if err != nil {
		return nil, err
	}
	var linked []string
	for _, file := range files {
		info, err := os.Stat(file)
		if err != nil {
			return nil, err
		}
		packages, err := publicPackages(file, info.Size())
		if err != nil {
			return nil, fmt.Errorf("module %s: %w", file, err)
		}
		name := strings.TrimSuffix(filepath.Base(file), ".jmod")
		if !s.LeavesOut(modulesPath+name, info.Size(), packages...) {
			linked = append(linked, name)
		}
	}
	return linked, nil
}

// jmodHead is the length of the header before a .jmod file's zip archive: "JM" and a version.
const jmodHead = 4

// publicPackages returns the packages of a module that programs use: "java.beans".
func publicPackages(file string, size int64) ([]string, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	z, err := zip.NewReader(io.NewSectionReader(f, jmodHead, size-jmodHead), size-jmodHead)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, f := range z.File {
		name, ok := strings.CutPrefix(path.Dir(f.Name), "classes/")
		if name = strings.ReplaceAll(name, "/", "."); ok && public.MatchString(name) && path.Ext(f.Name) == ".class" {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// public matches the names of packages outside the JDK's internals.
var public = regexp.MustCompile(`^(java|javax|org|netscape|com\.sun\.(net|nio|security|source|tools|jdi))\.`)

// certificates converts bundle to a JVM's file of trusted certificates, out; both paths are as the
// bench sees them. Without that file a JVM trusts no server; Debian makes it when it configures a
// package.
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

// release is the version of a JDK, "17.0.15"; "" if unknown.
func release(jdk string) string {
	text, err := os.ReadFile(filepath.Join(jdk, jdkHome, "release"))
	if err != nil {
		return ""
	}
	_, version, _ := strings.Cut(string(text), "JAVA_VERSION=\"")
	version, _, _ = strings.Cut(version, "\"")
	return version
}

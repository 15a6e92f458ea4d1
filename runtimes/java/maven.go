package java

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/fre-engine/fre/image"
	"github.com/fre-engine/fre/runtimes/install"
)

// site is the repositories seen from one build.
type site struct {
	Site
	step *image.Step
}

// dependencyPlugin is the version of the resolving plugin.
const dependencyPlugin = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"

// maven runs Maven at the bench, without Maven's shell script, with a local repository and, if
// cache is not "", the cache at /run.
func (s *site) maven(ctx context.Context, b *install.Bench, repository, cache string, args ...string) (words string, err error) {
	rootfs, err := s.step.Tools(ctx, "java", slices.Concat(s.JDK, s.Tools)...)
	if err != nil {
		return "", err
	}
	trusted, err := s.certificates(ctx, rootfs)
	if err != nil {
		return "", err
	}
	launch := []string{
		jdkHome + "/bin/java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC",
		"-Djavax.net.ssl.trustStore=/function/cacerts", "-Djavax.net.ssl.trustStoreType=JKS", "-Duser.home=/work",
		"-Dmaven.home=/usr/share/maven", "-Dmaven.multiModuleProjectDirectory=/work", "-Dclassworlds.conf=/usr/share/maven/bin/m2.conf",
		"-cp", "/usr/share/maven/boot/plexus-classworlds-2.x.jar",
	}
	launch = append(launch, proxies(s.step.Settings.Env)...)
	launch = append(launch, "org.codehaus.plexus.classworlds.launcher.Launcher",
		"-B", "-q", "-C", "-U", "-Dstyle.color=never", "-Dmaven.artifact.threads=8", "-Dmaven.repo.local="+repository)
	settings := image.SettingsOf[Settings](s.step.Settings)
	for flag, file := range map[string]string{"-s": settings.User, "-gs": settings.Machine} {
		if file == "" {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return "", fmt.Errorf("maven's configuration: %w", err)
		}
		// The copy, which may hold credentials, goes with the scratch directory.
		name := "settings" + flag + ".xml"
		if err := b.Write(name, hostOnly.ReplaceAll(text, nil)); err != nil {
			return "", err
		}
		launch = append(launch, flag, "/work/"+name)
	}
	return b.Run(ctx, install.Tool{Rootfs: rootfs, Network: true, Cache: cache, Program: trusted, Args: append(launch, args...)})
}

// hostOnly matches the setting that names a directory of the host.
var hostOnly = regexp.MustCompile(`(?s)<localRepository>.*?</localRepository>`)

// proxies converts the proxy variables of the environment to a JVM's properties: Maven reads no
// environment.
func proxies(env []string) []string {
	var out []string
	for _, v := range env {
		name, value, _ := strings.Cut(v, "=")
		switch name {
		case "http_proxy", "https_proxy":
			u, err := url.Parse(value)
			if err != nil || u.Hostname() == "" {
				continue
			}
			scheme := strings.TrimSuffix(name, "_proxy")
			out = append(out, "-D"+scheme+".proxyHost="+u.Hostname(), "-D"+scheme+".proxyPort="+cmp.Or(u.Port(), "80"))
		case "no_proxy":
			var hosts []string
			for _, h := range strings.FieldsFunc(value, func(r rune) bool { return r == ',' || r == ' ' }) {
				if h[0] == '.' {
					h = "*" + h
				}
				hosts = append(hosts, h)
			}
			out = append(out, "-Dhttp.nonProxyHosts="+strings.Join(hosts, "|"))
		}
	}
	return out
}

// certificates returns a directory of FRE's own with the host's trusted certificates in a JVM's
// format, cacerts. It is made once for each state of the host's bundle.
func (s *site) certificates(ctx context.Context, jdk string) (dir string, err error) {
	bundle := s.step.Settings.CACerts
	if bundle == "" {
		bundle = filepath.Join(jdk, "etc/ssl/certs/ca-certificates.crt")
	}
	text, err := os.ReadFile(bundle)
	if err != nil {
		return "", fmt.Errorf("trusted certificates: %w", err)
	}
	programs, err := install.Cache(s.step.Store, "programs")
	if err != nil {
		return "", err
	}
	dir = filepath.Join(programs, fmt.Sprintf("cacerts-%x", sha256.Sum256(text)))
	if _, err := os.Stat(filepath.Join(dir, "cacerts")); err == nil {
		return dir, nil
	}
	made, err := s.makeCertificates(ctx, jdk, text)
	if err != nil {
		return "", err
	}
	aside, err := os.MkdirTemp(programs, ".cacerts-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(aside) }()
	if err := os.WriteFile(filepath.Join(aside, "cacerts"), made, 0o644); err != nil {
		return "", err
	}
	return dir, install.Publish(aside, dir)
}

// makeCertificates converts a bundle of certificates to a JVM's format.
func (s *site) makeCertificates(ctx context.Context, jdk string, bundle []byte) ([]byte, error) {
	b, err := install.NewBench(s.step)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(b.Write("bundle", bundle), b.Mkdir("out")); err != nil {
		return nil, err
	}
	if err := certificates(ctx, b, jdk, "/work/bundle", "/work/out/cacerts"); err != nil {
		return nil, err
	}
	return b.Read("out/cacerts")
}

// noAnswer matches Maven's messages about a faulty request, not a faulty network.
var noAnswer = regexp.MustCompile(`Could not find artifact|was not found in|Non-resolvable import POM|Non-resolvable parent POM|is missing|No versions available|Non-parseable POM|Malformed POM|Unrecognised tag|Could not resolve version conflict|must be a valid version`)

// failed makes the user's error from Maven's output.
func failed(err error, words string) error {
	lines := install.Lines(words, func(l string) bool {
		return strings.HasPrefix(l, "[Help ") || strings.HasPrefix(l, "To see the full stack trace") || strings.HasPrefix(l, "Re-run Maven") ||
			strings.HasPrefix(l, "For more information") || strings.HasPrefix(l, "[WARNING]") || l == "->"
	}, "[ERROR] ", "[ERROR]", "[FATAL] ")
	return install.PackageFailed(err, "maven", strings.Join(lines, "\n"), noAnswer)
}

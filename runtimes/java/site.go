package java

// Site is the source of packages.maven: the repositories of the host's own configuration, by way of
// Debian's Maven. It implements image.Site.
type Site struct {
	JDK   []string // Debian packages to add to the base "java" for a JDK
	Tools []string // and for Maven
}

// Name is "maven".
func (Site) Name() string { return "maven" }

// Bases is FRE's base with a JVM.
func (Site) Bases() []string { return []string{"java"} }

// Env is empty: the bootstrap knows the directory of the jars.
func (Site) Env() []string { return nil }

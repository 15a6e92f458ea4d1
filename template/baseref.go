package template

// BaseKind says where a base environment comes from.
type BaseKind string

// The kinds of bases.
const (
	BaseDebian  BaseKind = ""        // FRE's own, made from the distribution's packages
	BaseOCI     BaseKind = "oci"     // an image from a registry or in the store
	BaseArchive BaseKind = "archive" // output of docker save, or an OCI layout as a tar
	BaseLayout  BaseKind = "layout"  // directory of an OCI layout
	BaseDir     BaseKind = "dir"     // directory of a root file system
)

// BaseRef names the base environment of a template.
type BaseRef struct {
	Kind    BaseKind
	Name    string // of an FRE base; otherwise a reference, or a clean path below the template's directory
	Release string // of an FRE base: codename of the distribution's release; "" for the host's
}

// String returns the base as a template writes it.
func (r BaseRef) String() string {
	switch {
	case r.Kind != BaseDebian:
		return string(r.Kind) + ":" + r.Name
	case r.Release != "":
		return r.Name + ":" + r.Release
	}
	return r.Name
}

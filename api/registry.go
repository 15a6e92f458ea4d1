package api

// TravelLine is one line of the answer of an image transfer (load, import, pull, push):
// progress, the result, or an error. The last line has the error or the result: the images, and the
// digest of the manifest at the registry.
type TravelLine struct {
	Progress *Progress `json:"event,omitempty"`
	Images   []Image   `json:"images,omitempty"`
	Digest   string    `json:"digest,omitempty"` // for a pull or a push
	Error    *Error    `json:"error,omitempty"`
}

// PullRequest names the image to pull.
type PullRequest struct {
	Ref      string        `json:"ref"`                // "name:version" at docker.io, "host:port/path:version", or either with "@sha256:…"
	Platform string        `json:"platform,omitempty"` // such as "linux/amd64"; default: the engine's platform
	Auth     *RegistryAuth `json:"auth,omitempty"`
}

// PushRequest names the image to push and the destination.
type PushRequest struct {
	Image string        `json:"image"`        // name, name:version, digest or digest prefix
	To    string        `json:"to,omitempty"` // name at the registry; default: the image's name
	Auth  *RegistryAuth `json:"auth,omitempty"`
	// AsImage pushes an image built by FRE as an ordinary image that other engines can run.
	AsImage bool `json:"as_image,omitempty"`
	// NoSBOM omits the bill of materials, which the engine otherwise pushes with the image.
	NoSBOM bool `json:"no_sbom,omitempty"`
}

// ResolveRequest asks a registry for the digest of an image.
type ResolveRequest struct {
	Ref  string        `json:"ref"`
	Auth *RegistryAuth `json:"auth,omitempty"`
}

// Resolved is the registry's reference of an image.
type Resolved struct {
	Ref string `json:"ref"` // "host/path@sha256:…"
}

// SignRequest stores a signature beside an image at the image's registry. The client has made
// the signature, so the engine never sees a private key.
type SignRequest struct {
	Ref       string        `json:"ref"`       // "host/path@sha256:…"
	Payload   string        `json:"payload"`   // signed content
	Signature string        `json:"signature"` // in base64
	Auth      *RegistryAuth `json:"auth,omitempty"`
}

// RegistryAuth is a login at a registry; the zero value means anonymous access. Without a
// RegistryAuth, the engine uses the Docker configuration of its own user. A client that acts for
// another user sends the login of that user, as the command line does.
type RegistryAuth struct {
	Username      string `json:"username,omitempty"`
	Password      string `json:"password,omitempty"`
	IdentityToken string `json:"identity_token,omitempty"`
	RegistryToken string `json:"registry_token,omitempty"`
}

// RegistryConfigHeader carries registry logins with a template's directory: a
// map[string]RegistryAuth by registry host ("index.docker.io", "host:5000"), as JSON in URL-safe
// base64. The engine uses the login for the registry of the template's base image, and otherwise
// the login of the engine's user. Docker's clients use the same header.
const RegistryConfigHeader = "X-Registry-Config"

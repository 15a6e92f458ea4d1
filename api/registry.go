package api

// TravelLine is one line of the answer where an image comes in or goes out: an
// event, or, as the last line, the images and the digest of the manifest at a
// registry, or the error.
type TravelLine struct {
	Event  *Event  `json:"event,omitempty"`
	Images []Image `json:"images,omitempty"`
	Digest string  `json:"digest,omitempty"` // of a pull and a push
	Error  *Error  `json:"error,omitempty"`
}

// PullRequest says which image to get.
type PullRequest struct {
	Ref      string        `json:"ref"`                // "name:version" of docker.io, "host:port/path:version", or with "@sha256:…"
	Platform string        `json:"platform,omitempty"` // "linux/amd64"; the engine's if empty
	Auth     *RegistryAuth `json:"auth,omitempty"`
}

// PushRequest says which image to send and where.
type PushRequest struct {
	Image string        `json:"image"`        // name, name:version, digest or a prefix of it
	To    string        `json:"to,omitempty"` // the name there; the image's own if empty
	Auth  *RegistryAuth `json:"auth,omitempty"`
	// AsImage sends what FRE built as an ordinary image, which other engines run.
	AsImage bool `json:"as_image,omitempty"`
	// NoSBOM leaves out the bill of materials that is else put beside it.
	NoSBOM bool `json:"no_sbom,omitempty"`
}

// ResolveRequest asks for the digest of an image at its registry.
type ResolveRequest struct {
	Ref  string        `json:"ref"`
	Auth *RegistryAuth `json:"auth,omitempty"`
}

// Resolved is what a registry calls an image.
type Resolved struct {
	Ref string `json:"ref"` // "host/path@sha256:…"
}

// SignRequest puts a signature beside an image at its registry. Whoever asks has
// made it: no private key comes to the engine.
type SignRequest struct {
	Ref       string        `json:"ref"`       // "host/path@sha256:…"
	Payload   string        `json:"payload"`   // what is signed
	Signature string        `json:"signature"` // in base64
	Auth      *RegistryAuth `json:"auth,omitempty"`
}

// RegistryAuth is a login at a registry; an empty one is nobody. Without one the
// engine uses docker's configuration of the user it runs as: clients that act for
// somebody else send theirs, as the command line does.
type RegistryAuth struct {
	Username      string `json:"username,omitempty"`
	Password      string `json:"password,omitempty"`
	IdentityToken string `json:"identity_token,omitempty"`
	RegistryToken string `json:"registry_token,omitempty"`
}

// RegistryConfigHeader goes with a template's directory: logins by the host of a
// registry ("index.docker.io", "host:5000"), JSON of map[string]RegistryAuth in
// base64 for URLs. The one for the registry of the template's base image is used for
// that; without one the engine's user's is. Docker's clients call it so, too.
const RegistryConfigHeader = "X-Registry-Config"

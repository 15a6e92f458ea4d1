// Package api holds the wire types of FRE's native control API: what travels
// as JSON between the client and the engine over its Unix socket. openapi.yaml
// beside it describes the routes; a test in package server keeps the two and
// the server's routes equal.
//
// The types are plain values. Times are RFC 3339 in UTC, durations nanoseconds
// in fields named …_ns, sizes bytes.
package api

import (
	"encoding/json"
	"time"
)

// LockFile is the name of the file beside fret.yaml that pins what a build
// resolved. The engine makes its content, the client writes it.
const LockFile = "fret.lock"

// TemplateFile is the name of the template in its directory.
const TemplateFile = "fret.yaml"

// Version says which program answers.
type Version struct {
	Version string `json:"version"`
	Commit  string `json:"commit,omitempty"`
	Go      string `json:"go"`
	OS      string `json:"os"`
	Arch    string `json:"arch"`
}

// Check is one line of `fre doctor`. CostNanos and CostOf are there where costs
// were asked for and this check's could be measured; CostOf alone says why not.
type Check struct {
	ID       string `json:"id"` // as the daemon's configuration calls it
	Name     string `json:"name"`
	OK       bool   `json:"ok"`
	Optional bool   `json:"optional,omitempty"` // nothing is amiss where it is not ok
	Found    string `json:"found"`
	Does     string `json:"does,omitempty"`   // what FRE does with what it found
	Effect   string `json:"effect,omitempty"` // what follows for functions where it is not ok
	Next     string `json:"next,omitempty"`   // what to do about it

	CostNanos int64  `json:"cost_ns,omitempty"` // median of what CostOf names takes on this host
	CostOf    string `json:"cost_of,omitempty"`
}

// Doctor is the answer of /v1/doctor.
type Doctor struct {
	Checks []Check `json:"checks"`
}

// Syscall is how often the engine made one system call.
type Syscall struct {
	Name  string `json:"name"`
	Calls int64  `json:"calls"`
}

// SyscallLine is a line of the answer of /v1/debug/syscalls: the first says that it
// counts, the last has the counts or the error.
type SyscallLine struct {
	Counting bool      `json:"counting,omitempty"`
	Syscalls []Syscall `json:"syscalls,omitempty"`
	Error    *Error    `json:"error,omitempty"`
}

// Image is a committed image as lists show it. Name and Version are those of
// the first of Names, empty where it has none.
type Image struct {
	Digest  string    `json:"digest"` // "sha256:…"
	Name    string    `json:"name"`
	Version string    `json:"version"`
	Names   []string  `json:"names,omitempty"` // "name:version", all of them
	Base    string    `json:"base,omitempty"`
	Kind    string    `json:"kind,omitempty"` // "base", or "tools" of a builder's own; none for a function's
	Created time.Time `json:"created"`
	Size    int64     `json:"size"`  // bytes of all files
	Files   int       `json:"files"` // number of files
}

// ImageChanges is what has become of the list of images since a generation.
type ImageChanges struct {
	Generation uint64   `json:"generation"` // to ask from the next time, or for events since
	Complete   bool     `json:"complete"`   // Changed is the whole list: so much has happened that it is not remembered
	Changed    []Image  `json:"changed"`    // new, or with other names
	Removed    []string `json:"removed"`    // digests
}

// Change is one change of what lists show.
type Change struct {
	Generation uint64            `json:"generation"` // counts the changes of everything; never comes twice
	Time       time.Time         `json:"time"`
	Kind       string            `json:"kind"`           // "image", "function", "sandbox"
	Action     string            `json:"action"`         // "create", "tag", "untag", "delete"; "deploy", "remove"; "start", "exit"; of containers also "create", "rename", "delete"
	ID         string            `json:"id"`             // an image's digest, a function's name, a sandbox's id
	Name       string            `json:"name,omitempty"` // "name:version" of an image, a function's name
	Attributes map[string]string `json:"attributes,omitempty"`
}

// ChangeEntry is one line of the answer of the events route: a change, or the
// error that broke the stream off.
type ChangeEntry struct {
	Change *Change `json:"change,omitempty"`
	Error  *Error  `json:"error,omitempty"`
}

// ImageUsage is what an image takes on disk, in blocks and inodes. What is not
// unique to it other images have, too.
type ImageUsage struct {
	Digest       string `json:"digest"`
	Name         string `json:"name"`
	Version      string `json:"version"`
	Bytes        int64  `json:"bytes"`
	Inodes       int64  `json:"inodes"`
	UniqueBytes  int64  `json:"unique_bytes"`
	UniqueInodes int64  `json:"unique_inodes"`
	InUse        bool   `json:"in_use"` // by a function or a sandbox: it cannot be removed
}

// TenantUsage is what a tenant keeps in /work, in blocks and inodes.
type TenantUsage struct {
	Name       string     `json:"name"`
	Kind       string     `json:"kind"` // "quota", "image" (a file system of its own) or "plain" (walked now and then)
	Bytes      int64      `json:"bytes"`
	Inodes     int64      `json:"inodes"`
	LimitBytes int64      `json:"limit_bytes,omitempty"`
	AsOf       *time.Time `json:"as_of,omitempty"` // when it was counted; none: not yet
}

// ContainerUsage is what a container has written to its root, in blocks and inodes.
type ContainerUsage struct {
	ID      string     `json:"id"`
	Name    string     `json:"name"`
	Running bool       `json:"running"`
	Bytes   int64      `json:"bytes"`
	Inodes  int64      `json:"inodes"`
	AsOf    *time.Time `json:"as_of,omitempty"` // when it was counted; none: it has not run, or not yet
}

// CacheUsage is what builds have downloaded, in blocks and inodes.
type CacheUsage struct {
	Bytes  int64      `json:"bytes"`
	Inodes int64      `json:"inodes"`
	AsOf   *time.Time `json:"as_of,omitempty"` // when it was counted; none: not yet
}

// DiskUsage is the answer of /v1/system/df.
type DiskUsage struct {
	Images           []ImageUsage     `json:"images"`            // newest first
	ImageBytes       int64            `json:"image_bytes"`       // of all together, what they share once
	ImageInodes      int64            `json:"image_inodes"`      // likewise
	ReclaimableBytes int64            `json:"reclaimable_bytes"` // what would be free without the images that nothing uses
	Tenants          []TenantUsage    `json:"tenants"`
	Containers       []ContainerUsage `json:"containers"` // newest first
	Cache            CacheUsage       `json:"cache"`
}

// Part is a tree placed in an image.
type Part struct {
	Kind    string `json:"kind"` // "base", "pip", "npm", "bootstrap", "code"
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
	Tree    string `json:"tree"`
	Prefix  string `json:"prefix,omitempty"` // directory below the root
}

// ImageDetails is an image with what it is made of. Config is the image's
// configuration as its manifest holds it.
type ImageDetails struct {
	Image
	Parts  []Part          `json:"parts"`
	Config json.RawMessage `json:"config,omitempty"`
}

// HistoryStep is one step of how an image was made.
type HistoryStep struct {
	Created   time.Time `json:"created"`
	CreatedBy string    `json:"created_by"`
	Author    string    `json:"author,omitempty"`
	Comment   string    `json:"comment,omitempty"`
	Size      int64     `json:"size"` // bytes of the files it added
}

// TagRequest gives an image one more name.
type TagRequest struct {
	Name string `json:"name"` // "name:version", or "name" for version "latest"
}

// RemovedImage says what became of an image that was to be removed: as it was,
// with the names that are gone.
type RemovedImage struct {
	Image
	Untagged []string `json:"untagged,omitempty"`
	Deleted  bool     `json:"deleted"` // the image is gone, too
}

// Function is a deployed name.
type Function struct {
	Name        string    `json:"name"`
	Image       string    `json:"image"`     // digest
	ImageRef    string    `json:"image_ref"` // "name:version"
	Base        string    `json:"base"`
	Tenant      string    `json:"tenant"`
	Deployed    time.Time `json:"deployed"`
	Instances   int       `json:"instances"`      // live sandboxes
	Busy        int       `json:"busy"`           // events being handled
	Queued      int       `json:"queued"`         // events waiting for an instance
	Fork        string    `json:"fork,omitempty"` // whether its instances are forked, or why not: "on", "waiting", "off: the module …"; empty where its runtime cannot
	Invocations uint64    `json:"invocations"`
	Failures    uint64    `json:"failures"`
}

// FunctionDetails is a function with its image's configuration.
type FunctionDetails struct {
	Function
	Config   json.RawMessage `json:"config,omitempty"`
	Defences []string        `json:"defences"`         // in force around its sandboxes, besides namespaces and limits
	Shells   *Shells         `json:"shells,omitempty"` // none if its interpreter is not started ahead
}

// Shells are the interpreters started ahead that a function's instances can
// begin with; functions on the same base share them.
type Shells struct {
	Ready       int   `json:"ready"`        // parked now
	Want        int   `json:"want"`         // as many as recent demand asks for
	MemoryBytes int64 `json:"memory_bytes"` // of one
}

// PruneRequest says which images are not wanted any more; with no rule it is
// those without a name. What is in use always stays, and base environments and
// the builder's tools go by UnusedNanos and MaxBytes only.
type PruneRequest struct {
	All         bool       `json:"all,omitempty"`       // rule: every image
	UnusedNanos int64      `json:"unused_ns,omitempty"` // rule: images not used for so long
	PerName     int        `json:"per_name,omitempty"`  // rule: all but so many of one name, newest first
	MaxBytes    int64      `json:"max_bytes,omitempty"` // rule: least recently used images, until files take no more
	Before      *time.Time `json:"before,omitempty"`    // only images made before
	Labels      []string   `json:"labels,omitempty"`    // only images with all of these: "key" or "key=value"
	Keep        []string   `json:"keep,omitempty"`      // never images with such a name: patterns for "name:version" or the name alone
	DryRun      bool       `json:"dry_run,omitempty"`   // say what would go
}

// GCRequest asks for what the engine does now and then by itself.
type GCRequest struct {
	DryRun bool `json:"dry_run,omitempty"` // say what would go
	Cache  bool `json:"cache,omitempty"`   // all that builds have downloaded, too
}

// GCReport says what went, or would go. Bytes are what the disk had allocated;
// of a dry run, and of each image, they are an estimate.
type GCReport struct {
	DryRun     bool          `json:"dry_run,omitempty"`
	Images     []PrunedImage `json:"images"`
	Parts      int           `json:"parts"`   // remembered for builds
	Trees      int           `json:"trees"`   // lists of files
	Objects    int           `json:"objects"` // files
	Inodes     int           `json:"inodes"`
	Bytes      int64         `json:"bytes"`
	CacheBytes int64         `json:"cache_bytes,omitempty"` // of them what builds had downloaded
	TookNanos  int64         `json:"took_ns"`
}

// PrunedImage is an image that went, with its names, and the one it was built
// under.
type PrunedImage struct {
	Digest string   `json:"digest"`
	Names  []string `json:"names,omitempty"`
	Built  string   `json:"built,omitempty"`
	Rule   string   `json:"rule"` // "nameless", "all", "unused", "per_name" or "max_bytes"
	Bytes  int64    `json:"bytes"`
}

// FsckRequest asks for a check of everything the engine has stored.
type FsckRequest struct {
	Repair bool `json:"repair,omitempty"` // put right what can be, drop what is lost
}

// FsckLine is one line of the answer to that: a problem, what was read so far, or
// as the last line the result or the error.
type FsckLine struct {
	Problem *FsckProblem `json:"problem,omitempty"`
	Reading string       `json:"reading,omitempty"` // "objects", "trees", "images"
	Done    int          `json:"done,omitempty"`    // of these, so far
	Result  *FsckResult  `json:"result,omitempty"`
	Error   *Error       `json:"error,omitempty"`
}

// FsckProblem is one thing that is wrong in the store.
type FsckProblem struct {
	Path   string `json:"path"`             // below the store's directory
	What   string `json:"what"`             // what is wrong
	Repair string `json:"repair,omitempty"` // what was done about it
}

// FsckResult says what a check has read and found.
type FsckResult struct {
	Objects  int   `json:"objects"` // files, all of them hashed
	Bytes    int64 `json:"bytes"`
	Trees    int   `json:"trees"`
	Images   int   `json:"images"`
	Problems int   `json:"problems"`
	Repaired int   `json:"repaired"`
}

// DeployRequest is the JSON body of a deployment of an image that is already
// there.
type DeployRequest struct {
	Image   string `json:"image"`             // name, name:version, digest or a prefix of it
	Name    string `json:"name,omitempty"`    // the image's name if empty
	Replace bool   `json:"replace,omitempty"` // take the name over from another template's function
}

// Event is one line of build progress.
type Event struct {
	Step    string `json:"step"`              // "base", "packages", "code", "link"
	Name    string `json:"name,omitempty"`    // the part in question
	Message string `json:"message,omitempty"` // for people
	Done    int64  `json:"done,omitempty"`    // of Total, bytes or items
	Total   int64  `json:"total,omitempty"`
}

// BuildLine is one line of a build's or a deployment's answer: an event, or,
// as the last line, what came of it: the image (with the lock to write beside
// the template where there is one, and the function of a deployment), or the
// error.
type BuildLine struct {
	Event    *Event          `json:"event,omitempty"`
	Image    *Image          `json:"image,omitempty"`
	Lock     json.RawMessage `json:"lock,omitempty"` // content of fret.lock
	Function *Function       `json:"function,omitempty"`
	Error    *Error          `json:"error,omitempty"`
}

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
}

// RegistryAuth is a login at a registry. Without one the engine uses docker's
// configuration of the user it runs as.
type RegistryAuth struct {
	Username      string `json:"username,omitempty"`
	Password      string `json:"password,omitempty"`
	IdentityToken string `json:"identity_token,omitempty"`
	RegistryToken string `json:"registry_token,omitempty"`
}

// Sandbox is one sandbox that lives, or of the last ones that ended.
type Sandbox struct {
	ID       string     `json:"id"`
	Function string     `json:"function,omitempty"` // empty for runs, build steps and containers
	Name     string     `json:"name,omitempty"`     // of a container
	Image    string     `json:"image,omitempty"`
	Tenant   string     `json:"tenant,omitempty"`
	Command  string     `json:"command"`
	State    string     `json:"state"` // "starting", "parked", "idle", "busy", "stopping", "exited"; of containers "created", "running", "exited"
	PID      int        `json:"pid,omitempty"`
	Created  time.Time  `json:"created"`
	Ended    *time.Time `json:"ended,omitempty"`
	Exit     *Exit      `json:"exit,omitempty"`
	Size     *Size      `json:"size,omitempty"`     // where asked for, of live ones
	Stats    *Stats     `json:"stats,omitempty"`    // likewise
	Defences []string   `json:"defences,omitempty"` // in force besides namespaces and limits, of live ones
}

// ContainerRequest says what a container is made from; what it leaves out, the
// image says.
type ContainerRequest struct {
	Image      string   `json:"image"`
	Name       string   `json:"name,omitempty"`   // made up if empty
	Tenant     string   `json:"tenant,omitempty"` // "default" if empty
	Entrypoint []string `json:"entrypoint,omitempty"`
	Args       []string `json:"args,omitempty"`
	Env        []string `json:"env,omitempty"` // KEY=value
	Dir        string   `json:"dir,omitempty"`
	User       string   `json:"user,omitempty"`     // USER[:GROUP]
	Groups     []string `json:"groups,omitempty"`   // further ones of that user
	CapAdd     []string `json:"cap_add,omitempty"`  // capabilities root keeps though cap_drop names them
	CapDrop    []string `json:"cap_drop,omitempty"` // capabilities root is not to have, or ALL
	Network    string   `json:"network,omitempty"`  // "none", "egress", "host"
	Memory     string   `json:"memory,omitempty"`   // limit, as "512MiB"
	CPUMillis  int64    `json:"cpu_millis,omitempty"`
	Pids       int64    `json:"pids,omitempty"`
	Scratch    string   `json:"scratch,omitempty"` // limit of what it writes to its root, as "1GiB"
	ReadOnly   bool     `json:"read_only,omitempty"`
	Work       string   `json:"work,omitempty"`  // "ro", "rw": whether it sees the tenant's /work
	Stdin      bool     `json:"stdin,omitempty"` // it reads what the first attachment sends, to its end
	TTY        bool     `json:"tty,omitempty"`   // a terminal instead of three streams; its input does not end
	AutoRemove bool     `json:"auto_remove,omitempty"`
}

// Container is a sandbox that keeps what it writes until it is removed.
type Container struct {
	ID       string     `json:"id"`
	Name     string     `json:"name"`
	Image    string     `json:"image"`
	Digest   string     `json:"digest"`
	Tenant   string     `json:"tenant"`
	Args     []string   `json:"args"` // program and arguments
	Dir      string     `json:"dir"`
	User     string     `json:"user"`
	Stdin    bool       `json:"stdin"` // it reads what attachments send
	TTY      bool       `json:"tty"`   // at a terminal
	State    string     `json:"state"` // "created", "running", "exited"
	PID      int        `json:"pid,omitempty"`
	Created  time.Time  `json:"created"`
	Started  *time.Time `json:"started,omitempty"`
	Finished *time.Time `json:"finished,omitempty"`
	Exit     *Exit      `json:"exit,omitempty"`  // of the last run
	Error    string     `json:"error,omitempty"` // why it could not be started, the last time
}

// RenameRequest gives a container another name.
type RenameRequest struct {
	Name string `json:"name"`
}

// ContainerPruneRequest asks for the removal of the containers that do not run.
type ContainerPruneRequest struct {
	Before *time.Time `json:"before,omitempty"`  // only those made before
	DryRun bool       `json:"dry_run,omitempty"` // say what would go
}

// ContainerPruneReport says what went, or would go: blocks and inodes of what was
// written to roots.
type ContainerPruneReport struct {
	DryRun     bool             `json:"dry_run,omitempty"`
	Containers []ContainerUsage `json:"containers"` // newest first
	Bytes      int64            `json:"bytes"`
	Inodes     int64            `json:"inodes"`
}

// Process is one of a sandbox's.
type Process struct {
	PID      int       `json:"pid"`    // on the host
	Parent   int       `json:"parent"` // likewise; of the first process the spawner
	UID      int       `json:"uid"`    // on the host
	Started  time.Time `json:"started"`
	CPUNanos int64     `json:"cpu_ns"`  // user and system time so far
	Command  string    `json:"command"` // with its arguments; "[name]" where it has none
}

// Size is what a sandbox holds in its writable file systems: what is in use
// there, not the lengths of files.
type Size struct {
	Bytes int64 `json:"bytes"`
	Files int64 `json:"files"` // and directories
}

// Stats is what a sandbox uses now.
type Stats struct {
	MemoryBytes int64 `json:"memory_bytes"`
	CPUNanos    int64 `json:"cpu_ns"` // user and system time so far
	Processes   int   `json:"processes"`
	TmpBytes    int64 `json:"tmp_bytes"` // of /tmp
	TmpFiles    int64 `json:"tmp_files"`
}

// Exit says how a sandbox's first process ended and what its tree used.
type Exit struct {
	Code           int   `json:"code"`             // exit status, -1 if ended by a signal
	Signal         int   `json:"signal,omitempty"` // signal number, 0 if it exited
	OOMKilled      bool  `json:"oom_killed,omitempty"`
	CPUNanos       int64 `json:"cpu_ns"`
	MaxMemoryBytes int64 `json:"max_memory_bytes"`

	Start string      `json:"start,omitempty"` // of a run: spawner, shell or attached
	Trace []TraceStep `json:"trace,omitempty"` // of a run that asked for it
}

// TraceStep is one step of a start.
type TraceStep struct {
	Name      string `json:"name"`
	DoneNanos int64  `json:"done_ns"` // since the start began
}

// LogLine is one line a function wrote or logged.
type LogLine struct {
	Time       time.Time `json:"time"`
	Function   string    `json:"function"`
	Sandbox    string    `json:"sandbox"`
	Invocation string    `json:"invocation,omitempty"`
	Stream     string    `json:"stream"` // "stdout", "stderr", "log"
	Level      string    `json:"level,omitempty"`
	Text       string    `json:"text"`
}

// LogEntry is one line of the answer of the logs route: a log line, or the
// error that broke the stream off.
type LogEntry struct {
	Line  *LogLine `json:"line,omitempty"`
	Error *Error   `json:"error,omitempty"`
}

// RunRequest starts a command in a sandbox of its own. It travels as the JSON
// body of an upgrade request; see frame.go for what follows.
type RunRequest struct {
	Image  string   `json:"image"`
	Args   []string `json:"args"`
	Env    []string `json:"env,omitempty"` // KEY=value
	Tenant string   `json:"tenant,omitempty"`
	Trace  bool     `json:"trace,omitempty"` // note when each step of the start was done
}

// TemplateInfo is what a good template says about itself.
type TemplateInfo struct {
	ID      string `json:"id"`
	Version string `json:"version"`
	Base    string `json:"base"`
}

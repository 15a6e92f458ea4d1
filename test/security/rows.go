package security

// Row is an attack known to have worked elsewhere, with the tests that run the attack on FRE. A
// test is written "package directory.TestName", as in SPECIFICATION.md.
type Row struct {
	Attack string
	Tests  []string
}

// Rows lists the attacks that FRE withstands. The table of docs/threat-model.md has the same rows
// and tests, and names the defence against each attack. test/docs compares both tables, and checks
// that each test exists and that Rows contains every test of this package.
var Rows = []Row{
	{"overwrite the runtime's program from inside (CVE-2019-5736)", []string{"test/security.TestOverwriteRuntime"}},
	{"catch a process of the runtime's that enters (CVE-2016-9962)", []string{"test/security.TestNothingJoins"}},
	{"a directory the runtime left open, as fd or working directory (CVE-2024-21626)", []string{"test/security.TestLeakedFile"}},
	{"mount points that are symbolic links, or become some (CVE-2021-30465, CVE-2019-19921, CVE-2025-31133, CVE-2025-52565, CVE-2025-52881)", []string{"test/security.TestSymlinkedMountPoints", "test/security.TestSwappedMountPoints", "test/security.TestContainerMountPoints"}},
	{"an image or volume that brings its own /proc (CVE-2019-16884)", []string{"test/security.TestImageProc"}},
	{"mount a cgroup file system for its release_agent (CVE-2022-0492); mount anything", []string{"test/security.TestMounts"}},
	{"mounts that spread to or from the host and neighbours", []string{"test/security.TestSharedMounts"}},
	{"floods of calls, garbage about them, answers left unread, calls of oneself without end, calls of another tenant's functions", []string{"engine.TestCallsHostile", "engine.TestCallLoops", "engine.TestCalls", "channel.TestCallFlood", "channel.TestCallMalformed"}},
	{"set the host's kernel or read it through /proc and /sys", []string{"test/security.TestProc", "test/security.TestProcFiles", "test/security.TestContainerSees"}},
	{"capabilities, root's ids, priorities, the clock", []string{"test/security.TestPrivileges"}},
	{"the root of an ordinary image: its capabilities and its writable root", []string{"test/security.TestContainerRoot", "sandbox.TestContainerPrivileges", "sandbox.TestContainerCapabilities", "sandbox.TestScratch"}},
	{"files of a container's that mean something to the kernel: whiteouts, attributes of overlays and capabilities (CVE-2021-3493, CVE-2023-2640), devices, set-id programs", []string{"test/security.TestContainerFiles", "test/security.TestContainerDevices", "test/security.TestContainerSetuid"}},
	{"change or replace what the engine mounts into a container", []string{"test/security.TestContainerGivenFiles"}},
	{"users that an image makes up, or lists of them that are links to the host's", []string{"engine/container.TestUserOf", "engine/container.TestUserOfLinks", "engine/container.FuzzLookUp"}},
	{"a container's terminal: words its user seems to have typed (CVE-2017-5226), drivers that only hardware needs (CVE-2017-2636, CVE-2023-6546), others' terminals", []string{"test/security.TestContainerTerminal", "sandbox.TestTerminal"}},
	{"ports of the host below 1024", []string{"test/security.TestContainerPorts"}},
	{"set-uid bits and file capabilities of a shared file", []string{"test/security.TestSetuid", "image/oci.TestLoadedRoot"}},
	{"change what images share in the store", []string{"test/security.TestStoreTampering"}},
	{"the kernel's keys", []string{"test/security.TestKeys"}},
	{"servers of the host: loopback, abstract sockets, sockets in directories", []string{"test/security.TestHostSockets", "test/security.TestGivenSocket"}},
	{"servers of a neighbour", []string{"test/security.TestNeighbourSockets"}},
	{"learn from a network namespace what its last sandbox did", []string{"sandbox/netns.TestTraces", "sandbox/netns.TestNotClean", "sandbox/egress.TestRecycle"}},
	{"AF_VSOCK and other families that reach beyond network namespaces", []string{"test/security.TestSocketFamilies"}},
	{"new user namespaces and what they unlock: unshare, clone, clone3, setns", []string{"test/security.TestNamespaces"}},
	{"the one capability of a fork server, and lies about its children", []string{"test/security.TestForkServer", "engine.TestForkHostile", "engine.TestForkServerPower"}},
	{"rarely used parts of the kernel: bpf, io_uring, userfaultfd, ptrace and their kin", []string{"test/security.TestSystemCalls"}},
	{"bombs of processes, memory, open files and CPU", []string{"test/security.TestBombs", "test/robustness.TestNeighbours"}},
	{"make what cannot be removed: directories deeper than the engine may open files", []string{"internal/linux.TestRemoveAllDeep", "volume.TestRemoveDeep", "store.TestOpenRemovesDeep"}},
	{"kernel memory that the memory limit does not count: data in sockets on cgroup v1, answers that wait in netlink sockets, file locks", []string{"test/security.TestKernelMemory", "sandbox/cgroup.TestFlooded", "sandbox/cgroup.TestLocks", "sandbox/netns.TestQueuedOf"}},
	{"fill the disk", []string{"test/security.TestDiskFill", "test/security.TestContainerFillsDisk", "test/robustness.TestNeighbours"}},
	{"flood the log", []string{"engine.TestLogFlood", "engine/live.TestLogPace", "engine.TestLogFramesPace", "test/robustness.TestNeighbours"}},
	{"core dumps and the host's core_pattern", []string{"test/security.TestNoCore"}},
	{"read another tenant's secrets, by paths, by other processes, in an image, in what the host shows of processes", []string{"test/security.TestOthersSecrets", "sandbox.TestSecrets", "sandbox.TestFurnishSecrets", "engine.TestSecretsDelivered", "test/system.TestTenants"}},
	{"secrets and tokens on the disk: copied, moved to another tenant's place, changed", []string{"access.TestPersistence", "access.TestSecretMoved", "access.TestKeyFile"}},
	{"act as another tenant by the control API: names, images, logs, sandboxes, metrics, tokens", []string{"server.TestTenantSeesItsOwn", "server.TestForeignIsMissing", "gateway.TestInvokeByToken", "gateway.TestMetricsOfTenant", "test/system.TestTenants"}},
	{"routes of the API that nobody thought of guarding", []string{"server.TestEveryRouteIsGuarded"}},
	{"tenants' records on their way between nodes, and in NATS: read, changed, brought back after they were revoked", []string{"access.TestShareRow", "access.FuzzShare", "access.TestShareAway", "cluster.TestRecordsEverywhere", "cluster.TestRecordsPartition", "test/cluster.TestTenantsOfNodes"}},
	{"have the engine connect to the host's own servers, its private networks or a cloud's metadata: by a registry, a repository, its submodules, a redirect, a name that leads there; learn open ports from what it answers", []string{"internal/outward.TestRefused", "internal/outward.TestRefusal", "internal/outward.TestProxy", "internal/outward.TestNextProxy", "engine.TestOutward", "runtimes.TestCodeFromGitForTenant"}},
	{"guess tokens, forge those of an issuer, have the engine ask the issuer over and over", []string{"access.TestBruteForce", "access.TestTokenRefused", "access.FuzzAuthorization", "access.TestOIDC", "access.TestOIDCGuesses"}},
	{"a function that collects its callers' tokens; tokens sent in the clear", []string{"gateway.TestInvokeByToken", "test/system.TestAPIListenInTheClear"}},
	{"take all instances, memory, CPU, images, builds or events: a noisy tenant", []string{"engine.TestQuotaInstances", "engine.TestContainerQuota", "engine.TestBuildsQuota", "engine.TestImagesQuota", "engine.TestQuotaCounts", "access.TestEventQuota", "gateway.TestEventsPerSecond", "gateway.TestClientRate"}},
	{"an agent's commands: without end, fork bombs, a full /work, endless output; a language model that asks for more network; a command that speaks in its agent's place", []string{"test/system.TestAgents", "engine.TestAgentCalls", "engine.TestAgentSnapshotFits", "cmd/fre.TestMCPNetwork"}},
	{"files put into /work: links out of it, renames, files that are still written, more than can be watched", []string{"events/inbox.TestHostile", "events/inbox.TestComplete", "events/inbox.TestMany", "events/inbox.TestOverflow"}},
	{"forge or guess what AWS's and OpenFaaS's clients sign; hostile archives by them", []string{"adapters/lambda.TestSignature", "adapters/openfaas.TestBuildGuessed", "test/system.TestLambdaAPI", "adapters/openfaas.FuzzBuildContext"}},
	{"do it unseen: gaps and torn lines in the audit log", []string{"server.TestAuditLog", "access.TestAuditTorn", "access.TestAuditRotation"}},
	{"outlive the time-out: daemons, ignored SIGTERM", []string{"test/security.TestTimeouts"}},
	{"learn host paths from mounts and open files", []string{"test/security.TestHostPaths", "test/security.TestContainerSees"}},
	{"the engine's control socket: whoever may open it, sizes, unwanted open files", []string{"test/security.TestSocketPeer", "server.TestPeers", "test/security.TestSocketSizes", "test/security.TestSocketRights"}},
	{"the function's own channel: malformed frames, unwanted open files", []string{"channel.FuzzConn", "channel.FuzzFiles", "channel.TestWrongFiles", "test/security.TestChannelRights", "test/security.TestChannelFiles"}},
}

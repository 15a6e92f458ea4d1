// Package events runs functions asynchronously. It accepts an event once the event is on disk, runs
// the event when the engine has room, retries failed attempts, and keeps the result.
//
//	Publish ─► queue of the tenant ──► a turn, and room in the engine ──► the function
//	           fre.events.TENANT.         │ failed: back-off, up to its retries
//	             PRIORITY.FUNCTION        ├─► fre.result.TENANT.FUNCTION.ID ─► callback
//	                                      └─► fre.letter.TENANT.FUNCTION.ID ─► replay
//
// All state is in streams of NATS JetStream, either in a server inside the process ([Config.Dir])
// or in a cluster ([Config.URL]), and the nats command line can read them. A queue is a work queue
// with explicit acknowledgements: an event is delivered at least once.
//
// [Service] is the only type with behaviour. Publish accepts events; List, Find, Replay and Watch
// are for operators. The package uses the engine only through [Engine]. It serves no HTTP, but
// refusals carry an HTTP status and callbacks are HTTP requests.
// An event's id is random, or a hash of the caller's key and the function's name. Publish does not
// accept an id again while the event is under way, its result is kept, or JetStream still remembers
// the id.
package events

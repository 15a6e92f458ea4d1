// Package events is asynchronous invocation: an event is taken on once it is on disk,
// run when there is room for it, tried again when it fails, and its result kept.
//
//	Publish ─► queue of the tenant ──► a turn, and room in the engine ──► the function
//	           fre.events.TENANT.         │ failed: back-off, up to its retries
//	             PRIORITY.FUNCTION        ├─► fre.results.TENANT.FUNCTION.ID ─► callback
//	                                      └─► fre.dead.TENANT.FUNCTION.ID ─► replay
//
// All of it is streams of NATS JetStream, in a server inside the process ([Config.Dir])
// or in a cluster ([Config.URL]): the nats command line reads them. A queue is a work
// queue with explicit acknowledgements; an event is delivered at least once.
//
// [Service] is the one type with behaviour: Publish takes events on, List, Find, Replay
// and Watch are for people. It knows of the engine what [Engine] says, and no HTTP.
//
// An event's id is the caller's key, hashed with the function's name, or random. What
// was taken on, or done and still remembered, under the same id is not taken on again.
package events

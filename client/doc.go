// Package client is the SDK: numbers of streams, from any process.
//
//	c, err := client.Dial(ctx, []string{"127.0.0.1:7100"})
//	r, err := c.Alloc(ctx, client.UID(42))
//	// r.First is the number; r.Prev the one before it
//
// # What a caller has
//
//   - Unique and ordered: a number is given once, and a call that began after
//     another returned gets a higher number of the same key.
//   - Contiguous: Prev is First-1, and was issued, unless Discontinuity is set.
//     Gaps lists the holes of the past.
//   - A moved key is followed. Planned operations of the cluster (drain,
//     restart, upgrade, rebalancing) fail no call; they delay some by milliseconds.
//   - WatchKeys pushes the newest numbers of many keys, and follows them too.
//   - A call ends by its context's deadline, or within the budget (WithBudget)
//     if it has none. All attempts and waits are within it.
//   - A call is repeated only where that cannot give a second number: when the
//     first attempt surely was not executed, or when the call has a request id.
//   - Concurrent calls to a node share RPCs, with no added delay: what queues
//     while batches are under way is the next batch. Order of arrival is kept,
//     and a large AllocMany goes in parts, so that it does not block others.
//   - Queues are bounded (WithQueue). At a full one a call backs off, and fails
//     with Busy at its deadline.
//   - Close refuses new calls and waits for those under way.
//
// # What an error means
//
// errors.Is(err, client.ErrBusy) and so on; errors.As to *Error for the key and
// the node. With all but UnknownResult, nothing was allocated. The kinds marked
// "retried" come out only when they lasted to the deadline.
//
//	InvalidArgument  the call is wrong                       correct it; never retried
//	Exhausted        the key has reached 2^63-1              use another key; never retried
//	Unauthorized     the credentials do not allow it         check them; never retried
//	UnknownResult    sent, and no answer came: a number may  read Current; or call with
//	                 have been issued to nobody              WithRequestID, and repeat it
//	NotOwner         the owner was not found                 retried
//	StaleEpoch       the owner was just replaced             retried
//	LeaseExpired     the owner lost touch with its cluster   retried
//	NotReady         the key's owner waits for the durable   retried
//	                 tier, or there is no owner yet
//	Busy             a queue is full, here or there          retried; call less at once
//	Unavailable      the node could not be reached, or the   retried
//	                 client is closed (ErrClosed)
//
// A call that hangs in a node is not waited for to its deadline once its key has
// moved away: half a second later it ends with UnknownResult, or is repeated
// elsewhere if that is harmless.
//
// A context that ends is reported the same way, with its error wrapped:
// UnknownResult if the call was under way, else what the last attempt failed with.
//
// # What it does not do
//
// It does not hedge, cache numbers, or read ahead: every number is the owner's
// answer to this call.
package client

package lease

import "time"

// Margin is by how much a holder's lease ends before the leader's.
func Margin(ttl time.Duration) time.Duration { return ttl / 10 }

// RaftTimeoutMax is the longest election time-out that a lease of ttl allows.
//
// A leader verifies its leadership after it received a heartbeat, but Raft counts
// for that also the answers of followers that were under way when it was asked. A
// leader gives up when a majority is silent for the election time-out, so such an
// answer is not older than that; but the follower may have helped to elect
// another leader since. What is acknowledged then runs until TTL − margin after
// the heartbeat was sent, and the other leader gives nothing away before
// TTL + margin after its election: two margins are what the answer may be late.
func RaftTimeoutMax(ttl time.Duration) time.Duration { return 2 * Margin(ttl) }

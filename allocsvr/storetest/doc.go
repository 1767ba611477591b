// Package storetest is a StoreSvr group of one, in memory, for tests of the
// serving tier: the real state machine (storesvr/state) behind a leader that
// never changes, leases on a clock, and a network that delays, drops, copies
// and cuts as a test says. It runs inside a synctest bubble.
//
// It places sections only as a test tells it, or evenly if Config.Auto is set.
package storetest

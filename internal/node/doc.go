// Package node wires one StoreSvr or one AllocSvr: the tier's own server, its
// RPC port, the admin HTTP server, the Redis door. The programs and
// internal/cluster start nodes through it, so that what is tested is what runs.
//
// Stopping is in an order that loses nothing: a node first gives up what it
// holds, while it still answers and sends callers on, and only then its ports.
package node

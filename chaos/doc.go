// Package chaos has the tests of the whole system: real processes, real
// clients, real harm. What they need lies in its folders:
//
//	history   what clients saw, recorded and saved
//	check     whether that keeps the guarantees
//	load      many clients on one service
//	faults    harm done to a cluster of processes
//	sim       a whole cluster in simulated time
//
// With SEQ_LONG=1 the tests run for longer.
package chaos

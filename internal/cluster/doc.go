// Package cluster starts whole clusters: in this process, as `seqsvr dev` and
// tests of the parts together do (Start), or as processes of the built programs,
// as the tests that kill them do (StartProcesses). Both have real files and real
// TCP on loopback; simulated clusters are in package chaos.
//
// Guarantees: a start that fails leaves nothing behind, neither a goroutine nor
// a process; processes die with the one that started them.
package cluster

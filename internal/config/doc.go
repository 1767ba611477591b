// Package config reads what a server is to do: one file, environment, flags.
//
// A key is declared once, as a flag (pflag). From the flag --lease-ttl follow
// the file's key lease_ttl and the environment's SEQ_LEASE_TTL. A flag beats
// the environment, which beats the file, which beats the default.
//
// Guarantees: a key that is unknown or given twice, a value that cannot be read
// and a setting that makes no sense are refused before anything is opened, all
// of them at once, each naming where it was set, the key and the reason.
//
// It opens nothing but the file, and decides nothing: the servers do.
package config

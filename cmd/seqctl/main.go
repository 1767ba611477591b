// seqctl allocates, reads and administers from the command line.
package main

import "github.com/seqsvr/seqsvr/internal/cli"

func main() { cli.Main(rootCommand()) }

// Command gen-trace writes internal/testdata/chat-trace.txt.gz: what the
// clients of a chat service might send in a day. The same flags write the same
// trace; its text is compared with the committed one by the test beside this file.
//
//	go run ./scripts/gen-trace
package main

import (
	"compress/gzip"
	"errors"
	"flag"
	"fmt"
	"os"

	"github.com/seqsvr/seqsvr/internal/testdata"
)

func main() {
	p := defaults()
	out := flag.String("out", "internal/testdata/chat-trace.txt.gz", "file to write")
	flag.Uint64Var(&p.seed, "seed", p.seed, "seed")
	flag.IntVar(&p.conversations, "conversations", p.conversations, "how many conversations")
	flag.IntVar(&p.messages, "messages", p.messages, "how many different messages")
	flag.Parse()
	if err := run(p, *out); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(p params, out string) (err error) {
	if p.conversations < 1 || p.messages < p.conversations {
		return fmt.Errorf("%d messages in %d conversations: each needs one at least", p.messages, p.conversations)
	}
	t := generate(p)
	f, err := os.Create(out)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	z, err := gzip.NewWriterLevel(f, gzip.BestCompression)
	if err != nil {
		return err
	}
	if err := testdata.WriteTrace(z, t); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	fmt.Printf("%s: %d conversations, %d messages, %d sends\n", out, len(t.Conversations), t.Messages, len(t.Sends))
	return nil
}

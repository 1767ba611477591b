// Command demo chats over a running cluster: some people write in a few
// conversations, one device is online and one comes later. While it runs, kill an
// allocsvr, or drain one: no message is lost, none is shown twice, and none is
// missed that is not.
//
//	go run ./cmd/seqsvr dev
//	go run ./client/examples/im/demo --server 127.0.0.1:7100
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/seqsvr/seqsvr/client"
	"github.com/seqsvr/seqsvr/client/examples/im"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	case err != nil:
		fmt.Fprintf(os.Stderr, "error: %v\n", err)
		os.Exit(1)
	}
}

type demo struct {
	convs    []string
	messages int
	people   int
	pushLoss float64
	lose     int
	pace     time.Duration
	out      io.Writer
}

// skew of the clocks: the demo and the cluster are near each other.
const skew = 100 * time.Millisecond

func run(ctx context.Context, args []string, out io.Writer) error {
	d := demo{out: out}
	fs := flag.NewFlagSet("demo", flag.ContinueOnError)
	server := fs.String("server", "127.0.0.1:7100", "HOST:PORT[,HOST:PORT…] of allocsvrs")
	fs.IntVar(&d.messages, "messages", 300, "how many messages to send")
	fs.IntVar(&d.people, "people", 8, "how many people write at once")
	fs.Float64Var(&d.pushLoss, "push-loss", 0.2, "share of pushes that do not arrive")
	fs.IntVar(&d.lose, "lose", 0, "have the store lose each N-th message; 0: none")
	fs.DurationVar(&d.pace, "pace", 10*time.Millisecond, "how long a person waits between two messages")
	conversations := fs.Int("conversations", 3, "how many conversations")
	if err := fs.Parse(args); err != nil {
		return err
	}
	c, err := client.Dial(ctx, strings.Split(*server, ","))
	if err != nil {
		return err
	}
	defer c.Close()
	for range *conversations {
		d.convs = append(d.convs, "demo_"+uuid.NewString()) // new ones, so that the demo may be repeated
	}
	return d.chat(ctx, c)
}

func (d *demo) chat(ctx context.Context, numbers im.Numbers) error {
	store := im.NewMemory()
	var stored, lost atomic.Int64
	store.Lose = func(m im.Message) bool {
		n := stored.Add(1)
		// Not the last word: what nothing follows is not decided.
		if d.lose > 0 && n%int64(d.lose) == 0 && m.From != "demo" {
			lost.Add(1)
			return true
		}
		return false
	}
	var shown, missing atomic.Int64
	device := func() *im.Device {
		return &im.Device{
			Numbers: numbers, Store: store, Show: func(im.Message) { shown.Add(1) },
			Lost: func(conv string, s im.Span) {
				missing.Add(s.Len())
				fmt.Fprintf(d.out, "%s: numbers %d to %d had messages, and the store has them no more\n", conv[:9], s.From, s.To)
			},
		}
	}
	online := device()
	sender := &im.Sender{Numbers: numbers, Store: store, Skew: skew, Push: func(m im.Message) {
		if rand.Float64() >= d.pushLoss {
			online.Push(m)
		}
	}}
	following, stop := context.WithCancel(ctx)
	defer stop()
	followed := make(chan error, 1)
	go func() { followed <- online.Follow(following, d.convs...) }()

	begin := time.Now()
	err := d.write(ctx, sender)
	last := map[string]int64{}
	for _, conv := range d.convs { // the last word of each, so that all before it is decided
		var m im.Message
		if err == nil {
			m, err = sender.Send(ctx, im.Draft{ID: im.ID(uuid.New()), Conv: conv, From: "demo", Body: "bye"})
		}
		last[conv] = m.Seq
	}
	if err == nil {
		fmt.Fprintf(d.out, "%d messages sent in %v, %d of them were lost by the store\n", stored.Load(), time.Since(begin).Round(time.Millisecond), lost.Load())
		err = d.settle(ctx, online, last)
	}
	if err == nil {
		fmt.Fprintf(d.out, "the device that was online has shown %d and misses %d\n", shown.Swap(0), missing.Swap(0))
		late := device()
		if err = late.Sync(ctx, d.convs...); err == nil {
			fmt.Fprintf(d.out, "the device that came late has read %d and misses %d\n", shown.Load(), missing.Load())
			for _, conv := range d.convs {
				fmt.Fprintf(d.out, "%s: complete up to %d, %d unread for who has read 10\n", conv[:9], late.Done(conv), late.Unread(conv, 10))
			}
		}
	}
	stop()
	if e := <-followed; !errors.Is(e, context.Canceled) {
		err = errors.Join(err, e)
	}
	return err
}

// write has all people send their messages, each in turn.
func (d *demo) write(ctx context.Context, sender *im.Sender) error {
	var left atomic.Int64
	left.Store(int64(d.messages))
	errs := make([]error, d.people)
	var wg sync.WaitGroup
	for p := range d.people {
		wg.Go(func() {
			for left.Add(-1) >= 0 && errs[p] == nil {
				conv := d.convs[rand.IntN(len(d.convs))]
				_, errs[p] = sender.Send(ctx, im.Draft{ID: im.ID(uuid.New()), Conv: conv, From: fmt.Sprint("person ", p), Body: "hello"})
				pause(ctx, d.pace)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// settle waits until a device is complete.
func (d *demo) settle(ctx context.Context, device *im.Device, last map[string]int64) error {
	for conv, seq := range last {
		for device.Done(conv) < seq {
			if pause(ctx, 10*time.Millisecond); ctx.Err() != nil {
				return ctx.Err()
			}
		}
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

package client_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seqsvr/seqsvr/client"
)

// demo stands for the servers of the examples: without it, Dial calls real ones.
func demo() client.Option { return client.WithTransport(newFake("127.0.0.1:7100")) }

func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	c, err := client.Dial(ctx, []string{"127.0.0.1:7100"}, demo())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()

	for range 3 {
		r, err := c.Alloc(ctx, client.UID(42))
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(r.First, "follows", r.Prev)
	}
	// Output:
	// 1 follows 0
	// 2 follows 1
	// 3 follows 2
}

func ExampleClient_AllocN() {
	ctx := context.Background()
	c, _ := client.Dial(ctx, []string{"127.0.0.1:7100"}, demo())
	defer c.Close()

	r, err := c.AllocN(ctx, client.Name("conv", "room 7"), 100)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(r.First, "to", r.Last())
	// Output: 1 to 100
}

// The receivers of one message, each with an own stream: one round trip for
// all that live on the same node.
func ExampleClient_AllocMany() {
	ctx := context.Background()
	c, _ := client.Dial(ctx, []string{"127.0.0.1:7100"}, demo())
	defer c.Close()

	results, err := c.AllocMany(ctx, []client.Request{
		{Key: client.UID(7), N: 1},
		{Key: client.UID(8), N: 1},
		{Key: client.UID(9), N: 2},
	})
	var partial *client.PartialError
	if errors.As(err, &partial) {
		fmt.Println(partial.Failed, "keys failed; their results have an Err, the others are good")
	} else if err != nil {
		fmt.Println(err)
		return
	}
	for _, r := range results {
		fmt.Println(r.Key, r.First, r.Last())
	}
	// Output:
	// uid/7 1 1
	// uid/8 1 1
	// uid/9 1 2
}

// How much a device has missed that has seen everything up to 3.
func ExampleClient_Current() {
	ctx := context.Background()
	c, _ := client.Dial(ctx, []string{"127.0.0.1:7100"}, demo())
	defer c.Close()
	c.AllocN(ctx, client.UID(42), 8)

	current, err := c.Current(ctx, client.UID(42))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("missing:", current-3)
	// Output: missing: 5
}

// A call with the id of its message can be repeated, by the client itself when
// a reply is lost, and by a caller who is not sure that he has made it.
func ExampleWithRequestID() {
	ctx := context.Background()
	c, _ := client.Dial(ctx, []string{"127.0.0.1:7100"}, demo())
	defer c.Close()

	message := [16]byte{0x5c, 0x1e, 0x02, 0xee, 0x27, 0x41, 0x4f, 0x6b, 0x8a, 0x51, 0x3c, 0x6f, 0x2f, 0x14, 0x0f, 0x93}
	for range 2 {
		r, err := c.Alloc(ctx, client.UID(42), client.WithRequestID(message))
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(r.First, r.Replayed)
	}
	// Output:
	// 1 false
	// 1 true
}

func ExampleError() {
	ctx := context.Background()
	c, _ := client.Dial(ctx, []string{"127.0.0.1:7100"}, demo())
	defer c.Close()

	_, err := c.Alloc(ctx, client.In("uid", "abc"))
	switch {
	case errors.Is(err, client.ErrUnknownResult):
		fmt.Println("a number may have been given; read Current, or use a request id")
	case errors.Is(err, client.ErrInvalidArgument):
		fmt.Println(err)
	case errors.Is(err, context.DeadlineExceeded):
		fmt.Println("not in time, and nothing was given")
	}
	// Output:
	// key uid/abc: invalid argument: invalid key: uid "abc" is not an integer in [0, 4294967295]: nothing was allocated; correct the call
}

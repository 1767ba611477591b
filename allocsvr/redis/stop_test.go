package redis

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seqsvr/seqsvr/internal/ids"
)

// Each number that was issued is told, also to peers that go on sending.
func TestStopLosesNoReplyToWhoGoesOnSending(t *testing.T) {
	s, l := start(t, Config{linger: 10 * time.Second})
	var wg, answered sync.WaitGroup
	told := make([]ids.Seq, 8)
	answered.Add(len(told))
	for i := range told {
		c := raw(t, s)
		command := fmt.Sprintf("*2\r\n$4\r\nINCR\r\n$1\r\n%d\r\n", i)
		pipe := []byte(strings.Repeat(command, 100))
		wg.Go(func() {
			for err := error(nil); err == nil; time.Sleep(100 * time.Microsecond) {
				_, err = c.Write(pipe[:len(pipe)-i]) // some end within a command
				if err == nil {
					_, err = c.Write(pipe[len(pipe)-i:])
				}
			}
		})
		wg.Go(func() {
			defer c.Close()
			for r := bufio.NewReader(c); ; told[i]++ {
				if told[i]%100 == 0 {
					time.Sleep(time.Millisecond) // replies pile up
				}
				if _, err := r.ReadString('\n'); err != nil {
					if !errors.Is(err, io.EOF) {
						t.Errorf("after %d replies: %v", told[i], err)
					}
					return
				}
				if told[i] == 1000 {
					answered.Done()
				}
			}
		})
	}
	answered.Wait()
	if err := s.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	wg.Wait()
	for i, n := range told {
		if issued := l.last[ids.Key{Space: 1, Hi: uint64(i)}]; n != issued || n == 0 {
			t.Errorf("uid %d: %d numbers were issued, %d told", i, issued, n)
		}
	}
}

// What has arrived and was not read resets a connection that is closed.
func TestAPeerThatSentMoreBeforeTheStopReadsItsReply(t *testing.T) {
	h := loopByHand(t, newCounters())
	h.send([]byte("PING\r\nIN"))
	h.l.step()
	h.send([]byte("CR 1\r\n"))
	h.c.s.stopping.Store(true)
	h.l.lookAround()
	h.want("+PONG\r\n")
	if n, err := unix.Read(h.peer, make([]byte, 10)); n != 0 || err != nil {
		t.Errorf("read %d, %v; want the end", n, err)
	}
	_ = unix.Shutdown(h.peer, unix.SHUT_WR)
	h.l.step()
	if h.l.open != 0 {
		t.Error("left open when the peer has closed")
	}
}

func TestStopDoesNotWaitForPeersThatDoNotClose(t *testing.T) {
	for _, sent := range []string{"PING\r\n", "QUIT\r\n", "*1000000\r\n", "PING\r\nINCR"} {
		s, _ := start(t, Config{MaxWait: time.Hour})
		conn := raw(t, s)
		_, _ = io.WriteString(conn, sent)
		if _, err := bufio.NewReader(conn).ReadString('\n'); err != nil {
			t.Errorf("%q: %v", sent, err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := s.Stop(ctx); err != nil {
			t.Errorf("%q: %v", sent, err)
		}
	}
}

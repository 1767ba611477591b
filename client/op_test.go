package client

import (
	"errors"
	"testing"
	"time"

	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
	"github.com/seqsvr/seqsvr/router"
)

// Ops are used again, and init clears only what may have been written.
func TestAnOpThatIsUsedAgainIsAsNew(t *testing.T) {
	table := &router.Table{Spaces: ids.DefaultSpaces()}
	trouble := history{
		hint: hint{owner: "a"}, redirects: 1, waits: 1, denied: 1, patient: true, maybe: true,
		code: seqpb.Code_CODE_BUSY, cause: errors.New("busy"), due: time.Now(), moved: time.Now(),
	}
	for name, used := range map[string]struct {
		reply   reply
		history history
	}{
		"after a number":   {reply: reply{value: 7}},
		"after a replay":   {reply: reply{value: 7, replayed: true, windowSince: 9}},
		"after a hole":     {reply: reply{value: 7, hole: &Hole{1, 6}}, history: history{maybe: true}},
		"after a redirect": {reply: reply{value: 7}, history: history{hint: hint{set: "s2", epoch: 3}}},
		"after a failure": {
			reply:   reply{code: seqpb.Code_CODE_BUSY, cause: errors.New("busy"), hint: hint{owner: "a"}, cold: true, value: 7, hole: &Hole{1, 6}},
			history: trouble,
		},
	} {
		o := &op{reply: used.reply, attempt: attempt{node: &node{}, set: "s1", epoch: 2, history: used.history}}
		if err := o.init(table, nil, methodAlloc, 0, &Request{Key: UID(1), N: 1}); err != nil {
			t.Fatal(err)
		}
		if o.reply != (reply{}) || o.attempt != (attempt{}) {
			t.Errorf("%s: %+v %+v", name, o.reply, o.attempt)
		}
	}
}

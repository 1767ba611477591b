package redis

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/seqsvr/seqsvr/allocsvr"
	"github.com/seqsvr/seqsvr/internal/ids"
	"github.com/seqsvr/seqsvr/internal/wire"
	"github.com/seqsvr/seqsvr/proto/gen/seqpb"
)

type command struct {
	run func(c *conn, args [][]byte) verdict
	// least and most arguments after the name; most < 0: any number.
	least, most int
	// open ones need no password.
	open bool
	// joins: it adds to the run, and its reply comes with that.
	joins bool
}

var commands map[string]command

func init() {
	commands = map[string]command{
		"INCR":    {func(c *conn, a [][]byte) verdict { return c.alloc(a[0], 1) }, 1, 1, false, true},
		"INCRBY":  {(*conn).incrBy, 2, 2, false, true},
		"GET":     {func(c *conn, a [][]byte) verdict { return c.current(a, false) }, 1, 1, false, false},
		"MGET":    {func(c *conn, a [][]byte) verdict { return c.current(a, true) }, 1, -1, false, false},
		"PING":    {now((*conn).ping), 0, 1, false, false},
		"ECHO":    {now(func(c *conn, a [][]byte) { c.t.w.bulk(a[0]) }), 1, 1, false, false},
		"INFO":    {now((*conn).info), 0, -1, false, false},
		"COMMAND": {now((*conn).command), 0, -1, false, false},
		"SELECT":  {now((*conn).selectSpace), 1, 1, false, false},
		"CLIENT":  {now((*conn).client), 1, -1, false, false},
		"HELLO":   {now((*conn).hello), 0, -1, true, false},
		"AUTH":    {now((*conn).auth), 1, 2, true, false},
		"QUIT":    {nil, 0, -1, true, false},
	}
}

// now is a command that never waits.
func now(run func(c *conn, args [][]byte)) func(*conn, [][]byte) verdict {
	return func(c *conn, args [][]byte) verdict {
		run(c, args)
		return done
	}
}

// do carries a command out, or as much as can be done now.
func (c *conn) do(args [][]byte) verdict {
	var upper [16]byte
	name := args[0]
	if len(name) <= len(upper) {
		for i, b := range name {
			if b >= 'a' && b <= 'z' {
				b -= 'a' - 'A'
			}
			upper[i] = b
		}
		name = upper[:len(name)]
	}
	cmd, ok := commands[string(name)]
	args, given := args[1:], args[0]
	if !cmd.joins && !c.settle() {
		return redo
	}
	switch {
	case !ok:
		c.t.w.error(fmt.Sprintf("ERR unknown command '%s'", printable(given)))
	case len(args) < cmd.least || cmd.most >= 0 && len(args) > cmd.most:
		return c.refuse(fmt.Sprintf("ERR wrong number of arguments for '%s' command", strings.ToLower(string(name))))
	case cmd.run == nil:
		c.t.w.simple("OK")
		return quit
	case !c.authed && !cmd.open:
		return c.refuse("NOAUTH Authentication required.")
	default:
		return cmd.run(c, args)
	}
	return done
}

// refuse answers a command that may have allocations before it.
func (c *conn) refuse(reason string) verdict {
	if !c.settle() {
		return redo
	}
	c.t.w.error(reason)
	return done
}

// printable keeps a client's bytes from breaking a reply or a terminal.
func printable(b []byte) string {
	if len(b) > 64 {
		b = b[:64]
	}
	return strings.Trim(strconv.QuoteToASCII(string(b)), `"`)
}

func (c *conn) ping(a [][]byte) {
	if len(a) == 1 {
		c.t.w.bulk(a[0])
		return
	}
	c.t.w.simple("PONG")
}

// key finds the key that a text stands for.
func (c *conn) key(text []byte) (ids.Key, error) {
	spaces := c.s.cfg.Spaces()
	if c.space >= len(spaces) {
		return ids.Key{}, wire.Refusef(seqpb.Code_CODE_NOT_READY, "the cluster's spaces are not known yet")
	}
	space := spaces[c.space]
	if space.Kind == ids.KindName {
		return space.NameKeyOf(text)
	}
	if uid, err := length(text); err == nil {
		return space.UID(uint64(uid))
	}
	return space.Parse(string(text))
}

// elsewhere reports whether a failure of the node here may be none at the
// key's owner. In all of these cases nothing was allocated here.
func elsewhere(err error) bool {
	switch wire.CodeOf(err) {
	case seqpb.Code_CODE_NOT_OWNER, seqpb.Code_CODE_STALE_EPOCH, seqpb.Code_CODE_LEASE_EXPIRED,
		seqpb.Code_CODE_NOT_READY, seqpb.Code_CODE_UNAVAILABLE:
		return true
	}
	return false
}

func (c *conn) alloc(text []byte, n uint32) verdict {
	key, err := c.key(text)
	if err != nil {
		if !c.settle() {
			return redo
		}
		c.fail(err)
		return done
	}
	c.t.run.add(key, n, text)
	if len(c.t.run.asks) == runMax {
		return c.settled()
	}
	return done
}

func (c *conn) incrBy(a [][]byte) verdict {
	n, err := strconv.ParseInt(string(a[1]), 10, 64)
	switch {
	case err != nil:
		return c.refuse("ERR value is not an integer or out of range")
	case n < 1:
		return c.refuse("ERR increment must be 1 or more: numbers are never taken back")
	case n > math.MaxUint32:
		return c.refuse("ERR increment is too large: ask for fewer numbers at once")
	}
	return c.alloc(a[0], uint32(n))
}

// current reads keys. One of them that cannot be read counts for all: a reply
// cannot hold both.
func (c *conn) current(texts [][]byte, array bool) verdict {
	l := &c.t.look
	l.reads, l.array = l.reads[:0], array
	for _, text := range texts {
		key, err := c.key(text)
		if err != nil {
			c.fail(err)
			return done
		}
		l.reads = append(l.reads, allocsvr.Read{Key: key})
	}
	if c.s.cfg.Local.CurrentReady(l.reads); !l.settled() {
		for _, text := range texts {
			l.texts = append(l.texts, string(text))
		}
		c.t.waits = waitsForLook
		return waiting
	}
	c.answerLook()
	return done
}

func (c *conn) answerLook() {
	l := &c.t.look
	for i := range l.reads {
		if err := l.reads[i].Err; err != nil {
			c.fail(err)
			return
		}
	}
	if l.array {
		c.t.w.array(len(l.reads))
	}
	for i := range l.reads {
		c.value(int64(l.reads[i].Value))
	}
	l.texts = nil
}

// value writes a counter as GET does: a string, or null where there is none yet.
func (c *conn) value(v int64) {
	if v == 0 {
		c.null()
		return
	}
	var text [20]byte
	c.t.w.bulk(strconv.AppendInt(text[:0], v, 10))
}

func (c *conn) null() {
	if c.resp == 3 {
		c.t.w.raw("_\r\n")
		return
	}
	c.t.w.null()
}

// fail writes an error. TRYAGAIN is what Redis clients repeat by themselves,
// so it stands only for what allocated nothing.
func (c *conn) fail(err error) {
	prefix := "ERR "
	switch wire.CodeOf(err) {
	case seqpb.Code_CODE_BUSY, seqpb.Code_CODE_NOT_OWNER, seqpb.Code_CODE_STALE_EPOCH, seqpb.Code_CODE_LEASE_EXPIRED,
		seqpb.Code_CODE_NOT_READY, seqpb.Code_CODE_UNAVAILABLE:
		prefix = "TRYAGAIN "
	}
	if errors.Is(err, context.Canceled) {
		err = errors.New("this node is stopping")
	}
	c.t.w.error(prefix + strings.NewReplacer("\r", " ", "\n", " ").Replace(err.Error()))
}

func (c *conn) selectSpace(a [][]byte) {
	n, err := strconv.Atoi(string(a[0]))
	if spaces := c.s.cfg.Spaces(); err != nil || n < 0 || n >= len(spaces) {
		var names []string
		for i, s := range spaces {
			names = append(names, fmt.Sprintf("%d is %s", i, s.Name))
		}
		c.t.w.error("ERR DB index is out of range: " + strings.Join(names, ", "))
		return
	}
	c.space = n
	c.t.w.simple("OK")
}

func (c *conn) auth(a [][]byte) {
	if c.s.cfg.Password == "" {
		c.t.w.error("ERR Client sent AUTH, but no password is set. Did you mean AUTH <username> <password>?")
		return
	}
	if !c.login(a) {
		c.t.w.error("WRONGPASS invalid username-password pair or user is disabled.")
		return
	}
	c.t.w.simple("OK")
}

// login takes [password] or [user password]; the only user is "default".
func (c *conn) login(a [][]byte) bool {
	user, password := "default", a[len(a)-1]
	if len(a) == 2 {
		user = string(a[0])
	}
	if user != "default" || subtle.ConstantTimeCompare(password, []byte(c.s.cfg.Password)) != 1 {
		return false
	}
	c.authed = true
	return true
}

// hello negotiates: HELLO [2|3 [AUTH user password] [SETNAME name]].
func (c *conn) hello(a [][]byte) {
	version, name := c.resp, c.name
	if len(a) > 0 {
		v, err := strconv.Atoi(string(a[0]))
		if err != nil {
			c.t.w.error("ERR Protocol version is not an integer or out of range")
			return
		}
		if v != 2 && v != 3 {
			c.t.w.error("NOPROTO unsupported protocol version")
			return
		}
		version = v
		for a = a[1:]; len(a) > 0; {
			switch option := strings.ToUpper(string(a[0])); {
			case option == "AUTH" && len(a) >= 3:
				if c.s.cfg.Password != "" && !c.login(a[1:3]) {
					c.t.w.error("WRONGPASS invalid username-password pair or user is disabled.")
					return
				}
				a = a[3:]
			case option == "SETNAME" && len(a) >= 2:
				name = string(a[1])
				a = a[2:]
			default:
				c.t.w.error(fmt.Sprintf("ERR Syntax error in HELLO option '%s'", printable(a[0])))
				return
			}
		}
	}
	if !c.authed {
		c.t.w.error("NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the same time")
		return
	}
	c.resp, c.name = version, name
	const pairs = 7
	if c.resp == 3 {
		c.t.w.raw("%" + strconv.Itoa(pairs) + "\r\n")
	} else {
		c.t.w.array(2 * pairs)
	}
	text := func(k, v string) { c.t.w.text(k); c.t.w.text(v) }
	text("server", "seqsvr")
	text("version", c.s.cfg.Version)
	c.t.w.text("proto")
	c.t.w.int(int64(c.resp))
	c.t.w.text("id")
	c.t.w.int(1)
	text("mode", "standalone")
	text("role", "master")
	c.t.w.text("modules")
	c.t.w.array(0)
}

func (c *conn) client(a [][]byte) {
	switch strings.ToUpper(string(a[0])) {
	case "SETNAME":
		if len(a) == 2 {
			c.name = string(a[1])
		}
		c.t.w.simple("OK")
	case "SETINFO":
		c.t.w.simple("OK")
	case "GETNAME":
		c.t.w.text(c.name)
	default:
		c.t.w.error(fmt.Sprintf("ERR unknown subcommand '%s'", printable(a[0])))
	}
}

func (c *conn) command(a [][]byte) {
	switch {
	case len(a) == 1 && strings.EqualFold(string(a[0]), "COUNT"):
		c.t.w.int(int64(len(commands)))
	case len(a) > 0 && strings.EqualFold(string(a[0]), "DOCS") && c.resp == 3:
		c.t.w.raw("%0\r\n")
	default:
		c.t.w.array(0)
	}
}

func (c *conn) info([][]byte) {
	var b strings.Builder
	fmt.Fprintf(&b, "# Server\r\nredis_version:7.0.0\r\nredis_mode:standalone\r\nseqsvr_version:%s\r\n\r\n# Spaces\r\n", c.s.cfg.Version)
	for i, s := range c.s.cfg.Spaces() {
		fmt.Fprintf(&b, "db%d:name=%s,kind=%s\r\n", i, s.Name, s.Kind)
	}
	c.t.w.text(b.String())
}

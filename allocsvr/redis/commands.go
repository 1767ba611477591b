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
	run func(c *conn, args [][]byte)
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
		"INCR":    {func(c *conn, a [][]byte) { c.alloc(a[0], 1) }, 1, 1, false, true},
		"INCRBY":  {(*conn).incrBy, 2, 2, false, true},
		"GET":     {(*conn).get, 1, 1, false, false},
		"MGET":    {(*conn).mget, 1, -1, false, false},
		"PING":    {(*conn).ping, 0, 1, false, false},
		"ECHO":    {func(c *conn, a [][]byte) { c.w.WriteBulk(a[0]) }, 1, 1, false, false},
		"INFO":    {(*conn).info, 0, -1, false, false},
		"COMMAND": {(*conn).command, 0, -1, false, false},
		"SELECT":  {(*conn).selectSpace, 1, 1, false, false},
		"CLIENT":  {(*conn).client, 1, -1, false, false},
		"HELLO":   {(*conn).hello, 0, -1, true, false},
		"AUTH":    {(*conn).auth, 1, 2, true, false},
		"QUIT":    {nil, 0, -1, true, false},
	}
}

// do carries a command out; false ends the connection.
func (c *conn) do(args [][]byte) bool {
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
	if !cmd.joins {
		c.settle()
	}
	switch {
	case !ok:
		c.w.WriteError(fmt.Sprintf("ERR unknown command '%s'", printable(given)))
	case len(args) < cmd.least || cmd.most >= 0 && len(args) > cmd.most:
		c.refuse(fmt.Sprintf("ERR wrong number of arguments for '%s' command", strings.ToLower(string(name))))
	case cmd.run == nil:
		c.w.WriteString("OK")
		return false
	case !c.authed && !cmd.open:
		c.refuse("NOAUTH Authentication required.")
	default:
		cmd.run(c, args)
	}
	return true
}

// refuse answers a command that may have allocations before it.
func (c *conn) refuse(reason string) {
	c.settle()
	c.w.WriteError(reason)
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
		c.w.WriteBulk(a[0])
		return
	}
	c.w.WriteString("PONG")
}

// key finds the key that a text stands for.
func (c *conn) key(text []byte) (ids.Key, error) {
	spaces := c.s.cfg.Spaces()
	if c.space >= len(spaces) {
		return ids.Key{}, wire.Refusef(seqpb.Code_CODE_NOT_READY, "the cluster's spaces are not known yet")
	}
	space := spaces[c.space]
	if space.Kind == ids.KindName {
		return space.NameKey(string(text))
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

func (c *conn) alloc(text []byte, n uint32) {
	key, err := c.key(text)
	if err != nil {
		c.settle()
		c.fail(err)
		return
	}
	c.run.add(key, n, text)
	if len(c.run.asks) == runMax {
		c.settle()
	}
}

func (c *conn) incrBy(a [][]byte) {
	n, err := strconv.ParseInt(string(a[1]), 10, 64)
	switch {
	case err != nil:
		c.refuse("ERR value is not an integer or out of range")
	case n < 1:
		c.refuse("ERR increment must be 1 or more: numbers are never taken back")
	case n > math.MaxUint32:
		c.refuse("ERR increment is too large: ask for fewer numbers at once")
	default:
		c.alloc(a[0], uint32(n))
	}
}

// current reads keys, wherever they are; the first error counts for all.
func (c *conn) current(texts [][]byte) ([]int64, error) {
	reads := make([]allocsvr.Read, len(texts))
	for i, text := range texts {
		key, err := c.key(text)
		if err != nil {
			return nil, err
		}
		reads[i].Key = key
	}
	c.s.cfg.Local.CurrentEach(c.s.ctx, reads, c.s.cfg.CallTimeout)
	values := make([]int64, len(reads))
	var away []int
	var calls []Call
	for i, r := range reads {
		switch {
		case r.Err == nil:
			values[i] = int64(r.Value)
		case elsewhere(r.Err):
			away = append(away, i)
			calls = append(calls, Call{Key: string(texts[i]), N: 1})
		default:
			return nil, r.Err
		}
	}
	if len(calls) > 0 {
		c.forward(c.s.cfg.Forward.Current, calls)
	}
	for j, call := range calls {
		if call.Err != nil {
			return nil, call.Err
		}
		values[away[j]] = call.Value
	}
	return values, nil
}

func (c *conn) get(a [][]byte) {
	v, err := c.current(a)
	if err != nil {
		c.fail(err)
		return
	}
	c.value(v[0])
}

// mget answers all or an error: a reply cannot hold both.
func (c *conn) mget(a [][]byte) {
	values, err := c.current(a)
	if err != nil {
		c.fail(err)
		return
	}
	c.w.WriteArray(len(values))
	for _, v := range values {
		c.value(v)
	}
}

// value writes a counter as GET does: a string, or null where there is none yet.
func (c *conn) value(v int64) {
	if v == 0 {
		c.null()
		return
	}
	c.w.WriteBulkString(strconv.FormatInt(v, 10))
}

func (c *conn) null() {
	if c.resp == 3 {
		c.w.WriteRaw([]byte("_\r\n"))
		return
	}
	c.w.WriteNull()
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
	c.w.WriteError(prefix + strings.NewReplacer("\r", " ", "\n", " ").Replace(err.Error()))
}

func (c *conn) selectSpace(a [][]byte) {
	n, err := strconv.Atoi(string(a[0]))
	if spaces := c.s.cfg.Spaces(); err != nil || n < 0 || n >= len(spaces) {
		var names []string
		for i, s := range spaces {
			names = append(names, fmt.Sprintf("%d is %s", i, s.Name))
		}
		c.w.WriteError("ERR DB index is out of range: " + strings.Join(names, ", "))
		return
	}
	c.space = n
	c.w.WriteString("OK")
}

func (c *conn) auth(a [][]byte) {
	if c.s.cfg.Password == "" {
		c.w.WriteError("ERR Client sent AUTH, but no password is set. Did you mean AUTH <username> <password>?")
		return
	}
	if !c.login(a) {
		c.w.WriteError("WRONGPASS invalid username-password pair or user is disabled.")
		return
	}
	c.w.WriteString("OK")
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
			c.w.WriteError("ERR Protocol version is not an integer or out of range")
			return
		}
		if v != 2 && v != 3 {
			c.w.WriteError("NOPROTO unsupported protocol version")
			return
		}
		version = v
		for a = a[1:]; len(a) > 0; {
			switch option := strings.ToUpper(string(a[0])); {
			case option == "AUTH" && len(a) >= 3:
				if c.s.cfg.Password != "" && !c.login(a[1:3]) {
					c.w.WriteError("WRONGPASS invalid username-password pair or user is disabled.")
					return
				}
				a = a[3:]
			case option == "SETNAME" && len(a) >= 2:
				name = string(a[1])
				a = a[2:]
			default:
				c.w.WriteError(fmt.Sprintf("ERR Syntax error in HELLO option '%s'", printable(a[0])))
				return
			}
		}
	}
	if !c.authed {
		c.w.WriteError("NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the same time")
		return
	}
	c.resp, c.name = version, name
	const pairs = 7
	if c.resp == 3 {
		c.w.WriteRaw([]byte("%" + strconv.Itoa(pairs) + "\r\n"))
	} else {
		c.w.WriteArray(2 * pairs)
	}
	text := func(k, v string) { c.w.WriteBulkString(k); c.w.WriteBulkString(v) }
	text("server", "seqsvr")
	text("version", c.s.cfg.Version)
	c.w.WriteBulkString("proto")
	c.w.WriteInt(c.resp)
	c.w.WriteBulkString("id")
	c.w.WriteInt(1)
	text("mode", "standalone")
	text("role", "master")
	c.w.WriteBulkString("modules")
	c.w.WriteArray(0)
}

func (c *conn) client(a [][]byte) {
	switch strings.ToUpper(string(a[0])) {
	case "SETNAME":
		if len(a) == 2 {
			c.name = string(a[1])
		}
		c.w.WriteString("OK")
	case "SETINFO":
		c.w.WriteString("OK")
	case "GETNAME":
		c.w.WriteBulkString(c.name)
	default:
		c.w.WriteError(fmt.Sprintf("ERR unknown subcommand '%s'", printable(a[0])))
	}
}

func (c *conn) command(a [][]byte) {
	switch {
	case len(a) == 1 && strings.EqualFold(string(a[0]), "COUNT"):
		c.w.WriteInt(len(commands))
	case len(a) > 0 && strings.EqualFold(string(a[0]), "DOCS") && c.resp == 3:
		c.w.WriteRaw([]byte("%0\r\n"))
	default:
		c.w.WriteArray(0)
	}
}

func (c *conn) info([][]byte) {
	var b strings.Builder
	fmt.Fprintf(&b, "# Server\r\nredis_version:7.0.0\r\nredis_mode:standalone\r\nseqsvr_version:%s\r\n\r\n# Spaces\r\n", c.s.cfg.Version)
	for i, s := range c.s.cfg.Spaces() {
		fmt.Fprintf(&b, "db%d:name=%s,kind=%s\r\n", i, s.Name, s.Kind)
	}
	c.w.WriteBulkString(b.String())
}

package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/seqsvr/seqsvr/allocsvr"
	"github.com/seqsvr/seqsvr/allocsvr/raise"
)

type checked interface {
	Declare(*pflag.FlagSet)
	Check(*Keys) error
}

// load reads as the programs do; file is the content of the configuration file.
func load(t *testing.T, c checked, file string, env map[string]string, args ...string) (*Keys, string, error) {
	t.Helper()
	path := ""
	if file != "" {
		path = filepath.Join(t.TempDir(), "seq.yaml")
		if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	k := NewKeys(fs, c.Declare)
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	err := k.Load(path, func(name string) (string, bool) { v, ok := env[name]; return v, ok })
	if err == nil {
		err = c.Check(k)
	}
	return k, path, err
}

const goodAlloc = "node: a1\nstores: [127.0.0.1:7110]\n"

func TestAFlagBeatsTheEnvironmentBeatsTheFileBeatsTheDefault(t *testing.T) {
	file := goodAlloc + "step: 1\nmax_n: 2\nstop_linger: 1s\n"
	env := map[string]string{"SEQ_MAX_N": "3", "SEQ_STOP_LINGER": "2s", "SEQ_STORES": "h1:1, h2:2"}
	var c AllocSvr
	if _, _, err := load(t, &c, file, env, "--stop-linger=3s"); err != nil {
		t.Fatal(err)
	}
	if c.Steps.Step != 1 || c.MaxN != 3 || c.StopLinger != 3*time.Second || c.MaxBatchKeys != 10_000 {
		t.Errorf("%+v", c)
	}
	if strings.Join(c.Stores, " ") != "h1:1 h2:2" {
		t.Errorf("stores %q", c.Stores)
	}
	if c.RPCAdvertise != "127.0.0.1:7100" {
		t.Errorf("advertises %q", c.RPCAdvertise)
	}
}

func TestBadConfigurationNamesPlaceKeyAndReason(t *testing.T) {
	const goodStore = "node: s1\ndata: /d\n"
	three := "peers: [s1=h:1/h:2, s2=h:3/h:4, s3=h:5/h:6]\n"
	for name, c := range map[string]struct {
		conf checked
		file string
		env  map[string]string
		args []string
		want []string // all of them, FILE stands for the file's path
	}{
		"unknown key":     {&AllocSvr{}, goodAlloc + "stpe: 5\n", nil, nil, []string{`FILE:3: unknown key "stpe": did you mean "step"?`}},
		"key like a flag": {&AllocSvr{}, goodAlloc + "max-n: 5\n", nil, nil, []string{`FILE:3: unknown key "max-n"`, `"max_n"`}},
		"twice":           {&AllocSvr{}, goodAlloc + "step: 5\nstep: 6\n", nil, nil, []string{"step", "FILE:4", "line 3"}},
		"bad duration":    {&AllocSvr{}, goodAlloc + "stop_linger: 5\n", nil, nil, []string{`FILE:3: stop_linger: "5" is no duration`}},
		"bad duration in env": {&AllocSvr{}, goodAlloc, map[string]string{"SEQ_STOP_LINGER": "soon"}, nil,
			[]string{`SEQ_STOP_LINGER: stop_linger: "soon" is no duration`}},
		"bad number":     {&AllocSvr{}, goodAlloc + "max_n: -1\n", nil, nil, []string{`FILE:3: max_n: "-1" is no whole number`}},
		"no value":       {&AllocSvr{}, goodAlloc + "step:\n", nil, nil, []string{"FILE:3: step: no value"}},
		"nested":         {&AllocSvr{}, goodAlloc + "step: {a: 1}\n", nil, nil, []string{"FILE:3: step: want a value"}},
		"not a mapping":  {&AllocSvr{}, "- a\n", nil, nil, []string{"FILE:1: want lines of KEY: VALUE"}},
		"broken yaml":    {&AllocSvr{}, "a: [\n", nil, nil, []string{"FILE: yaml"}},
		"two documents":  {&AllocSvr{}, goodAlloc + "---\nstep: 5\n", nil, nil, []string{"FILE: more than one"}},
		"wildcard":       {&AllocSvr{}, goodAlloc + "rpc_listen: 0.0.0.0:7100\n", nil, nil, []string{"rpc_advertise: rpc_listen is", "wildcard"}},
		"no host":        {&AllocSvr{}, goodAlloc + "rpc_listen: :7100\n", nil, nil, []string{"rpc_advertise", "wildcard"}},
		"wild advertise": {&AllocSvr{}, goodAlloc + "rpc_listen: :7100\nrpc_advertise: '[::]:7100'\n", nil, nil, []string{"FILE:4: rpc_advertise", "wildcard"}},
		"no stores":      {&AllocSvr{}, "node: a1\n", nil, nil, []string{"not set: stores: at least one"}},
		"store twice":    {&AllocSvr{}, "node: a1\nstores: [h:1, h:1]\n", nil, nil, []string{"FILE:2: stores", "twice"}},
		"several at once": {&AllocSvr{}, "stores: [h]\nstep: 0\n", nil, []string{"--log-level=loud"},
			[]string{"not set: node", "FILE:1: stores", "FILE:2: step: 0", "--log-level: log_level"}},
		"unknown policy":     {&AllocSvr{}, goodAlloc + "step_policy: clever\n", nil, nil, []string{`FILE:3: step_policy: "clever": want fixed or adaptive`}},
		"steps crossed":      {&AllocSvr{}, goodAlloc + "step_min: 20\nstep_max: 10\n", nil, nil, []string{"FILE:3: step_min: 20 is outside [1, step_max = 10]"}},
		"step too large":     {&AllocSvr{}, goodAlloc + "step_max: 4294967296\n", nil, nil, []string{"FILE:3: step_max: 4294967296 is outside"}},
		"no target":          {&AllocSvr{}, goodAlloc + "step_target: 0s\n", nil, nil, []string{"FILE:3: step_target: 0s is outside"}},
		"no window":          {&AllocSvr{}, goodAlloc + "request_window: 0s\n", nil, nil, []string{"FILE:3: request_window: 0s is outside"}},
		"nothing watched":    {&AllocSvr{}, goodAlloc + "max_watched_keys: 0\n", nil, nil, []string{"FILE:3: max_watched_keys: must be at least 1"}},
		"too few entries":    {&AllocSvr{}, goodAlloc + "request_entries_max: 1\n", nil, nil, []string{"FILE:3: request_entries_max: 1 is outside"}},
		"space alone":        {&AllocSvr{}, goodAlloc + "spaces: [conv]\n", nil, nil, []string{`FILE:3: spaces: "conv": want NAME:KEY=VALUE`}},
		"setting twice":      {&AllocSvr{}, goodAlloc + "spaces: ['conv:step=5', 'conv:step=6']\n", nil, nil, []string{"FILE:3: spaces", "each name once"}},
		"space key":          {&AllocSvr{}, goodAlloc + "spaces: ['conv:max_n=5']\n", nil, nil, []string{`"max_n" is no key of a space: want step_policy`}},
		"space key as flag":  {&AllocSvr{}, goodAlloc + "spaces: ['conv:step-min=5']\n", nil, nil, []string{`"step-min" is no key of a space`}},
		"space key twice":    {&AllocSvr{}, goodAlloc + "spaces: ['conv:step=5:step=6']\n", nil, nil, []string{"step is given twice"}},
		"space value":        {&AllocSvr{}, goodAlloc + "spaces: ['conv:request_window=20']\n", nil, nil, []string{`request_window: "20" is no duration`}},
		"space out of range": {&AllocSvr{}, goodAlloc + "spaces: ['conv:step=0']\n", nil, nil, []string{"step: 0 is outside"}},
		"space without use":  {&AllocSvr{}, goodAlloc + "spaces: ['conv:step_max=500']\n", nil, nil, []string{"step_max is of step_policy=adaptive"}},
		"space of no use":    {&AllocSvr{}, goodAlloc + "step_policy: adaptive\nspaces: ['conv:step=500']\n", nil, nil, []string{"step is of step_policy=fixed"}},
		"missing peers":      {&StoreSvr{}, goodStore + "bootstrap: true\n", nil, nil, []string{"not set: peers: bootstrap needs them"}},
		"not among peers":    {&StoreSvr{}, "node: s9\ndata: /d\n" + three, nil, nil, []string{`FILE:3: peers: this node, "s9", is not among`}},
		"peer of other addr": {&StoreSvr{}, goodStore + three + "raft_listen: h:9\nrpc_listen: h:2\n", nil, nil, []string{`FILE:3: peers: "s1=h:1/h:2": this node's raft_advertise is "h:9"`}},
		"peer twice":         {&StoreSvr{}, goodStore + "raft_listen: h:1\nrpc_listen: h:2\npeers: [s1=h:1/h:2, s2=h:1/h:4]\n", nil, nil, []string{"address h:1 is that of"}},
		"bad directory":      {&StoreSvr{}, goodStore + "directory: [h:1, h:1, nonsense]\nfreeze_timeout: 1ms\npart_keys: 0\n", nil, nil, []string{"directory: h:1 is listed twice", `directory: "nonsense" is no HOST:PORT`, "freeze_timeout", "part_keys: 0 is outside"}},
		"malformed peer":     {&StoreSvr{}, goodStore + "peers: [s1=h:1]\n", nil, nil, []string{"want ID=RAFT_ADDR/RPC_ADDR"}},
		"port 0":             {&StoreSvr{}, goodStore + "rpc_listen: 127.0.0.1:0\n", nil, nil, []string{"FILE:3: rpc_listen", "stay the same"}},
		"space twice":        {&StoreSvr{}, goodStore + "spaces: [uid:uid, uid:name]\n", nil, nil, []string{"FILE:3: spaces", `"uid" is listed before`}},
		"unknown kind":       {&StoreSvr{}, goodStore + "spaces: [uid:int]\n", nil, nil, []string{"want uid or name"}},
		"short log":          {&StoreSvr{}, goodStore + "trailing_logs: 100\n", nil, nil, []string{"trailing_logs: must be at least 512"}},
		"slow elections":     {&StoreSvr{}, goodStore + "lease_ttl: 1s\nraft_timeout: 300ms\n", nil, nil, []string{"FILE:4: raft_timeout: 300ms is more than 200ms, a fifth of the lease_ttl of 1s"}},
		"short lease":        {&StoreSvr{}, goodStore + "lease_ttl: 1ms\n", nil, nil, []string{"FILE:3: lease_ttl: 1ms is below"}},
		"bad name":           {&StoreSvr{}, "node: s 1\ndata: /d\n", nil, nil, []string{"FILE:1: node", "only letters"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, path, err := load(t, c.conf, c.file, c.env, c.args...)
			if err == nil {
				t.Fatal("accepted")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), strings.ReplaceAll(want, "FILE", path)) {
					t.Errorf("got:\n%v\nwithout %q", err, want)
				}
			}
		})
	}
}

func TestAMissingFileIsRefused(t *testing.T) {
	k := NewKeys(pflag.NewFlagSet("", pflag.ContinueOnError), new(AllocSvr).Declare)
	if err := k.Load("/does/not/exist.yaml", os.LookupEnv); err == nil || !strings.Contains(err.Error(), "/does/not/exist.yaml") {
		t.Errorf("%v", err)
	}
}

func TestEffectiveConfigurationMasksSecretsAndReadsBack(t *testing.T) {
	var c AllocSvr
	k, _, err := load(t, &c, goodAlloc+"redis_password: hunter2\nredis_listen: 127.0.0.1:7379\n", nil, "--step=7")
	if err != nil {
		t.Fatal(err)
	}
	text := k.Effective()
	if strings.Contains(text, "hunter2") || !strings.Contains(text, `redis_password: "***"`) {
		t.Errorf("secret not masked:\n%s", text)
	}
	if !strings.Contains(text, "step: 7 # --step\n") || !strings.Contains(text, "max_n: 1000000 # default\n") {
		t.Errorf("sources are missing:\n%s", text)
	}
	var again AllocSvr
	if _, _, err := load(t, &again, text, nil); err != nil {
		t.Fatalf("the effective configuration is not accepted: %v\n%s", err, text)
	}
	if again.Steps.Step != 7 || again.Stores[0] != c.Stores[0] || again.RPCAdvertise != c.RPCAdvertise {
		t.Errorf("read back %+v", again)
	}
}

func TestEveryKeyHasAUsageAndNoUppercase(t *testing.T) {
	for _, c := range []checked{&AllocSvr{}, &StoreSvr{}} {
		fs := pflag.NewFlagSet("", pflag.ContinueOnError)
		c.Declare(fs)
		fs.VisitAll(func(f *pflag.Flag) {
			if f.Usage == "" || f.Name != strings.ToLower(f.Name) || strings.Contains(f.Name, "_") {
				t.Errorf("%s: %q", f.Name, f.Usage)
			}
		})
	}
}

func TestASpaceTakesWhatItDoesNotSayFromTheNode(t *testing.T) {
	var c AllocSvr
	_, _, err := load(t, &c, goodAlloc+`step_max: 5000
spaces:
  - conv:step_policy=adaptive:step_min=20:step_target=1h
  - uid:request_window=1h:request_entries_max=5000
`, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := raise.Steps{Adaptive: true, Min: 20, Max: 5000, Target: time.Hour}
	if got := c.SpaceSettings["conv"]; got != (allocsvr.SpaceConfig{Steps: want}) {
		t.Errorf("conv: %+v", got)
	}
	if got := c.SpaceSettings["uid"]; got != (allocsvr.SpaceConfig{Steps: raise.Fixed(10_000), Window: time.Hour, WindowEntriesMax: 5000}) {
		t.Errorf("uid: %+v", got)
	}
	if c.Steps.Rule() != raise.Fixed(10_000) || c.Requests.Window != 20*time.Minute {
		t.Errorf("the node itself: %+v", c.Steps)
	}
}

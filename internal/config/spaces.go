package config

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/seqsvr/seqsvr/allocsvr"
	"github.com/seqsvr/seqsvr/internal/ids"
)

// parseSpaces reads NAME:uid[:MAX_UID] and NAME:name. Their order gives the
// ids, so it must not change once a cluster is founded.
func parseSpaces(texts []string) ([]ids.Space, error) {
	var spaces []ids.Space
	seen := map[string]bool{}
	for i, text := range texts {
		parts := strings.Split(text, ":")
		if len(parts) < 2 {
			return nil, fmt.Errorf("%q: want NAME:uid[:MAX_UID] or NAME:name", text)
		}
		if err := name(parts[0]); err != nil {
			return nil, fmt.Errorf("%q: the name: %w", text, err)
		}
		kind, err := ids.ParseKind(parts[1])
		if err != nil {
			return nil, fmt.Errorf("%q: %w", text, err)
		}
		s := ids.Space{ID: ids.SpaceID(i + 1), Name: parts[0], Kind: kind}
		switch {
		case kind == ids.KindUID && len(parts) == 2:
			s.MaxUID = ids.DefaultMaxUID
		case kind == ids.KindUID && len(parts) == 3:
			if s.MaxUID, err = strconv.ParseUint(parts[2], 10, 64); err != nil {
				return nil, fmt.Errorf("%q: %q is no uid", text, parts[2])
			}
		case len(parts) > 2:
			return nil, fmt.Errorf("%q: too many parts", text)
		}
		if seen[s.Name] {
			return nil, fmt.Errorf("%q: a space %q is listed before it: each name once", text, s.Name)
		}
		seen[s.Name] = true
		spaces = append(spaces, s)
	}
	return spaces, nil
}

func spaceTexts(spaces []ids.Space) []string {
	var texts []string
	for _, s := range spaces {
		t := s.Name + ":" + s.Kind.String()
		if s.Kind == ids.KindUID {
			t += ":" + strconv.FormatUint(s.MaxUID, 10)
		}
		texts = append(texts, t)
	}
	return texts
}

// parseSpaceSettings reads NAME:KEY=VALUE[:KEY=VALUE…], each beside what holds for the node.
func (c *AllocSvr) parseSpaceSettings() (map[string]allocsvr.SpaceConfig, error) {
	all := map[string]allocsvr.SpaceConfig{}
	for _, text := range c.Spaces {
		parts := strings.Split(text, ":")
		if len(parts) < 2 {
			return nil, fmt.Errorf("%q: want NAME:KEY=VALUE[:KEY=VALUE…]", text)
		}
		if err := name(parts[0]); err != nil {
			return nil, fmt.Errorf("%q: the name: %w", text, err)
		}
		if _, twice := all[parts[0]]; twice {
			return nil, fmt.Errorf("%q: space %q is listed before it: each name once", text, parts[0])
		}
		sp, err := c.spaceSettings(parts[1:])
		if err != nil {
			return nil, fmt.Errorf("%q: %w", text, err)
		}
		all[parts[0]] = sp
	}
	return all, nil
}

// spaceSettings is what holds for a space of these settings.
func (c *AllocSvr) spaceSettings(settings []string) (sp allocsvr.SpaceConfig, err error) {
	steps, requests := c.Steps, c.Requests
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	steps.Declare(fs)
	requests.declare(fs)
	steps, requests = c.Steps, c.Requests // declaring sets the defaults
	changed := map[string]bool{}
	for _, s := range settings {
		key, value, ok := strings.Cut(s, "=")
		f := fs.Lookup(flagOf(key))
		switch {
		case !ok:
			return sp, fmt.Errorf("%q: want KEY=VALUE", s)
		case f == nil || strings.Contains(key, "-"):
			return sp, fmt.Errorf("%q is no key of a space: want step_policy, step, step_min, step_max, step_target, request_window or request_entries_max", key)
		case changed[key]:
			return sp, fmt.Errorf("%s is given twice", key)
		}
		if err := f.Value.Set(value); err != nil {
			return sp, fmt.Errorf("%s: %q is no %s", key, value, f.Value.Type())
		}
		changed[key] = true
	}
	problem := func(key, format string, a ...any) error { return fmt.Errorf("%s: %s", key, fmt.Sprintf(format, a...)) }
	if problems := append(steps.Check(problem), requests.check(problem)...); len(problems) > 0 {
		return sp, problems[0]
	}
	for _, key := range []string{"step_min", "step_max", "step_target"} {
		if changed[key] && steps.Policy != policyAdaptive {
			return sp, fmt.Errorf("%s is of step_policy=adaptive, and this space has fixed steps", key)
		}
	}
	if changed["step"] && steps.Policy != policyFixed {
		return sp, errors.New("step is of step_policy=fixed, and this space has adaptive steps")
	}
	sp.Steps = steps.Rule()
	if changed["request_window"] {
		sp.Window = requests.Window
	}
	if changed["request_entries_max"] {
		sp.WindowEntriesMax = requests.EntriesMax
	}
	return sp, nil
}

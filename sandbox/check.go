package sandbox

import (
	"fmt"
	"os"
	"strings"
	"time"
)

// Check is one line of `fre doctor`: a property of the host that sandboxes need or that affects
// their speed.
type Check struct {
	ID       string // short and stable, for the configuration's require
	Name     string // for people
	OK       bool
	Optional bool   // if not OK, FRE only refuses requests for the feature
	Found    string // the host's property
	Does     string // FRE's use of the property, if not obvious
	Effect   string // consequence if not OK
	Next     string // remedy
	Cost     Cost   // cost on this host; zero unless measured ([Costs])
}

// Cost is the time that a frequent operation of the engine takes on this host.
type Cost struct {
	Time time.Duration // a median; 0 if Err is set
	Of   string        // name of the operation, for people
	Err  error         // reason why the measurement failed
}

// asked is the output of fre-spawner: a value for each name of a system call. 0 means missing,
// else the value is 1 or a version.
type asked map[string]int

// ask has fre-spawner make system calls that Go has no binding for. fre-spawner gets files from fd
// 3 on.
func ask(files []*os.File, args ...string) (asked, error) {
	program, err := openProgram()
	if err != nil {
		return nil, err
	}
	defer program.Close()
	out, err := spawnerCommand(program, files, args...).Output()
	if err != nil {
		return nil, fmt.Errorf("fre-spawner %s: %w", args[0], err)
	}
	found := asked{}
	for line := range strings.Lines(string(out)) {
		var name string
		var value int
		if _, err := fmt.Sscan(line, &name, &value); err != nil {
			return nil, fmt.Errorf("fre-spawner %s said %q: %w", args[0], line, err)
		}
		found[name] = value
	}
	return found, nil
}

// check completes c for the call c.ID; err is the error of ask.
func (found asked) check(c Check, err error) Check {
	c.OK, c.Found = found[c.ID] > 0, "present"
	if err != nil {
		c.Found = err.Error()
	} else if !c.OK {
		c.Found = "missing"
	}
	return c
}

package daemon

import (
	"errors"
	"net"
)

// cleanup runs the added functions in reverse.
type cleanup []func() error

func (c *cleanup) add(f func() error) { *c = append(*c, f) }

// addListener closes a listener that no server has closed.
func (c *cleanup) addListener(l net.Listener) {
	c.add(func() error { return ignoreClosed(l.Close()) })
}

// Close runs the functions and forgets them.
func (c *cleanup) Close() (err error) {
	c.run(&err)
	return err
}

// run joins err with the functions' errors.
func (c *cleanup) run(err *error) {
	for i := len(*c) - 1; i >= 0; i-- {
		*err = errors.Join(*err, (*c)[i]())
	}
	*c = nil
}

package origin

import "time"

// Address is below what address something else is served that the origin's key protects,
// such as a live stream: prefix/name, where a key is given signed for as long as valid.
func (o *Origin) Address(prefix, name string, valid time.Duration) string {
	return o.address(prefix+"/"+name, prefix+"/"+name, valid)
}

// Check takes the signature from a path below that of Address, where a key is given.
func (o *Origin) Check(prefix, name string, path []byte) (rest []byte, problem string) {
	if o.cfg.Key == nil {
		return path, ""
	}
	return o.checkSignature(prefix+"/"+name, path)
}

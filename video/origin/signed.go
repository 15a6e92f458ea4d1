package origin

import "time"

// Address returns the address prefix/name of an object outside the assets, such as a live stream.
// With a signing key the address is signed and valid for a duration.
func (o *Origin) Address(prefix, name string, valid time.Duration) string {
	return o.address(prefix+"/"+name, prefix+"/"+name, valid)
}

// Check checks and removes the signature in a path below an Address. Without a signing key Check
// returns path unchanged. A non-empty problem refuses the request.
func (o *Origin) Check(prefix, name string, path []byte) (rest []byte, problem string) {
	if o.cfg.Key == nil {
		return path, ""
	}
	return o.checkSignature(prefix+"/"+name, path)
}

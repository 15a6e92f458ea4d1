package media

// Colour tells how to interpret a picture's pixel values, in code points of ITU-T H.273.
type Colour struct {
	Primaries int     `json:"primaries"`
	Transfer  int     `json:"transfer"`
	Matrix    int     `json:"matrix"`
	Full      bool    `json:"full,omitempty"` // 0 to 255; else 16 to 235
	Peak      float64 `json:"peak,omitempty"` // brightest pixel in candelas per square metre; 0: unknown
}

// Code points. Primaries, transfer functions and matrices share most code points.
const (
	RGB       = 0 // as a matrix
	BT709     = 1
	Unsaid    = 2
	BT470BG   = 5 // BT.601 with 625 lines
	SMPTE170M = 6 // BT.601 with 525 lines
	SRGB      = 13
	BT2020    = 9
	BT2020Ten = 14 // as a transfer function
	PQ        = 16
	HLG       = 18
)

// Known fills in the unstated colours of a source as players do: from the stated colours, or from
// the size of its pictures.
func (c Colour) Known(width, height int) Colour {
	if unsaid(c.Matrix) {
		c.Matrix = c.likelyMatrix(width, height)
	}
	if unsaid(c.Primaries) || c.Primaries == 0 {
		c.Primaries = c.likelyPrimaries()
	}
	if unsaid(c.Transfer) || c.Transfer == 0 {
		c.Transfer = c.likelyTransfer()
	}
	return c
}

// unsaid reports whether a code point states nothing: it is unspecified or reserved.
func unsaid(v int) bool { return v == Unsaid || v == 3 || v > 22 }

func (c Colour) likelyMatrix(width, height int) int {
	switch {
	case c.HDR() || c.Primaries == BT2020:
		return BT2020
	case c.Primaries == BT470BG || c.Primaries == SMPTE170M || c.Primaries == BT709:
		return c.Primaries
	case width >= 1280 || height > 576:
		return BT709
	}
	return SMPTE170M
}

func (c Colour) likelyPrimaries() int {
	switch {
	case c.HDR() || c.Matrix == BT2020 || c.Matrix == 10:
		return BT2020
	case c.Matrix == BT470BG || c.Matrix == SMPTE170M:
		return c.Matrix
	}
	return BT709
}

func (c Colour) likelyTransfer() int {
	switch {
	case c.Primaries == BT2020:
		return BT2020Ten
	case c.Matrix == BT470BG || c.Matrix == SMPTE170M:
		return SMPTE170M
	}
	return BT709
}

// HDR reports whether the brightness exceeds the range of an ordinary screen.
func (c Colour) HDR() bool { return c.Transfer == PQ || c.Transfer == HLG }

// Range returns the VIDEO-RANGE of HLS (RFC 8216bis, 4.4.6.2).
func (c Colour) Range() string {
	switch c.Transfer {
	case PQ:
		return "PQ"
	case HLG:
		return "HLG"
	}
	return "SDR"
}

// Plain returns the colours for renditions that every screen can show. Colours of BT.709 and
// BT.601 stay, to avoid a conversion; all other colours become BT.709.
func (c Colour) Plain() Colour {
	usual := func(v int) bool { return v == BT709 || v == BT470BG || v == SMPTE170M }
	to := Colour{Primaries: BT709, Transfer: BT709, Matrix: BT709}
	if usual(c.Primaries) && (usual(c.Transfer) || c.Transfer == SRGB) {
		to.Primaries, to.Transfer = c.Primaries, c.Transfer
		if usual(c.Matrix) {
			to.Matrix = c.Matrix
		}
	}
	return to
}

// Bright returns the colours for renditions with HDR.
func (c Colour) Bright() Colour {
	return Colour{Primaries: BT2020, Transfer: c.Transfer, Matrix: BT2020, Peak: c.Peak}
}

package template

import (
	"fmt"
	"math"
	"math/big"
	"strings"
	"time"

	"github.com/fre-engine/fre/internal/lazyregexp"
)

// byteUnits are the suffixes of a size; the empty suffix means bytes.
var byteUnits = map[string]int64{
	"": 1, "B": 1,
	"K": 1e3, "kB": 1e3, "KB": 1e3, "M": 1e6, "MB": 1e6, "G": 1e9, "GB": 1e9, "T": 1e12, "TB": 1e12,
	"Ki": 1 << 10, "KiB": 1 << 10, "Mi": 1 << 20, "MiB": 1 << 20, "Gi": 1 << 30, "GiB": 1 << 30, "Ti": 1 << 40, "TiB": 1 << 40,
}

var (
	sizePattern = lazyregexp.New(`^([0-9]{1,15}(?:\.[0-9]{1,6})?) ?([A-Za-z]*)$`)
	cpuPattern  = lazyregexp.New(`^([0-9]{1,9}(?:\.[0-9]{1,3})?)(m?)$`)
)

// ParseBytes reads "128MiB" (powers of two), "64M" (powers of ten) or "4096" (bytes).
func ParseBytes(s string) (int64, error) {
	m := sizePattern.FindStringSubmatch(s)
	if m == nil {
		return 0, fmt.Errorf(`%q is not a size: write for example "128MiB"`, s)
	}
	unit, ok := byteUnits[m[2]]
	if !ok {
		return 0, fmt.Errorf(`unknown unit %q in size %q: use KiB, MiB, GiB (powers of two) or K, M, G (powers of ten)`, m[2], s)
	}
	n, err := scale(m[1], unit)
	if err != nil {
		return 0, fmt.Errorf("size %q %w", s, err)
	}
	return n, nil
}

// ParseCPU reads an amount of CPU as in templates, "500m" (thousandths of a core), "1.5" or "2"
// (cores). It returns thousandths of a core.
func ParseCPU(s string) (int64, error) { return parseCPU(s) }

func parseCPU(s string) (int64, error) {
	m := cpuPattern.FindStringSubmatch(s)
	if m == nil {
		return 0, fmt.Errorf(`%q is not an amount of cpu: write for example "500m" (half a core) or "1.5"`, s)
	}
	unit := int64(1000)
	if m[2] == "m" {
		unit = 1
	}
	n, err := scale(m[1], unit)
	if err != nil {
		return 0, fmt.Errorf("cpu %q %w", s, err)
	}
	return n, nil
}

func parseDuration(s string) (time.Duration, error) {
	if strings.Trim(s, "0123456789.") == "" && s != "" {
		return 0, fmt.Errorf(`duration %q has no unit: write for example "%ss"`, s, s)
	}
	if d, err := time.ParseDuration(s); err == nil {
		return d, nil
	}
	return 0, fmt.Errorf(`%q is not a duration: write for example "30s", "5m" or "1h30m"`, s)
}

// scale multiplies decimal digits by unit, exactly.
func scale(digits string, unit int64) (int64, error) {
	r, ok := new(big.Rat).SetString(digits)
	if !ok {
		return 0, fmt.Errorf("is not a number")
	}
	r.Mul(r, new(big.Rat).SetInt64(unit))
	if !r.IsInt() {
		return 0, fmt.Errorf("is not a multiple of the smallest unit")
	}
	if r.Cmp(new(big.Rat).SetInt64(math.MaxInt64)) > 0 {
		return 0, fmt.Errorf("is too large")
	}
	return r.Num().Int64(), nil
}

// FormatBytes writes n as [ParseBytes] reads it, in the largest unit that divides n.
func FormatBytes(n int64) string {
	for _, unit := range []string{"TiB", "GiB", "MiB", "KiB"} {
		if u := byteUnits[unit]; n >= u && n%u == 0 {
			return fmt.Sprintf("%d%s", n/u, unit)
		}
	}
	return fmt.Sprint(n)
}

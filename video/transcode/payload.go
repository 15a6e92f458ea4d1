package transcode

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// payload builds the text of a WebVTT cue. Whatever the input, the text has no empty line and
// only known, closed tags; anything else that looks like a tag is escaped.
type payload struct {
	b    strings.Builder
	open []string // open tags by name, outermost first
	size int      // bytes of text and tags
	any  bool     // the text has a visible character
}

// finish closes all tags and returns the text.
func (p *payload) finish() string {
	if !p.any {
		return ""
	}
	for len(p.open) > 0 {
		p.close(p.open[len(p.open)-1])
	}
	var lines []string
	for line := range strings.Lines(p.b.String()) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n")
}

// text writes plain text.
func (p *payload) text(s string) {
	for _, r := range s {
		if p.size += utf8.RuneLen(r); p.size > mostCue {
			return
		}
		p.any = p.any || r > ' ' && r != '\u00a0' && r != '\ufeff'
		p.write(r)
	}
}

// write writes a character of plain text. It drops control characters.
func (p *payload) write(r rune) {
	switch r {
	case '&':
		p.b.WriteString("&amp;")
	case '<':
		p.b.WriteString("&lt;")
	case '>':
		p.b.WriteString("&gt;")
	case '\r', '\f', '\u0085', '\u2028', '\u2029':
		p.b.WriteByte('\n')
	case '\n', '\t':
		p.b.WriteRune(r)
	case 0x7f, '\ufeff':
	default:
		if r >= ' ' {
			p.b.WriteRune(r)
		}
	}
}

// begin opens a tag. rest is its classes and annotation. An open tag is not opened twice, and at
// most eight tags are open.
func (p *payload) begin(name, rest string) {
	if p.size >= mostCue || len(p.open) >= 8 || slices.Contains(p.open, name) {
		return
	}
	p.size += 2 + len(name) + len(rest)
	p.b.WriteString("<" + name + rest + ">")
	p.open = append(p.open, name)
}

// close closes a tag and reopens the tags within.
func (p *payload) close(name string) {
	i := slices.Index(p.open, name)
	if i < 0 {
		return
	}
	inner := slices.Clone(p.open[i+1:])
	for _, name := range slices.Backward(p.open[i:]) {
		p.b.WriteString("</" + name + ">")
	}
	p.open = p.open[:i]
	for _, name := range inner {
		if name == "b" || name == "i" || name == "u" { // other tags need their annotation, which is lost
			p.begin(name, "")
		}
	}
}

// set opens or closes a tag without classes and annotation.
func (p *payload) set(name string, on bool) {
	if on {
		p.begin(name, "")
	} else {
		p.close(name)
	}
}

// html writes text of SubRip, which has some HTML tags, or of WebVTT.
func (p *payload) html(b []byte, vtt bool) {
	s := utf8Of(b)
	for s != "" {
		i := strings.IndexAny(s, "<{&")
		if i < 0 {
			p.text(s)
			return
		}
		p.text(s[:i])
		s = s[i:]
		n := 0
		switch {
		case s[0] == '&':
			n = p.entity(s)
		case s[0] == '<':
			n = p.tag(s, vtt)
		case !vtt && strings.HasPrefix(s, `{\`): // a position, as in ASS
			n = within(s, '}') + 1
		}
		if n == 0 {
			p.text(s[:1])
			n = 1
		}
		s = s[n:]
	}
}

// entity writes the character of an entity at the start of s and returns the entity's length, or
// 0 without an entity.
func (p *payload) entity(s string) int {
	for _, e := range [][2]string{{"&amp;", "&"}, {"&lt;", "<"}, {"&gt;", ">"}, {"&nbsp;", "\u00a0"}, {"&lrm;", "\u200e"}, {"&rlm;", "\u200f"}, {"&quot;", `"`}} {
		if strings.HasPrefix(s, e[0]) {
			p.text(e[1])
			return len(e[0])
		}
	}
	return 0
}

// tag writes or drops the tag at the start of s and returns the tag's length, or 0 without a tag.
func (p *payload) tag(s string, vtt bool) int {
	end := within(s, '>')
	if end < 0 {
		return 0
	}
	inner, closing := strings.CutPrefix(s[1:end], "/")
	name, rest := splitTag(inner)
	if name != "" && !ends(rest) {
		return 0
	}
	switch {
	case isStyle(name, vtt):
		p.set(name, !closing)
	case vtt && slices.Contains([]string{"v", "lang", "c"}, name):
		p.span(name, rest, closing)
	case name == "br":
		p.text("\n")
	case vtt && isTime(name, rest), slices.Contains([]string{"font", "s", "strike", "span"}, name):
	default:
		return 0
	}
	return end + 1
}

// splitTag splits a tag's content behind its name, which has letters only.
func splitTag(s string) (name, rest string) {
	i := strings.IndexFunc(s, func(r rune) bool { return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') })
	if i < 0 {
		i = len(s)
	}
	return strings.ToLower(s[:i]), s[i:]
}

// ends reports whether a tag's name ends before rest.
func ends(rest string) bool { return rest == "" || strings.ContainsRune(". \t\n", rune(rest[0])) }

// isStyle reports whether a tag is a style, which the output has as well.
func isStyle(name string, vtt bool) bool {
	return slices.Contains([]string{"b", "i", "u"}, name) || vtt && slices.Contains([]string{"ruby", "rt"}, name)
}

// isTime reports whether a tag is a time within the cue.
func isTime(name, rest string) bool {
	return name == "" && rest != "" && strings.Trim(rest, "0123456789:.") == ""
}

// span writes or closes a tag with classes and an annotation.
func (p *payload) span(name, rest string, closing bool) {
	if closing {
		p.close(name)
		return
	}
	classes, annotation, _ := strings.Cut(strings.NewReplacer("\n", " ", "\t", " ").Replace(rest), " ")
	p.begin(name, only(classes, ".-_0123456789")+spaced(only(annotation, " .-_,'0123456789")))
}

// only keeps the letters of s, of any script, and the characters in other.
func only(s, other string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= 0xc0 && r < 0x2000 || r >= 0x3040 && r < 0xfe00 || strings.ContainsRune(other, r) {
			return r
		}
		return -1
	}, s)
}

// within returns the index of c near the start of s, or -1. Farther characters are unrelated.
func within(s string, c byte) int { return strings.IndexByte(s[:min(len(s), 512)], c) }

func spaced(s string) string {
	if s = strings.TrimSpace(s); s == "" {
		return ""
	}
	return " " + s
}

// ass writes an event of ASS: eight fields, then text with style overrides in braces.
func (p *payload) ass(b []byte) {
	fields := bytes.SplitN(b, []byte(","), 9)
	s := utf8Of(fields[len(fields)-1])
	drawing := false // the text is drawing commands, no letters
	for s != "" {
		i := strings.IndexAny(s, `{\`)
		if i < 0 {
			i = len(s)
		}
		if !drawing {
			p.text(s[:i])
		}
		s = s[i:]
		switch end := within(s, '}'); {
		case s == "":
		case s[0] == '{' && end > 0:
			for _, o := range strings.Split(s[1:end], `\`)[1:] {
				p.override(o, &drawing)
			}
			s = s[end+1:]
		case len(s) > 1 && s[0] == '\\' && strings.ContainsRune("Nnh", rune(s[1])):
			if !drawing {
				p.text(map[byte]string{'N': "\n", 'n': " ", 'h': "\u00a0"}[s[1]])
			}
			s = s[2:]
		default:
			if !drawing {
				p.text(s[:1])
			}
			s = s[1:]
		}
	}
}

// override applies an override of a pair of braces, given without its backslash: i1, b700, p0.
func (p *payload) override(o string, drawing *bool) {
	if o == "" {
		return
	}
	name, value := o[:1], o[1:]
	if strings.Trim(value, "0123456789") != "" {
		return // another override with the same letter, such as bord2
	}
	on := strings.Trim(value, "0") != ""
	switch name {
	case "b", "i", "u":
		p.set(name, on)
	case "p":
		*drawing = on
	case "r":
		for _, name := range []string{"b", "i", "u"} {
			p.close(name)
		}
	}
}

// timed writes a sample of 3GPP timed text (TS 26.245):
//
//	u16 n | n bytes, UTF-8 or with a mark UTF-16 | boxes
//
// The box styl holds styles of ranges of characters:
//
//	u32 size | styl | u16 n | n × (u16 first | u16 end | u16 font | u8 flags | u8 size | u32 colour)
func (p *payload) timed(b []byte) {
	if len(b) < 2 {
		return
	}
	n := min(int(binary.BigEndian.Uint16(b)), len(b)-2)
	text, boxes := []rune(utf8Of(b[2:2+n])), b[2+n:]
	looks := looksOf(boxes, len(text))
	from := 0
	for i := range looks {
		if i < len(text) && looks[i] == looks[from] {
			continue
		}
		for bit, name := range []string{"b", "i", "u"} {
			p.set(name, looks[from]>>bit&1 != 0)
		}
		p.text(string(text[from:i]))
		from = i
	}
}

// looksOf reads the styles of n characters, and of the text's end, from the boxes: 1 bold, 2 italic,
// 4 underlined.
func looksOf(boxes []byte, n int) []byte {
	looks := make([]byte, n+1)
	for len(boxes) >= 8 {
		size := int(binary.BigEndian.Uint32(boxes))
		if size < 8 || size > len(boxes) {
			break
		}
		if box := boxes[8:size]; string(boxes[4:8]) == "styl" && len(box) >= 2 {
			for e := box[2:]; len(e) >= 12; e = e[12:] {
				first, end := int(binary.BigEndian.Uint16(e)), int(binary.BigEndian.Uint16(e[2:]))
				for i := first; i < min(end, n); i++ {
					looks[i] = e[6]
				}
			}
		}
		boxes = boxes[size:]
	}
	return looks
}

// windows1252 holds the characters of the bytes 0x80 to 0x9f in Windows-1252.
const windows1252 = "€\u0081‚ƒ„…†‡ˆ‰Š‹Œ\u008dŽ\u008f\u0090‘’“”•–—˜™š›œ\u009džŸ"

// utf8Of converts text to UTF-8, from UTF-8, from UTF-16 with a byte order mark, or else from
// Windows-1252.
func utf8Of(b []byte) string {
	if order := map[string]binary.ByteOrder{"\xfe\xff": binary.BigEndian, "\xff\xfe": binary.LittleEndian}[string(b[:min(len(b), 2)])]; order != nil {
		var units []uint16
		for b = b[2:]; len(b) >= 2; b = b[2:] {
			units = append(units, order.Uint16(b))
		}
		return string(utf16.Decode(units))
	}
	if utf8.Valid(b) {
		return string(b)
	}
	high := []rune(windows1252)
	out := make([]rune, len(b))
	for i, c := range b {
		if out[i] = rune(c); c >= 0x80 && c < 0xa0 {
			out[i] = high[c-0x80]
		}
	}
	return string(out)
}

package install

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
)

// INIValue is one key of an INI file. Section is in lower case, "" before the first.
type INIValue struct{ Section, Key, Value string }

// ReadINI reads configuration files of package tools: sections, key = value or key: value, comments,
// and indented continuation lines. A missing or unreadable file is empty.
func ReadINI(path string) ([]INIValue, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var list []INIValue
	section := ""
	scan := bufio.NewScanner(f)
	for scan.Scan() {
		line := scan.Text()
		text := strings.TrimSpace(line)
		switch {
		case text == "" || text[0] == '#' || text[0] == ';':
			continue
		case text[0] == '[' && text[len(text)-1] == ']':
			section = strings.ToLower(text[1 : len(text)-1])
			continue
		case line[0] == ' ' || line[0] == '\t':
			if n := len(list); n > 0 && list[n-1].Section == section {
				list[n-1].Value = strings.TrimSpace(list[n-1].Value + "\n" + text)
				continue
			}
		}
		at := strings.IndexByte(text, '=')
		if colon := strings.IndexByte(text, ':'); section != "" && colon >= 0 && (at < 0 || colon < at) {
			at = colon
		}
		if at < 0 {
			continue
		}
		value := strings.TrimSpace(text[at+1:])
		if len(value) >= 2 && (value[0] == '"' || value[0] == '\'') && value[len(value)-1] == value[0] {
			value = value[1 : len(value)-1]
		}
		list = append(list, INIValue{section, strings.TrimSpace(text[:at]), value})
	}
	if err := scan.Err(); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return slices.Clip(list), nil
}

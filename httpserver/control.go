package httpserver

import "encoding/binary"

// controlFrame handles a frame that is not part of a request.
func (c *h2conn) controlFrame(f *frame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.payFrameLocked(f); err != nil {
		return err
	}
	switch f.kind {
	case framePriority:
		return c.priorityLocked(f)
	case frameReset:
		return c.resetFrameLocked(f)
	case frameSettings:
		return c.settingsLocked(f)
	case framePing:
		return c.pingLocked(f)
	case frameGoAway:
		return c.goAwayLocked(f)
	case frameWindow:
		return c.windowUpdateLocked(f)
	case frameData, frameHeaders, frameContinuation, framePush: // handled by frame
	}
	return nil // an unknown extension: ignored
}

// payFrameLocked charges the client's credit for a control frame.
func (c *h2conn) payFrameLocked(f *frame) error {
	if len(c.control) > maxControl {
		return &connError{codeCalm, "the answers to control frames are not taken"}
	}
	if f.kind == frameWindow && c.updates > 0 {
		c.updates-- // paid for by sent data
		return nil
	}
	return c.payLocked(1)
}

func (c *h2conn) goAwayLocked(f *frame) error {
	if f.id != 0 {
		return &connError{codeProtocol, "GOAWAY of a stream"}
	}
	if len(f.payload) < 8 {
		return &connError{codeFrameSize, "GOAWAY frame too short"}
	}
	c.leaving = true // without a GOAWAY in return: the client knows
	return nil
}

func (c *h2conn) priorityLocked(f *frame) error {
	switch {
	case f.id == 0:
		return &connError{codeProtocol, "PRIORITY without a stream"}
	case len(f.payload) != priorityLength:
		return &connError{codeFrameSize, "PRIORITY frame not 5 bytes long"}
	case binary.BigEndian.Uint32(f.payload)&streamIDMask == f.id:
		return &connError{codeProtocol, "stream depends on itself"}
	}
	return nil
}

// resetFrameLocked handles RST_STREAM: the client gives a stream up.
func (c *h2conn) resetFrameLocked(f *frame) error {
	switch {
	case f.id == 0 || f.id > c.last || f.id%2 == 0:
		return &connError{codeProtocol, "RST_STREAM of an idle stream"}
	case len(f.payload) != 4:
		return &connError{codeFrameSize, "RST_STREAM frame not 4 bytes long"}
	}
	st := c.streams[f.id]
	if st == nil {
		return nil
	}
	c.breakLocked(st, ErrClientGone)
	return c.payLocked(resetCost)
}

// settingsLocked applies the client's settings (RFC 9113 section 6.5).
func (c *h2conn) settingsLocked(f *frame) error {
	switch {
	case f.id != 0:
		return &connError{codeProtocol, "SETTINGS of a stream"}
	case f.flags&flagAck != 0:
		if len(f.payload) > 0 {
			return &connError{codeFrameSize, "an acknowledgement with settings"}
		}
		return nil
	case len(f.payload)%settingLength != 0:
		return &connError{codeFrameSize, "incomplete SETTINGS frame"}
	}
	if err := c.payLocked(len(f.payload) / settingLength); err != nil {
		return err
	}
	for p := f.payload; len(p) > 0; p = p[settingLength:] {
		if err := c.settingLocked(binary.BigEndian.Uint16(p), binary.BigEndian.Uint32(p[2:])); err != nil {
			return err
		}
	}
	c.control = appendFrameHead(c.control, 0, frameSettings, flagAck, 0)
	c.kickLocked()
	return nil
}

// settingLocked applies one setting.
func (c *h2conn) settingLocked(setting uint16, value uint32) error {
	switch setting {
	case settingTableSize:
		c.shrunk = c.shrunk || value < c.table
		c.table = value
	case settingPush:
		if value > 1 {
			return &connError{codeProtocol, "ENABLE_PUSH is neither 0 nor 1"}
		}
	case settingWindow:
		return c.initialWindowLocked(value)
	case settingFrame:
		if value < maxFrame || value > 1<<24-1 {
			return &connError{codeProtocol, "MAX_FRAME_SIZE is none"}
		}
		c.frameSize = int(min(value, maxSentFrame))
	}
	return nil
}

// initialWindowLocked changes the window of all streams, open ones included.
func (c *h2conn) initialWindowLocked(size uint32) error {
	if size > maxWindow {
		return &connError{codeFlowControl, "INITIAL_WINDOW_SIZE is too large"}
	}
	more := int64(size) - c.initialWindow
	c.initialWindow = int64(size)
	for _, st := range c.streams {
		if st.window += more; st.window > maxWindow {
			return &connError{codeFlowControl, "a window is too large"}
		}
	}
	return nil
}

func (c *h2conn) pingLocked(f *frame) error {
	switch {
	case f.id != 0:
		return &connError{codeProtocol, "PING of a stream"}
	case len(f.payload) != pingLength:
		return &connError{codeFrameSize, "PING frame not 8 bytes long"}
	case f.flags&flagAck != 0:
		return nil
	}
	c.control = append(appendFrameHead(c.control, pingLength, framePing, flagAck, 0), f.payload...)
	return nil
}

// windowUpdateLocked opens a window for sending (RFC 9113 section 6.9).
func (c *h2conn) windowUpdateLocked(f *frame) error {
	if len(f.payload) != 4 {
		return &connError{codeFrameSize, "WINDOW_UPDATE frame not 4 bytes long"}
	}
	n := int64(binary.BigEndian.Uint32(f.payload) & streamIDMask)
	if f.id == 0 {
		if c.window += n; n == 0 || c.window > maxWindow {
			return windowError(n)
		}
		c.kickLocked()
		return nil
	}
	if f.id > c.last || f.id%2 == 0 {
		return &connError{codeProtocol, "WINDOW_UPDATE of an idle stream"}
	}
	st := c.streams[f.id]
	if st == nil {
		return nil
	}
	if st.window += n; n == 0 || st.window > maxWindow {
		err := windowError(n)
		return c.resetLocked(st, err.code, bad("%s", err.reason))
	}
	c.kickLocked()
	return nil
}

func windowError(n int64) *connError {
	if n == 0 {
		return &connError{codeProtocol, "WINDOW_UPDATE of 0"}
	}
	return &connError{codeFlowControl, "a window is too large"}
}

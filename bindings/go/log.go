// SPDX-License-Identifier: MIT

package holdfast

// #include "bridge.h"
import "C"

import (
	"fmt"
	"runtime/cgo"
)

// A LogLevel says how urgent a line of the log is.
type LogLevel int

const (
	LogError   = LogLevel(C.HF_LOG_ERROR)   // a lock was lost
	LogWarning = LogLevel(C.HF_LOG_WARNING) // renewals fail
	LogInfo    = LogLevel(C.HF_LOG_INFO)    // retries, connections
	LogDebug   = LogLevel(C.HF_LOG_DEBUG)
)

func (l LogLevel) String() string {
	switch l {
	case LogError:
		return "error"
	case LogWarning:
		return "warning"
	case LogInfo:
		return "info"
	case LogDebug:
		return "debug"
	}
	return fmt.Sprintf("LogLevel(%d)", int(l))
}

type logLine struct {
	level LogLevel
	text  string
}

// startLog hands lines to f in a goroutine of its own, so that f may take its time
// and call what it likes. Lines are dropped while a thousand of them wait.
func startLog(f func(LogLevel, string)) (handle cgo.Handle, stop func()) {
	if f == nil {
		return 0, func() {}
	}
	lines := make(chan logLine, 1000)
	go func() {
		for line := range lines {
			f(line.level, line.text)
		}
	}()
	handle = cgo.NewHandle(lines)
	return handle, func() {
		handle.Delete()
		close(lines)
	}
}

//export hfgLog
func hfgLog(handle C.uintptr_t, level C.int, text *C.char) {
	select {
	case cgo.Handle(handle).Value().(chan logLine) <- logLine{LogLevel(level), C.GoString(text)}:
	default:
	}
}

// SPDX-License-Identifier: MIT

package holdfast

// #include "bridge.h"
import "C"

import (
	"fmt"
	"syscall"
)

// A Status is what is wrong. Compare with errors.Is:
//
//	if errors.Is(err, holdfast.ErrBusy) { ... }
type Status int

const (
	ErrBusy        = Status(C.HF_BUSY)        // somebody else holds it
	ErrTimeout     = Status(C.HF_TIMEOUT)     // ... for as long as Options.Wait
	ErrCanceled    = Status(C.HF_CANCELED)    // the client was closed
	ErrLost        = Status(C.HF_LOST)        // the lock is not yours any more
	ErrUncertain   = Status(C.HF_UNCERTAIN)   // no answer; being taken back
	ErrUnavailable = Status(C.HF_UNAVAILABLE) // the service cannot be reached
	ErrDenied      = Status(C.HF_DENIED)      // credentials or rights
	ErrInvalid     = Status(C.HF_INVALID)     // a wrong argument, URL or option
	ErrUnsupported = Status(C.HF_UNSUPPORTED) // this service cannot do that
	ErrProtocol    = Status(C.HF_PROTOCOL)    // an answer that makes no sense
	ErrNoMemory    = Status(C.HF_NOMEM)
	ErrSystem      = Status(C.HF_SYSTEM) // a system call failed
)

// Error is the name of the status: "busy".
func (s Status) Error() string { return C.GoString(C.hf_status_name(C.hf_status(s))) }

// An Error is a status with the text of the library.
type Error struct {
	Status Status
	Text   string
	Errno  syscall.Errno // of the failed system call, or 0
}

func (e *Error) Error() string {
	if e.Text == "" {
		return "holdfast: " + e.Status.Error()
	}
	return "holdfast: " + e.Text
}

// Unwrap makes errors.Is(err, ErrBusy) work, and errors.Is(err, syscall.ENOENT).
func (e *Error) Unwrap() error { return e.Status }

// Is compares with the error of the system.
func (e *Error) Is(target error) bool { return e.Errno != 0 && target == e.Errno }

// failure is the error of a call of the library; nil for HF_OK.
func failure(st C.hf_status, err *C.struct_hf_error) error {
	if st == C.HF_OK {
		return nil
	}
	return &Error{Status(st), C.GoString(&err.text[0]), syscall.Errno(err.sys_errno)}
}

func errorf(st Status, format string, args ...any) error {
	return &Error{Status: st, Text: fmt.Sprintf(format, args...)}
}

// A LostError says why a lock was lost. It is an ErrLost.
type LostError struct {
	Key    string
	Reason string // "expired", "stolen", "broken", ...: hf_loss_name()
}

func (e *LostError) Error() string {
	return fmt.Sprintf("holdfast: lock '%s' was lost: %s", e.Key, e.Reason)
}

func (e *LostError) Unwrap() error { return ErrLost }

// As makes an Error of it for those who ask for one.
func (e *LostError) As(target any) bool {
	to, ok := target.(**Error)
	if ok {
		*to = &Error{Status: ErrLost, Text: fmt.Sprintf("lock '%s' was lost: %s", e.Key, e.Reason)}
	}
	return ok
}

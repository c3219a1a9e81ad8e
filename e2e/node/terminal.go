package main

import (
	"fmt"
	"os"
	"syscall"
	"unsafe"

	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
)

// terminal is a pseudo-terminal, as a container runtime provides it to a process.
type terminal struct {
	// The end of this program.
	master *os.File
	// The end of the process.
	slave *os.File
}

func newTerminal() (*terminal, error) {
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	var number, unlocked uint32
	err = control(master, syscall.TIOCGPTN, unsafe.Pointer(&number))
	if err == nil {
		err = control(master, syscall.TIOCSPTLCK, unsafe.Pointer(&unlocked))
	}
	if err != nil {
		master.Close()
		return nil, err
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		master.Close()
		return nil, err
	}
	return &terminal{master: master, slave: slave}, nil
}

// resize sets the size. The kernel sends SIGWINCH to the process.
func (t *terminal) resize(size remotecommand.TerminalSize) error {
	rows := [4]uint16{size.Height, size.Width}
	return control(t.master, syscall.TIOCSWINSZ, unsafe.Pointer(&rows))
}

// control calls ioctl through SyscallConn, so that Go's poller can still use the file.
func control(file *os.File, request uintptr, argument unsafe.Pointer) error {
	connection, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var failed syscall.Errno
	err = connection.Control(func(descriptor uintptr) {
		_, _, failed = syscall.Syscall(syscall.SYS_IOCTL, descriptor, request, uintptr(argument))
	})
	if err == nil && failed != 0 {
		err = failed
	}
	return err
}

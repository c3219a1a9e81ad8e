package main

import (
	"fmt"
	"os"
	"syscall"
	"unsafe"

	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
)

// terminal is a pseudo-terminal as a container runtime gives one to a process.
type terminal struct {
	// Ours.
	master *os.File
	// The process's.
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

// resize tells the process as well, by SIGWINCH.
func (t *terminal) resize(size remotecommand.TerminalSize) error {
	rows := [4]uint16{size.Height, size.Width}
	return control(t.master, syscall.TIOCSWINSZ, unsafe.Pointer(&rows))
}

// control goes through the runtime, so that the file can still be waited for.
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

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"syscall"
	"time"

	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"
)

// container stands for all containers of all pods: a directory to run processes in.
type container struct {
	directory string
}

// ExecInContainer runs a command until it exits.
func (c container) ExecInContainer(ctx context.Context, _, _, _ string, args []string,
	in io.Reader, out, err io.WriteCloser, tty bool, sizes <-chan remotecommand.TerminalSize,
	_ time.Duration,
) error {
	if tty {
		return c.runInTerminal(ctx, args, in, out, sizes)
	}
	return c.run(ctx, args, in, out, err)
}

// AttachContainer echoes its input: the containers run cat.
func (c container) AttachContainer(ctx context.Context, _, _, _ string,
	in io.Reader, out, err io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize,
) error {
	return c.run(ctx, []string{"cat"}, in, out, err)
}

func (c container) run(ctx context.Context, args []string, in io.Reader, out, err io.Writer) error {
	if len(args) == 0 {
		return errors.New("no command")
	}
	command := exec.CommandContext(ctx, args[0], args[1:]...)
	command.Dir = c.directory
	// If the test is killed, its processes are killed too.
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	command.Stdout, command.Stderr = out, err
	if in != nil {
		// Not command.Stdin: a command may exit before the end of its input.
		stdin, err := command.StdinPipe()
		if err != nil {
			return err
		}
		go func() {
			defer stdin.Close()
			io.Copy(stdin, in)
		}()
	}
	return exitCode(command.Run())
}

// runInTerminal runs a command on a pseudo-terminal.
func (c container) runInTerminal(ctx context.Context, args []string, in io.Reader, out io.Writer,
	sizes <-chan remotecommand.TerminalSize,
) error {
	if len(args) == 0 {
		return errors.New("no command")
	}
	terminal, err := newTerminal()
	if err != nil {
		return err
	}
	// Sends SIGHUP to processes that still use the terminal.
	defer terminal.master.Close()
	command := exec.CommandContext(ctx, args[0], args[1:]...)
	command.Dir = c.directory
	command.Stdin, command.Stdout, command.Stderr = terminal.slave, terminal.slave, terminal.slave
	command.SysProcAttr = &syscall.SysProcAttr{
		Setsid: true, Setctty: true, Pdeathsig: syscall.SIGKILL,
	}
	err = command.Start()
	terminal.slave.Close()
	if err != nil {
		return err
	}
	go func() {
		for size := range sizes {
			terminal.resize(size)
		}
	}()
	if in != nil {
		go func() {
			io.Copy(terminal.master, in)
			// The client has disconnected.
			command.Process.Signal(syscall.SIGHUP)
		}()
	}
	// Ends with EIO when no process has the terminal open any more.
	io.Copy(out, terminal.master)
	return exitCode(command.Wait())
}

// exitCode reports the exit of a command as a kubelet does.
func exitCode(err error) error {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return err
	}
	code := exit.ExitCode()
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		// As shells do.
		code = 128 + int(status.Signal())
	}
	return utilexec.CodeExitError{Err: err, Code: code}
}

// PortForward connects a stream to a port of this host.
func (container) PortForward(ctx context.Context, _, _ string, port int32, stream io.ReadWriteCloser) error {
	var dialer net.Dialer
	connection, err := dialer.DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return err
	}
	defer connection.Close()
	go func() {
		io.Copy(connection, stream)
		// The client has closed its direction and may still read.
		connection.(*net.TCPConn).CloseWrite()
	}()
	_, err = io.Copy(stream, connection)
	return err
}

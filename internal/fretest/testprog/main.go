// Testprog is the program that tests run inside sandboxes: its first argument
// says what to do or to report.
package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	if len(os.Args) < 2 {
		return
	}
	if err := run(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(100)
	}
}

func run(command string, args []string) error {
	switch command {
	case "exit":
		code, err := strconv.Atoi(args[0])
		if err != nil {
			return err
		}
		os.Exit(code)
	case "clock":
		fmt.Println(time.Now().UnixNano())
	case "crash":
		var nowhere *int
		*nowhere = 1
	case "args":
		fmt.Println(strings.Join(args, "|"))
	case "env":
		fmt.Println(strings.Join(os.Environ(), "|"))
	case "cwd":
		dir, err := os.Getwd()
		fmt.Println(dir)
		return err
	case "host":
		name, err := os.Hostname()
		fmt.Println(name)
		return err
	case "echo":
		buf := make([]byte, 4096)
		n, _ := os.Stdin.Read(buf)
		os.Stdout.Write(buf[:n])
		_, _ = os.Stderr.Write(buf[:n])
	case "channel":
		f := os.NewFile(3, "channel")
		buf := make([]byte, 4096)
		n, err := f.Read(buf)
		if err != nil {
			return err
		}
		_, err = f.Write([]byte(strings.ToUpper(string(buf[:n]))))
		return err
	case "fds":
		return fds()
	case "cat":
		for _, name := range args {
			b, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			os.Stdout.Write(b)
		}
	case "ls":
		for _, name := range args {
			entries, err := os.ReadDir(name)
			if err != nil {
				return err
			}
			for _, e := range entries {
				fmt.Println(e.Name())
			}
		}
	case "readlink":
		for _, name := range args {
			target, err := os.Readlink(name)
			if err != nil {
				return err
			}
			fmt.Println(target)
		}
	case "stat":
		var st syscall.Stat_t
		if err := syscall.Stat(args[0], &st); err != nil {
			return err
		}
		fmt.Printf("%o %d %d\n", st.Mode, st.Uid, st.Gid)
	case "ids":
		fmt.Println(os.Getuid(), os.Geteuid(), os.Getgid(), os.Getegid(), os.Getpid())
	case "write":
		return os.WriteFile(args[0], []byte(args[1]), 0o644)
	case "fill":
		return fill(args[0])
	case "files":
		for i := 0; ; i++ {
			f, err := os.Create(filepath.Join(args[0], strconv.Itoa(i)))
			if err != nil {
				fmt.Println(i)
				return err
			}
			_ = f.Close()
		}
	case "open":
		for i := 0; ; i++ {
			if _, err := syscall.Open("/dev/null", syscall.O_RDONLY, 0); err != nil {
				fmt.Println(i)
				return err
			}
		}
	case "bomb":
		return bomb()
	case "eat":
		return eat(args[0])
	case "spin":
		for { //nolint:staticcheck // to spin is what it is for
		}
	case "sleep":
		fmt.Println("ready")
		forever()
	case "stubborn":
		signal.Ignore(syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT)
		fmt.Println("ready")
		forever()
	case "daemons":
		return daemons()
	case "trap":
		c := make(chan os.Signal, 1)
		signal.Notify(c, syscall.SIGTERM)
		fmt.Println("ready")
		<-c
		fmt.Println("terminated")
	case "interfaces":
		all, err := net.Interfaces()
		for _, i := range all {
			fmt.Println(i.Name, i.Flags&net.FlagUp != 0)
		}
		return err
	case "kill":
		pid, err := strconv.Atoi(args[0])
		if err != nil {
			return err
		}
		return syscall.Kill(pid, syscall.SIGKILL)
	case "mount":
		return syscall.Mount("none", "/tmp", "tmpfs", 0, "")
	default:
		return fmt.Errorf("unknown command %q", command)
	}
	return nil
}

// fds prints which file descriptors are open, without opening one that stays.
func fds() error {
	for fd := range 4096 {
		var st syscall.Stat_t
		if syscall.Fstat(fd, &st) != nil {
			continue
		}
		target, _ := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
		if strings.HasPrefix(target, "anon_inode:[event") { // the Go runtime's own
			continue
		}
		fmt.Println(fd)
	}
	return nil
}

func fill(name string) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	buf := make([]byte, 64<<10)
	total := 0
	for {
		n, err := f.Write(buf)
		total += n
		if err != nil {
			fmt.Println(total)
			return err
		}
	}
}

// bomb starts children that wait until no more can be started.
func bomb() error {
	for i := 0; ; i++ {
		if err := exec.Command("/bin/prog", "stubborn").Start(); err != nil {
			fmt.Println(i)
			return err
		}
	}
}

// eat touches that many bytes and then says so.
func eat(bytes string) error {
	n, err := strconv.Atoi(bytes)
	if err != nil {
		return err
	}
	b := make([]byte, n)
	for i := 0; i < n; i += 4096 {
		b[i] = 1
	}
	fmt.Println("ready", b[n-1])
	forever()
	return nil
}

// daemons leaves grandchildren in sessions of their own, which ignore SIGTERM
// and hold its output, and waits.
func daemons() error {
	for range 3 {
		cmd := exec.Command("/bin/prog", "stubborn")
		cmd.Stdout = os.Stdout
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := cmd.Start(); err != nil {
			return err
		}
	}
	forever()
	return nil
}

// forever waits without a goroutine that could go on: the runtime calls that a
// deadlock when it is the last one.
func forever() {
	for {
		_ = syscall.Pause()
	}
}

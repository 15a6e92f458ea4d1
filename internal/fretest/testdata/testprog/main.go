// Testprog is the program that tests run inside sandboxes. The first argument is a command.
package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fre-engine/fre/internal/linux"
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
	case "orders": // runs each line of stdin as a command, and prints "> ok" or "> error" after each
		fmt.Println("> ready")
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			answer := "ok"
			if words := strings.Fields(lines.Text()); len(words) > 0 {
				if err := run(words[0], words[1:]); err != nil {
					answer = err.Error()
				}
			}
			fmt.Println(">", answer)
		}
	case "exit":
		code, err := strconv.Atoi(args[0])
		if err != nil {
			return err
		}
		os.Exit(code)
	case "clock":
		fmt.Println(time.Now().UnixNano())
	case "pause": // for a duration such as 20ms
		d, err := time.ParseDuration(args[0])
		if err != nil {
			return err
		}
		<-time.After(d)
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
	case "function":
		return function()
	case "deliver":
		return deliver()
	case "fds":
		return fds()
	case "reach":
		return reach(args[0], args[1])
	case "rewire":
		return rewire()
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
	case "lstat":
		_, err := os.Lstat(args[0])
		return err
	case "ids":
		fmt.Println(os.Getuid(), os.Geteuid(), os.Getgid(), os.Getegid(), os.Getpid())
	case "write":
		return os.WriteFile(args[0], []byte(args[1]), 0o644)
	case "copy": // stdin to stdout
		_, err := io.Copy(os.Stdout, os.Stdin)
		return err
	case "again": // appends a dot to the file and prints all dots
		f, err := os.OpenFile(args[0], os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o644)
		if err != nil {
			return err
		}
		_, err = f.WriteString(".")
		text, readErr := os.ReadFile(args[0])
		fmt.Println(string(text))
		return errors.Join(err, readErr, f.Close())
	case "clone": // copies a file to an executable file
		text, err := os.ReadFile(args[0])
		if err != nil {
			return err
		}
		return os.WriteFile(args[1], text, 0o755)
	case "spawn":
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		return cmd.Run()
	case "project": // sets a file's project id for quotas, without inheritance; -1 keeps the id
		f, err := os.Open(args[0])
		if err != nil {
			return err
		}
		defer f.Close()
		id, err := strconv.Atoi(args[1])
		if err != nil {
			return err
		}
		own, _, err := linux.Project(int(f.Fd()))
		if err != nil {
			return err
		}
		if id >= 0 {
			own = uint32(id)
		}
		return linux.SetProject(int(f.Fd()), own, false)
	case "rename":
		return os.Rename(args[0], args[1])
	case "remove":
		return os.RemoveAll(args[0])
	case "mkdir":
		return os.Mkdir(args[0], 0o755)
	case "symlink":
		return os.Symlink(args[0], args[1])
	case "chmod": // mode path
		mode, err := strconv.ParseUint(args[0], 8, 32)
		if err != nil {
			return err
		}
		return syscall.Chmod(args[1], uint32(mode))
	case "chown": // id path
		id, err := strconv.Atoi(args[0])
		if err != nil {
			return err
		}
		return os.Lchown(args[1], id, id)
	case "become": // id: permanently, like a server that starts as root
		id, err := strconv.Atoi(args[0])
		if err != nil {
			return err
		}
		if err := errors.Join(syscall.Setgroups(nil), syscall.Setgid(id), syscall.Setuid(id)); err != nil {
			return err
		}
		if err := syscall.Setuid(0); !errors.Is(err, syscall.EPERM) {
			return fmt.Errorf("back to root: %w", err)
		}
	case "groups":
		groups, err := syscall.Getgroups()
		fmt.Println(groups)
		return err
	case "winsize":
		size, err := unix.IoctlGetWinsize(0, unix.TIOCGWINSZ)
		if err != nil {
			return err
		}
		fmt.Println(size.Row, size.Col)
	case "mknod":
		return unix.Mknod(args[0], unix.S_IFBLK|0o600, int(unix.Mkdev(8, 0)))
	case "sethostname":
		return syscall.Sethostname([]byte(args[0]))
	case "port":
		return listened(args[0])
	case "append":
		f, err := os.OpenFile(args[0], os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			return err
		}
		_, err = f.WriteString(args[1])
		return errors.Join(err, f.Close())
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
	case "spinall":
		spinAll()
	case "flood":
		return flood()
	case "datagrams":
		return datagrams(args[0])
	case "print": // a number of bytes
		n, err := strconv.Atoi(args[0])
		if err != nil {
			return err
		}
		_, err = io.Copy(os.Stdout, &stream{size: n, end: func() error { return io.EOF }})
		return err
	case "churn":
		return churn(args[0])
	case "hoard":
		return hoard()
	case "flood-datagrams":
		return floodDatagrams()
	case "flood-locks":
		return floodLocks()
	case "flood-netlink":
		return floodNetlink()
	case "flood-connections":
		return floodConnections()
	case "wait": // for a duration
		d, err := time.ParseDuration(args[0])
		if err != nil {
			return err
		}
		<-time.After(d)
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
		signal.Notify(c, syscall.SIGTERM, syscall.SIGINT)
		fmt.Println("ready")
		<-c
		fmt.Println("terminated")
	case "writer": // on SIGTERM
		c := make(chan os.Signal, 1)
		signal.Notify(c, syscall.SIGTERM)
		fmt.Println("ready")
		<-c
		if err := os.WriteFile(args[0], make([]byte, 1<<20), 0o644); err != nil {
			return err
		}
		fmt.Println("written")
		forever()
	case "http":
		return get(args[0], args[1])
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
	case "calls":
		return calls()
	case "dial":
		return dial(args[0])
	case "sessionkeys":
		id, err := unix.KeyctlGetKeyringID(unix.KEY_SPEC_SESSION_KEYRING, false)
		fmt.Println(id)
		return err
	case "attack":
		return attack(args)
	case "bare":
		return bare(args[0], args[1:])
	case "watch":
		return watch()
	case "through":
		return through()
	case "euid":
		return euid()
	case "copies":
		n, err := strconv.Atoi(args[0])
		if err != nil {
			return err
		}
		return copies(n)
	case "connect":
		fmt.Println(outcome(connect(args[0], args[1])))
	case "listen":
		return listen(args[0], args[1])
	case "inherited":
		return inherited()
	case "core":
		return core()
	case "addkey":
		id, err := unix.AddKey("user", "secret", []byte("x"), unix.KEY_SPEC_SESSION_KEYRING)
		if err == nil {
			err = unix.KeyctlSetperm(id, 0x3f3f0000) // all rights for the possessor and the user
		}
		if err == nil {
			fmt.Println(id)
			forever()
		}
		return err
	case "readkey":
		id, err := strconv.Atoi(args[0])
		if err != nil {
			return err
		}
		_, err = unix.KeyctlBuffer(unix.KEYCTL_READ, id, make([]byte, 8), 8)
		return err
	default:
		return fmt.Errorf("unknown command %q", command)
	}
	return nil
}

// fds prints the open file descriptors, without opening a further one.
func fds() error {
	for fd := range 4096 {
		var st syscall.Stat_t
		if syscall.Fstat(fd, &st) != nil {
			continue
		}
		target, _ := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
		if strings.HasPrefix(target, "anon_inode:[event") { // of the Go runtime
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

// bomb starts waiting children until the limits allow no more, and prints their number.
func bomb() error {
	for i := 0; ; i++ {
		if err := exec.Command("/proc/self/exe", "stubborn").Start(); err != nil {
			fmt.Println(i)
			return err
		}
	}
}

// eat touches the given number of bytes and then prints "ready".
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

// daemons starts children in sessions of their own, then waits. The children ignore SIGTERM and
// keep the output open.
func daemons() error {
	for range 3 {
		cmd := exec.Command("/proc/self/exe", "stubborn")
		cmd.Stdout = os.Stdout
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := cmd.Start(); err != nil {
			return err
		}
	}
	forever()
	return nil
}

// inherited prints attributes that a process inherits from its parent.
func inherited() error {
	var core unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &core); err != nil {
		return err
	}
	var locked unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &locked); err != nil {
		return err
	}
	nice, err := unix.Getpriority(unix.PRIO_PROCESS, 0) // the raw system call returns 20 - nice
	if err != nil {
		return err
	}
	adjust, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		return err
	}
	session, err := unix.Getsid(0)
	if err != nil {
		return err
	}
	fmt.Printf("core %d/%d memlock %d/%d nice %d oom %s umask %o session %d\n", core.Cur, core.Max, locked.Cur, locked.Max, 20-nice,
		strings.TrimSpace(string(adjust)), unix.Umask(0), session)
	return nil
}

// reach prints the first bytes from a server.
func reach(network, addr string) error {
	c, err := net.DialTimeout(network, addr, 2*time.Minute)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(2 * time.Minute)); err != nil {
		return err
	}
	if network == "udp" {
		if _, err := c.Write([]byte("?")); err != nil {
			return err
		}
	}
	buf := make([]byte, 256)
	n, err := c.Read(buf)
	os.Stdout.Write(buf[:n])
	return err
}

// rewire prints the results of attempts to change the network from inside.
func rewire() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	eth0 := func() *unix.Ifreq {
		req, err := unix.NewIfreq("eth0")
		if err != nil {
			panic(err)
		}
		return req
	}
	address := eth0()
	if err := address.SetInet4Addr([]byte{10, 9, 8, 7}); err != nil {
		return err
	}
	socket := func(domain, kind, protocol int) error {
		_, err := unix.Socket(domain, kind, protocol)
		return err
	}
	for _, try := range []struct {
		name string
		err  error
	}{
		{"raw socket", socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_TCP)},
		{"raw IPv6 socket", socket(unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_ICMPV6)},
		{"packet socket", socket(unix.AF_PACKET, unix.SOCK_RAW, 0)},
		{"foreign source", unix.SetsockoptInt(s, unix.SOL_IP, unix.IP_TRANSPARENT, 1)},
		{"mark", unix.SetsockoptInt(s, unix.SOL_SOCKET, unix.SO_MARK, 1)},
		{"address", unix.IoctlIfreq(s, unix.SIOCSIFADDR, address)},
		{"hardware address", unix.IoctlIfreq(s, unix.SIOCSIFHWADDR, eth0())},
		{"link down", unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, eth0())},
		{"route", addRoute()},
		{"neighbour", unix.IoctlSetInt(s, unix.SIOCSARP, 0)},
	} {
		fmt.Printf("%s: %v\n", try.name, try.err)
	}
	return nil
}

// addRoute tries to add a default blackhole route (rtnetlink(7)).
func addRoute() error {
	s, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	msg := make([]byte, unix.NLMSG_HDRLEN, unix.NLMSG_HDRLEN+unix.SizeofRtMsg)
	binary.NativeEndian.PutUint32(msg, uint32(cap(msg)))
	binary.NativeEndian.PutUint16(msg[4:], unix.RTM_NEWROUTE)
	binary.NativeEndian.PutUint16(msg[6:], unix.NLM_F_REQUEST|unix.NLM_F_ACK|unix.NLM_F_CREATE)
	msg = append(msg, unix.AF_INET, 0, 0, 0, unix.RT_TABLE_MAIN, unix.RTPROT_STATIC, unix.RT_SCOPE_UNIVERSE, unix.RTN_BLACKHOLE, 0, 0, 0, 0)
	if err := unix.Sendto(s, msg, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	reply := make([]byte, 256)
	if n, err := unix.Read(s, reply); err != nil || n < unix.NLMSG_HDRLEN+4 {
		return fmt.Errorf("answer of %d bytes: %w", n, err)
	}
	if errno := int32(binary.NativeEndian.Uint32(reply[unix.NLMSG_HDRLEN:])); errno != 0 {
		return unix.Errno(-errno)
	}
	return nil
}

// core prints whether a child's crash left a core dump.
func core() error {
	cmd := exec.Command("/proc/self/exe", "crash")
	cmd.Dir, cmd.Env = "/tmp", []string{"GOTRACEBACK=crash"}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, io.Discard, io.Discard // /dev/null may be missing
	err := cmd.Run()
	status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if !ok || !status.Signaled() {
		return fmt.Errorf("child did not crash: %w", err)
	}
	fmt.Println("core", status.CoreDump())
	return nil
}

// forever waits without blocking a goroutine: the runtime would report a deadlock if the last
// goroutine blocked.
func forever() {
	for {
		_ = syscall.Pause()
	}
}

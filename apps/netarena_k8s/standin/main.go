// standin runs in place of the applications of a world: it listens on their ports, and it measures
// which targets its pod can reach. It is static, has no dependencies, and is the only file of its image.
//
//	standin listen tcp:8080 udp:53 ...   accept connections until SIGTERM; without ports, only wait
//	standin probe                        answer rounds: one JSON object per line in, one per line out
//
// A round is {"id": 1, "targets": [{"name": "cart", "ip": "10.96.0.7", "port": 7070, "protocol": "tcp",
// "dns_wait_ms": 300, "wait_ms": 300}, ...]}. All its targets are tested at the same time: a new
// connection to the address, and a lookup of the name. The answer is {"id": 1, "slowest_ms": 2, "found":
// [{"dns": "ok", "connection": "open"}, ...]}, in the order of the targets. `connection` is open,
// refused or silent; `dns` is ok, wrong (another address, or no such name) or silent. `slowest_ms` is
// the time of the slowest open target, for checking whether the waits were long enough.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const idle = 5 * time.Second // limit for an idle connection to a listener

type target struct {
	Name      string `json:"name"`
	IP        string `json:"ip"`
	Port      int    `json:"port"`
	Protocol  string `json:"protocol"`
	DNSWaitMS int    `json:"dns_wait_ms"`
	WaitMS    int    `json:"wait_ms"`
}

type round struct {
	ID      int      `json:"id"`
	Targets []target `json:"targets"`
}

type finding struct {
	DNS        string `json:"dns"`
	Connection string `json:"connection"`
}

type answer struct {
	ID        int       `json:"id"`
	SlowestMS int64     `json:"slowest_ms"`
	Found     []finding `json:"found"`
}

func main() {
	command := ""
	if len(os.Args) > 1 {
		command = os.Args[1]
	}
	var err error
	switch command {
	case "listen":
		err = listen(os.Args[2:])
	case "probe":
		err = probe()
	default:
		err = errors.New("usage: standin listen PROTOCOL:PORT... | probe")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "standin:", err)
		os.Exit(1)
	}
}

func listen(specs []string) error {
	for _, spec := range specs {
		protocol, port, _ := strings.Cut(spec, ":")
		switch protocol {
		case "tcp":
			l, err := net.Listen("tcp", ":"+port)
			if err != nil {
				return err
			}
			go accept(l)
		case "udp":
			p, err := net.ListenPacket("udp", ":"+port)
			if err != nil {
				return err
			}
			go echo(p)
		default:
			return fmt.Errorf("%q is not tcp:PORT or udp:PORT", spec)
		}
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM, syscall.SIGINT)
	<-ended
	return nil
}

// accept keeps each connection open until the client closes it, sends data, or is idle for too long.
func accept(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			time.Sleep(10 * time.Millisecond) // no file descriptor is free; other connections will be closed
			continue
		}
		go func() {
			defer c.Close()
			c.SetDeadline(time.Now().Add(idle))
			c.Read(make([]byte, 1))
		}()
	}
}

func echo(p net.PacketConn) {
	b := make([]byte, 64)
	for {
		if n, from, err := p.ReadFrom(b); err == nil {
			p.WriteTo(b[:n], from)
		}
	}
}

func probe() error {
	rounds := json.NewDecoder(bufio.NewReader(os.Stdin))
	answers := json.NewEncoder(os.Stdout)
	for {
		var r round
		if err := rounds.Decode(&r); err != nil {
			return nil // the caller has closed the stream
		}
		if err := answers.Encode(measure(r)); err != nil {
			return nil
		}
	}
}

func measure(r round) answer {
	found := answer{ID: r.ID, Found: make([]finding, len(r.Targets))}
	var all sync.WaitGroup
	var lock sync.Mutex
	try := func(waitMS int, good string, attempt func(context.Context) string, result *string) {
		all.Add(1)
		go func() {
			defer all.Done()
			start := time.Now()
			ctx, cancel := context.WithTimeout(context.Background(), time.Duration(waitMS)*time.Millisecond)
			defer cancel()
			if *result = attempt(ctx); *result == good {
				lock.Lock()
				defer lock.Unlock()
				found.SlowestMS = max(found.SlowestMS, time.Since(start).Milliseconds())
			}
		}()
	}
	for i, t := range r.Targets {
		try(t.DNSWaitMS, "ok", func(ctx context.Context) string { return lookup(ctx, t) }, &found.Found[i].DNS)
		try(t.WaitMS, "open", func(ctx context.Context) string { return connect(ctx, t) }, &found.Found[i].Connection)
	}
	all.Wait()
	return found
}

// lookup resolves the target's name as an application would, with the pod's search path.
func lookup(ctx context.Context, t target) string {
	addresses, err := net.DefaultResolver.LookupNetIP(ctx, "ip4", t.Name)
	var failure *net.DNSError
	switch {
	case err == nil && len(addresses) == 1 && addresses[0].Unmap().String() == t.IP:
		return "ok"
	case err == nil, errors.As(err, &failure) && failure.IsNotFound && ctx.Err() == nil:
		return "wrong"
	}
	return "silent"
}

// connect tests the target's address with a TCP connection, or with a datagram that the target echoes.
func connect(ctx context.Context, t target) string {
	var dialer net.Dialer
	c, err := dialer.DialContext(ctx, t.Protocol, net.JoinHostPort(t.IP, strconv.Itoa(t.Port)))
	if err == nil {
		defer c.Close()
		if t.Protocol == "udp" {
			err = exchange(ctx, c)
		} else if tcp, ok := c.(*net.TCPConn); ok {
			tcp.SetLinger(0) // leaves no socket in TIME_WAIT
		}
	}
	switch {
	case err == nil:
		return "open"
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.EHOSTUNREACH),
		errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EACCES):
		return "refused"
	}
	return "silent"
}

func exchange(ctx context.Context, c net.Conn) error {
	deadline, _ := ctx.Deadline()
	c.SetDeadline(deadline)
	if _, err := c.Write([]byte("?")); err != nil {
		return err
	}
	_, err := c.Read(make([]byte, 64))
	return err
}

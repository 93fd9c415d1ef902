package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// readyLine is what stdout carries, once, when the server is ready. Its names are fixed:
// programs read it.
type readyLine struct {
	Ready       bool   `json:"ready"`
	Listen      string `json:"listen"`         // the address that is really listened on
	HTTP        string `json:"http,omitempty"` // the same, of metrics and health; missing: off
	DatabaseURL string `json:"database_url"`   // with its password for `dev` only
	PID         int    `json:"pid"`
	Version     string `json:"version"`
}

func (l readyLine) print(w io.Writer) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false) // A URL is to be read by people too.
	if err := encoder.Encode(l); err != nil {
		return fmt.Errorf("print the ready line: %w", err)
	}
	return nil
}

// withoutPassword is a URL of the same database without its secrets.
func withoutPassword(database string) string {
	u, err := url.Parse(database)
	if err != nil || (u.Scheme != "postgres" && u.Scheme != "postgresql") {
		return plainURL(database)
	}
	if u.User != nil {
		u.User = url.User(u.User.Username())
	}
	query := u.Query()
	for _, secret := range []string{"password", "sslpassword", "sslkey", "passfile"} {
		query.Del(secret)
	}
	u.RawQuery = query.Encode()
	return u.String()
}

// plainURL says only who connects where: a list of hosts is no URL that package url reads, and
// neither is "host=... password=...".
func plainURL(database string) string {
	cfg, err := pgx.ParseConfig(database)
	if err != nil {
		return ""
	}
	u := url.URL{Scheme: "postgres", User: url.User(cfg.User), Path: "/" + cfg.Database}
	hosts := []string{net.JoinHostPort(cfg.Host, strconv.Itoa(int(cfg.Port)))}
	for _, other := range cfg.Fallbacks { // The first host once more, where TLS is optional.
		host := net.JoinHostPort(other.Host, strconv.Itoa(int(other.Port)))
		if !slices.Contains(hosts, host) {
			hosts = append(hosts, host)
		}
	}
	u.Host = strings.Join(hosts, ",")
	if strings.HasPrefix(cfg.Host, "/") { // The folder of a socket.
		u.Host, u.RawQuery = "", url.Values{"host": {cfg.Host}}.Encode()
	}
	return u.String()
}

// dialable is where a client on this machine reaches a server that listens on the address.
func dialable(address string) string {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	if ip := net.ParseIP(host); host == "" || ip.IsUnspecified() {
		host = "127.0.0.1" // Where only IPv6 is listened on, Linux and macOS take IPv4 too.
	}
	return net.JoinHostPort(host, port)
}

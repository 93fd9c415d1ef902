package devpg

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sort"
	"strings"
)

const (
	rootDataDir     = "/var/lib/leasehold/dev"
	defaultDatabase = "leasehold"
	superuser       = "leasehold"
)

// Config says how to run a server. The zero value runs on DefaultDataDir, on a
// free port, with the newest PostgreSQL that Find finds.
type Config struct {
	// DataDir is the folder that keeps everything; made if absent. Empty means
	// DefaultDataDir. It must be empty if Ephemeral is set.
	DataDir string
	// Ephemeral keeps the data in a temporary folder, which Stop removes.
	Ephemeral bool
	// Port on 127.0.0.1, 1 to 65535; 0 chooses a free one.
	Port int
	// Database is created if absent, and is the one that URL names; by default
	// "leasehold".
	Database string
	// Binaries to run; zero means those that Find finds. Where DataDir was made
	// by another major version, the installed ones of that version are used.
	Binaries Binaries
	// Settings are added to postgresql.conf, and win over our own, but for those
	// that say where the server listens and keeps its data.
	Settings map[string]string
	// StandbyOf makes a new folder a copy of that server, which must be up, and
	// follows it: asynchronously, as long as the setting synchronous_standby_names
	// there is empty. Binaries and Settings are the primary's if they are not given.
	StandbyOf *Server
	// Supervise starts PostgreSQL again, on the same port, when it ends by
	// itself.
	Supervise bool
	// Log takes a line for each thing worth telling; nil discards them.
	Log io.Writer

	// noDeathSignal leaves PostgreSQL running when we are killed, as on systems
	// without parent-death signals. For tests.
	noDeathSignal bool
}

// DefaultDataDir is where `leasehold dev` keeps its data: below
// $XDG_STATE_HOME, else ~/.local/state, as leasehold/dev; for root
// /var/lib/leasehold/dev, which the unprivileged user can reach.
func DefaultDataDir() (string, error) {
	if os.Geteuid() == 0 {
		return rootDataDir, nil
	}
	if state := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(state) {
		return filepath.Join(state, "leasehold", "dev"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("choose a data folder: %w", err)
	}
	return filepath.Join(home, ".local", "state", "leasehold", "dev"), nil
}

func (c Config) withDefaults() (Config, error) {
	if c.Log == nil {
		c.Log = io.Discard
	}
	if c.Database == "" {
		c.Database = defaultDatabase
	}
	if c.Port < 0 || c.Port > 65535 {
		return c, fmt.Errorf("port %d is not between 0 and 65535", c.Port)
	}
	if c.Ephemeral && c.DataDir != "" {
		return c, errors.New("an ephemeral server takes no data folder")
	}
	if !c.Ephemeral && c.DataDir == "" {
		dir, err := DefaultDataDir()
		if err != nil {
			return c, err
		}
		c.DataDir = dir
	}
	if primary := c.StandbyOf; primary != nil {
		if c.Binaries == (Binaries{}) {
			c.Binaries = primary.bin
		}
		if c.Settings == nil {
			c.Settings = primary.cfg.Settings
		}
	}
	return c, checkSettings(c.Settings)
}

func checkSettings(settings map[string]string) error {
	for name, value := range settings {
		if strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789_.") != "" || name == "" {
			return fmt.Errorf("%q is not the name of a PostgreSQL setting", name)
		}
		if strings.ContainsAny(value, "\n\r\x00") {
			return fmt.Errorf("the value of PostgreSQL setting %s holds a line break", name)
		}
		switch name {
		case "port", "listen_addresses", "unix_socket_directories", "data_directory", "hba_file", "config_file", "cluster_name":
			// Another value would make the server unreachable, or open to others.
			return fmt.Errorf("PostgreSQL setting %s cannot be changed", name)
		}
	}
	return nil
}

// postgresqlConf is the whole of postgresql.conf. It is written anew at each
// start, so that a folder follows the program, not the day of its making.
func postgresqlConf(port int, socketDir string, extra map[string]string) string {
	all := map[string]string{
		"max_connections":           "200",
		"shared_buffers":            "128MB",
		"max_locks_per_transaction": "256",
		// Compiling a plan costs more than our short statements ever run.
		"jit":             "off",
		"timezone":        "UTC",
		"log_timezone":    "UTC",
		"lc_messages":     "C",
		"log_line_prefix": "%m [%p] ",
		"log_checkpoints": "off",
	}
	for name, value := range extra {
		all[name] = value
	}
	all["port"] = fmt.Sprint(port)
	all["listen_addresses"] = "127.0.0.1"
	// A list: the quotes keep a comma in the path from ending it.
	all["unix_socket_directories"] = `"` + strings.ReplaceAll(socketDir, `"`, `""`) + `"`

	names := make([]string, 0, len(all))
	for name := range all {
		names = append(names, name)
	}
	sort.Strings(names)
	var b strings.Builder
	b.WriteString("# Written by leasehold at each start: changes made here are lost. ALTER SYSTEM is kept.\n")
	for _, name := range names {
		fmt.Fprintf(&b, "%s = %s\n", name, quoteSetting(all[name]))
	}
	return b.String()
}

func quoteSetting(value string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `''`).Replace(value) + "'"
}

// hbaConf: whoever can enter the socket's folder is trusted (its owner, and
// root); over loopback, which every user of the machine can reach, a password.
const hbaConf = `# Written by leasehold at each start.
local all all trust
local replication all trust
host all all 127.0.0.1/32 scram-sha-256
`

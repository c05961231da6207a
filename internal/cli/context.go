// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kerb-edge/kerb/client"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/atomicfile"
	"github.com/kerb-edge/kerb/internal/decode"
	"github.com/kerb-edge/kerb/internal/suggest"
	"github.com/kerb-edge/kerb/internal/yamldoc"
)

// contexts is the file with the endpoints of agents of other nodes.
type contexts struct {
	Current  string            `json:"current,omitempty"`
	Contexts map[string]remote `json:"contexts,omitempty"`
}

// remote is the TCP endpoint of an agent with its credentials. Paths are absolute, or relative to the file.
type remote struct {
	Server      string `json:"server"`
	CA          string `json:"ca,omitempty"`
	Certificate string `json:"certificate,omitempty"`
	Key         string `json:"key,omitempty"`
	TokenFile   string `json:"tokenFile,omitempty"`
}

func contextsFile() (string, error) {
	if path := os.Getenv("KERB_CONTEXTS"); path != "" {
		return path, nil
	}
	dir, err := os.UserConfigDir()
	return filepath.Join(dir, "kerb", "contexts.yaml"), err
}

// readContexts returns the contexts, empty if there is no file. It returns the path also with errors, for messages.
func readContexts() (c contexts, path string, err error) {
	if path, err = contextsFile(); err != nil {
		return c, path, nil // no home, no file
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return c, path, nil
	}
	if err != nil {
		return c, path, err
	}
	_, err = decode.File(path, data, &c)
	return c, path, err
}

func (c contexts) find(name string) (remote, error) {
	if r, ok := c.Contexts[name]; ok {
		return r, nil
	}
	return remote{}, &apierrors.Invalid{Reason: fmt.Sprintf("there is no context %q%s; kerb context list shows all", name,
		suggest.DidYouMean(name, sortedKeys(c.Contexts)))}
}

// endpoint is the agent that commands connect to.
type endpoint struct {
	name   string // for messages
	client *client.Client
	socket bool
}

// agentEndpoint selects the agent: by flags, environment variables, the current context, or else the agent of this
// node.
func (a *app) agentEndpoint() (*endpoint, error) {
	if a.endpoint != nil {
		return a.endpoint, nil
	}
	r, err := a.remote()
	if err != nil {
		return nil, err
	}
	if r == nil {
		a.endpoint = &endpoint{name: a.socket, client: client.New(a.socket), socket: true}
		return a.endpoint, nil
	}
	a.endpoint, err = r.endpoint()
	return a.endpoint, err
}

// remote returns the selected agent of another node, or nil for the socket.
func (a *app) remote() (*remote, error) {
	if a.socketGiven && a.server == "" && a.context == "" {
		return nil, nil
	}
	c, path, err := readContexts()
	if err != nil {
		return nil, err
	}
	name := a.context
	if a.server != "" {
		for _, r := range c.Contexts {
			if r.Server == a.server {
				return r.resolved(path), nil
			}
		}
		return (&remote{a.server, os.Getenv("KERB_CA"), os.Getenv("KERB_CERTIFICATE"), os.Getenv("KERB_KEY"),
			os.Getenv("KERB_TOKEN_FILE")}).resolved(""), nil
	}
	if name == "" {
		name = c.Current
	}
	if name == "" {
		return nil, nil
	}
	r, err := c.find(name)
	return r.resolved(path), err
}

// resolved returns a copy in which relative paths are resolved against the directory of the file of contexts.
func (r remote) resolved(file string) *remote {
	for _, path := range []*string{&r.CA, &r.Certificate, &r.Key, &r.TokenFile} {
		if *path != "" && !filepath.IsAbs(*path) && file != "" {
			*path = filepath.Join(filepath.Dir(file), *path)
		}
	}
	return &r
}

// endpoint returns an HTTPS client for the agent, with at least TLS 1.3. Without a CA, it trusts those of the system.
func (r remote) endpoint() (*endpoint, error) {
	at, err := url.Parse(r.Server)
	if err != nil || at.Scheme != "https" || at.Host == "" || strings.Trim(at.Path, "/") != "" {
		return nil, &usageError{fmt.Errorf("server %q: want https://HOST:PORT", r.Server)}
	}
	secure := &tls.Config{MinVersion: tls.VersionTLS13}
	if r.CA != "" {
		data, err := os.ReadFile(r.CA)
		if err != nil {
			return nil, err
		}
		secure.RootCAs = x509.NewCertPool()
		if !secure.RootCAs.AppendCertsFromPEM(data) {
			return nil, &apierrors.Invalid{Resource: r.CA, Reason: "contains no PEM certificate"}
		}
	}
	if r.Certificate != "" || r.Key != "" {
		pair, err := tls.LoadX509KeyPair(r.Certificate, r.Key)
		if err != nil {
			return nil, fmt.Errorf("client certificate: %w", err)
		}
		secure.Certificates = []tls.Certificate{pair}
	}
	token, err := clientToken(r.TokenFile)
	return &endpoint{name: r.Server, client: client.NewHTTPS(strings.TrimSuffix(r.Server, "/"), token, secure)}, err
}

// clientToken reads a token from a file, which must not be readable by other users.
func clientToken(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return "", &apierrors.Invalid{Resource: path, Reason: "other users can read the token; chmod 600 it"}
	}
	data, err := os.ReadFile(path)
	return strings.TrimSpace(string(data)), err
}

func (a *app) contextCommand() *cobra.Command {
	return noun("context", "Agents of other nodes that commands can use", a.contextListCommand(),
		a.contextSetCommand(), a.contextUseCommand())
}

func (a *app) contextListCommand() *cobra.Command {
	return answers(&cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the contexts",
		Long:    "Lists the contexts in ~/.config/kerb/contexts.yaml, or in the file that KERB_CONTEXTS names.",
		Example: "  kerb context list",
		Args:    noSubcommand,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, _, err := readContexts()
			if err != nil {
				return err
			}
			return a.print(cmd.OutOrStdout(), c, func(w io.Writer) {
				line(w, "NAME", "CURRENT", "SERVER")
				for _, name := range sortedKeys(c.Contexts) {
					current := ""
					if name == c.Current {
						current = "yes"
					}
					line(w, name, current, c.Contexts[name].Server)
				}
			})
		},
	})
}

func (a *app) contextSetCommand() *cobra.Command {
	var r remote
	c := &cobra.Command{
		Use:   "set NAME --address https://HOST:PORT",
		Short: "Create or replace a context",
		Long: "Writes a context: the address of an agent's TCP endpoint (tcp: in its configuration), the certificate of " +
			"its authority, and\n" +
			"a client certificate with its key, or a file with a token, as the agent requires.",
		Example: "  kerb context set edge1 --address https://192.0.2.1:4600 --ca ca.pem --token-file token\n  kerb " +
			"--context edge1 status",
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			for _, path := range []*string{&r.CA, &r.Certificate, &r.Key, &r.TokenFile} {
				if err := makeAbsolute(path); err != nil {
					return err
				}
			}
			if _, err := r.endpoint(); err != nil {
				return err
			}
			return changeContexts(func(c *contexts) error {
				if c.Contexts == nil {
					c.Contexts = map[string]remote{}
				}
				c.Contexts[args[0]] = r
				return nil
			})
		},
	}
	flags := c.Flags()
	flags.StringVar(&r.Server, "address", "", "the agent's TCP endpoint, https://HOST:PORT")
	flags.StringVar(&r.CA, "ca", "", "PEM file of the authority of the agent's certificate; without it the system's "+
		"authorities")
	flags.StringVar(&r.Certificate, "certificate", "", "PEM file of the client certificate")
	flags.StringVar(&r.Key, "key", "", "PEM file of its key")
	flags.StringVar(&r.TokenFile, "token-file", "", "file with the bearer token")
	_ = c.MarkFlagRequired("address")
	return c
}

func (a *app) contextUseCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "use NAME|-",
		Short:   "Choose the context of commands that name none; - is the agent of this node",
		Example: "  kerb context use edge1\n  kerb context use -",
		Args:    cobra.ExactArgs(1),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			c, _, _ := readContexts()
			return sortedKeys(c.Contexts), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(_ *cobra.Command, args []string) error {
			return changeContexts(func(c *contexts) (err error) {
				c.Current = ""
				if args[0] != "-" {
					c.Current = args[0]
					_, err = c.find(args[0])
				}
				return err
			})
		},
	}
}

// changeContexts rewrites the file, which is its owner's alone.
func changeContexts(change func(*contexts) error) error {
	c, path, err := readContexts()
	if err != nil {
		return err
	}
	if err := change(&c); err != nil {
		return err
	}
	data, err := yamldoc.Encode(c)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return atomicfile.Write(path, data, 0o600)
}

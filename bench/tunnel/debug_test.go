package tunnel

import (
	"context"
	"fmt"
	"testing"
	"time"
	"os/exec"

	"github.com/kerb-edge/kerb/bench/internal/path"
)

func TestDebug(t *testing.T) {
	g := &ground{load: loads["two-nodes/ipv4"]}
	c := config{name: "none", raise: func(g *ground) (closer, error) { return nothing{}, nil }}
	_ = c
	err := func() error {
		cfg := config{"x", true, func(g *ground) (closer, error) {
			k, err := raiseKerb(g, false)
			if err != nil {
				return k, err
			}
			dump := func(name string, args ...string) {
				ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
				defer cancel()
				out, err := g.client.Command(ctx, name, args...).CombinedOutput()
				fmt.Println(name, args, string(out), err)
			}
			dump("ip", "route")
			dump("bash", "-c", "echo hi > /dev/udp/10.82.1.1/9; echo hi > /dev/udp/10.82.1.1/9;sleep 0.2; ip neigh")
			for i, n := range k.(*kerb).agents {
				for _, p := range []string{"/v1/modules/tunnel/nodes", "/v1/modules/tunnel"} {
					b, err := n.Get(p)
					fmt.Println(i, string(b), err)
				}
				_ = g.labs[i].Node().Do(func() error {
					out, _ := exec.Command("sh", "-c", "ip -s link; ip neigh; bpftool net").CombinedOutput()
					fmt.Println(string(out))
					return nil
				})
			}
			return k, fmt.Errorf("stop")
		}}
		return g.build("kbtn9", cfg)
	}()
	fmt.Println(err, g.close())
	_ = path.StreamPort
}

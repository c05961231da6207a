// SPDX-License-Identifier: Apache-2.0

// Kube-api runs etcd and the Kubernetes API server in one process, for tests: kube-api DIRECTORY [FLAG...], with flags
// of kube-apiserver. etcd keeps its data in the directory and does not sync to the disk, which tests do not need.
package main

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	_ "time/tzdata"

	"go.etcd.io/etcd/server/v3/embed"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: kube-api DIRECTORY [FLAG OF KUBE-APISERVER]...")
		os.Exit(2)
	}
	endpoint := "http://127.0.0.1:2379"
	etcd, err := startEtcd(filepath.Join(os.Args[1], "etcd"), endpoint, "http://127.0.0.1:2380")
	if err != nil {
		fmt.Fprintln(os.Stderr, "etcd:", err)
		os.Exit(1)
	}
	server := app.NewAPIServerCommand()
	server.SetArgs(append([]string{"--etcd-servers=" + endpoint}, os.Args[2:]...))
	code := cli.Run(server)
	etcd.Close()
	os.Exit(code)
}

// startEtcd returns when the only member has elected itself.
func startEtcd(dir, client, peer string) (*embed.Etcd, error) {
	config := embed.NewConfig()
	config.Dir = dir
	config.LogLevel = "error"
	config.UnsafeNoFsync = true
	config.ListenClientUrls = []url.URL{address(client)}
	config.AdvertiseClientUrls = config.ListenClientUrls
	config.ListenPeerUrls = []url.URL{address(peer)}
	config.AdvertisePeerUrls = config.ListenPeerUrls
	config.InitialCluster = config.Name + "=" + peer
	config.TickMs, config.ElectionMs = 10, 100 // one member: elect immediately
	etcd, err := embed.StartEtcd(config)
	if err != nil {
		return nil, err
	}
	select {
	case <-etcd.Server.ReadyNotify():
		return etcd, nil
	case err := <-etcd.Err():
		return nil, err
	}
}

func address(text string) url.URL {
	u, err := url.Parse(text)
	if err != nil {
		panic(err)
	}
	return *u
}

// SPDX-License-Identifier: Apache-2.0

// Package otlp exports the data of an agent to an OpenTelemetry collector, by OTLP over HTTP: the metrics of /metrics
// under the same names, and changes, events and dropped packets as log records. The standard environment variables of
// OpenTelemetry configure the collector; without them nothing is sent.
package otlp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	bridge "go.opentelemetry.io/contrib/bridges/prometheus"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlplog/otlploghttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	sdklog "go.opentelemetry.io/otel/sdk/log"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"

	"github.com/kerb-edge/kerb/client"
)

// Options select the exported data, and the interval.
type Options struct {
	Agent    string        // path of the agent's socket
	Interval time.Duration // between exports
}

// The standard variables that name a collector: for all, or for metrics and logs each.
const (
	endpoint        = "OTEL_EXPORTER_OTLP_ENDPOINT"
	metricsEndpoint = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"
	logsEndpoint    = "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT"
)

// lastExport is the timeout for the last export before the end.
const lastExport = 5 * time.Second

// Run exports until ctx ends. It keeps running while the agent or the collector is not reachable: later exports contain
// the current metrics, and log records are buffered up to the limit of the SDK.
func Run(ctx context.Context, o Options, log *slog.Logger) (err error) {
	hasMetrics := os.Getenv(endpoint) != "" || os.Getenv(metricsEndpoint) != ""
	hasLogs := os.Getenv(endpoint) != "" || os.Getenv(logsEndpoint) != ""
	if !hasMetrics && !hasLogs {
		return fmt.Errorf("no collector: set %s, for example to http://localhost:4318", endpoint)
	}
	if o.Interval <= 0 {
		return fmt.Errorf("the interval must be positive, not %v", o.Interval)
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn("not exported", "error", err) }))
	who, err := resource.New(ctx, resource.WithAttributes(attribute.String("service.name", "kerb")), resource.WithHost(),
		resource.WithFromEnv())
	if err != nil {
		return fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	agent := client.New(o.Agent)
	var ends []func(context.Context) error
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastExport)
		defer cancel()
		for _, end := range slices.Backward(ends) {
			err = errors.Join(err, end(ctx))
		}
	}()
	if hasMetrics {
		exporter, err := otlpmetrichttp.New(ctx)
		if err != nil {
			return fmt.Errorf("metrics: %w", err)
		}
		source := bridge.NewMetricProducer(bridge.WithGatherer(&scraper{ctx, agent, o.Interval}))
		ends = append(ends, sdkmetric.NewMeterProvider(sdkmetric.WithResource(who), sdkmetric.WithReader(
			sdkmetric.NewPeriodicReader(exporter, sdkmetric.WithInterval(o.Interval), sdkmetric.WithProducer(source)))).Shutdown)
	}
	if !hasLogs {
		<-ctx.Done()
		return nil
	}
	exporter, err := otlploghttp.New(ctx)
	if err != nil {
		return fmt.Errorf("logs: %w", err)
	}
	provider := sdklog.NewLoggerProvider(sdklog.WithResource(who),
		sdklog.WithProcessor(sdklog.NewBatchProcessor(exporter)))
	ends = append(ends, provider.Shutdown)
	follow(ctx, agent, provider.Logger("kerb"), o.Interval, log)
	return nil
}

// scraper reads the metrics of an agent.
type scraper struct {
	ctx   context.Context
	agent *client.Client
	limit time.Duration
}

// Gather implements prometheus.Gatherer.
func (s *scraper) Gather() ([]*dto.MetricFamily, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), s.limit)
	defer cancel()
	body, err := s.agent.Stream(ctx, "/metrics")
	if err != nil {
		return nil, fmt.Errorf("metrics of the agent: %w", err)
	}
	defer body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(body)
	if err != nil {
		return nil, fmt.Errorf("metrics of the agent: %w", err)
	}
	all := make([]*dto.MetricFamily, 0, len(families))
	for _, f := range families {
		all = append(all, f)
	}
	return all, nil
}

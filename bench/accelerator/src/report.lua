-- SPDX-License-Identifier: Apache-2.0
-- wrk's figures as JSON, times in us.
done = function(summary, latency)
	local errors = summary.errors
	io.write(string.format('\n{"n":%d,"seconds":%.6f,"wrong":%d,"p50":%.3f,"p99":%.3f,"stddev":%.3f}\n',
		summary.requests, summary.duration / 1e6, errors.connect + errors.read + errors.write + errors.status + errors.timeout,
		latency:percentile(50), latency:percentile(99), latency.stdev))
end

// Registers the families of metrics_table.h with Prometheus, and groups series that are removed
// together.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "prometheus/counter.h"
#include "prometheus/family.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"
#include "server/watch/metrics_table.h"

namespace nsa::server {

using Labels = std::map<std::string, std::string>;

// Registers every family of the table. Thread-safe.
class MetricFamilies {
 public:
  MetricFamilies();

  // All metrics in the Prometheus text format.
  std::string Text() const;

  // Returns a series; creates it when there is none.
  prometheus::Gauge& Gauge(GaugeFamily family, const Labels& labels = {});
  prometheus::Counter& Counter(CounterFamily family, const Labels& labels = {});
  prometheus::Histogram& Histogram(HistogramFamily family, const Labels& labels = {});

  // Removes a series.
  void Remove(GaugeFamily family, prometheus::Gauge* gauge);
  void Remove(CounterFamily family, prometheus::Counter* counter);
  void Remove(HistogramFamily family, prometheus::Histogram* histogram);

 private:
  prometheus::Registry registry_;
  std::vector<prometheus::Family<prometheus::Gauge>*> gauges_;  // by index in the table, or null
  std::vector<prometheus::Family<prometheus::Counter>*> counters_;
  std::vector<prometheus::Family<prometheus::Histogram>*> histograms_;
};

// Series that are removed together, when the group is destroyed.
class SeriesGroup {
 public:
  explicit SeriesGroup(MetricFamilies& families) : families_(families) {}
  ~SeriesGroup();
  SeriesGroup(const SeriesGroup&) = delete;
  SeriesGroup& operator=(const SeriesGroup&) = delete;

  prometheus::Gauge& Gauge(GaugeFamily family, const Labels& labels);
  prometheus::Counter& Counter(CounterFamily family, const Labels& labels);
  prometheus::Histogram& Histogram(HistogramFamily family, const Labels& labels);

  bool Has(GaugeFamily family, const Labels& labels) const;

 private:
  template <typename Family, typename Series>
  Series& Keep(Family family, const Labels& labels, Series& series);

  MetricFamilies& families_;
  std::set<std::pair<size_t, Labels>> known_;
  std::vector<std::function<void()>> removers_;
};

}  // namespace nsa::server

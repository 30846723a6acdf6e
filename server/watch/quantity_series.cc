#include "server/watch/quantity_series.h"

namespace nsa::server {
namespace {

void Put(prometheus::Gauge& gauge, const std::vector<double>& values) { gauge.Set(values.back()); }

void Put(prometheus::Counter& counter, const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += std::fmax(value, 0);
  counter.Increment(sum);
}

void Put(prometheus::Histogram& histogram, const std::vector<double>& values) {
  for (const double value : values) histogram.Observe(value);
}

}  // namespace

void Show(const record::Quantity& quantity, const AnyFamily& family,
          const std::vector<double>& values, Labels labels, SeriesGroup* series) {
  if (quantity.series.label != nullptr) labels[quantity.series.label] = quantity.series.value;
  if (const auto* gauge = std::get_if<GaugeFamily>(&family)) {
    Put(series->Gauge(*gauge, labels), values);
  } else if (const auto* counter = std::get_if<CounterFamily>(&family)) {
    Put(series->Counter(*counter, labels), values);
  } else {
    Put(series->Histogram(std::get<HistogramFamily>(family), labels), values);
  }
}

}  // namespace nsa::server

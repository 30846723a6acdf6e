#include "server/watch/families.h"

#include "prometheus/text_serializer.h"

namespace nsa::server {

MetricFamilies::MetricFamilies() {
  for (const FamilySpec& spec : kFamilies) {
    const auto build = [&](auto builder) {
      return &builder.Name(spec.name).Help(spec.help).Register(registry_);
    };
    gauges_.push_back(spec.kind == kGauge ? build(prometheus::BuildGauge()) : nullptr);
    counters_.push_back(spec.kind == kCounter ? build(prometheus::BuildCounter()) : nullptr);
    histograms_.push_back(spec.kind == kHistogram ? build(prometheus::BuildHistogram()) : nullptr);
  }
}

std::string MetricFamilies::Text() const {
  return prometheus::TextSerializer().Serialize(registry_.Collect());
}

prometheus::Gauge& MetricFamilies::Gauge(GaugeFamily family, const Labels& labels) {
  return gauges_[family.index()]->Add(labels);
}

prometheus::Counter& MetricFamilies::Counter(CounterFamily family, const Labels& labels) {
  return counters_[family.index()]->Add(labels);
}

prometheus::Histogram& MetricFamilies::Histogram(HistogramFamily family, const Labels& labels) {
  const std::span<const double> buckets = family.spec().buckets;
  return histograms_[family.index()]->Add(
      labels, prometheus::Histogram::BucketBoundaries(buckets.begin(), buckets.end()));
}

void MetricFamilies::Remove(GaugeFamily family, prometheus::Gauge* gauge) {
  gauges_[family.index()]->Remove(gauge);
}

void MetricFamilies::Remove(CounterFamily family, prometheus::Counter* counter) {
  counters_[family.index()]->Remove(counter);
}

void MetricFamilies::Remove(HistogramFamily family, prometheus::Histogram* histogram) {
  histograms_[family.index()]->Remove(histogram);
}

SeriesGroup::~SeriesGroup() {
  for (const auto& remove : removers_) remove();
}

template <typename Family, typename Series>
Series& SeriesGroup::Keep(Family family, const Labels& labels, Series& series) {
  if (known_.emplace(family.index(), labels).second) {
    removers_.push_back([this, family, &series] { families_.Remove(family, &series); });
  }
  return series;
}

prometheus::Gauge& SeriesGroup::Gauge(GaugeFamily family, const Labels& labels) {
  return Keep(family, labels, families_.Gauge(family, labels));
}

prometheus::Counter& SeriesGroup::Counter(CounterFamily family, const Labels& labels) {
  return Keep(family, labels, families_.Counter(family, labels));
}

prometheus::Histogram& SeriesGroup::Histogram(HistogramFamily family, const Labels& labels) {
  return Keep(family, labels, families_.Histogram(family, labels));
}

bool SeriesGroup::Has(GaugeFamily family, const Labels& labels) const {
  return known_.contains({family.index(), labels});
}

}  // namespace nsa::server

#include "server/decide/curve.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

namespace nsa::server {
namespace {

using record::kCurves;
using record::Of;

// `nonfinite` has no entries until there is something to count.
void AddNonfinite(v1::CurveBucket* bucket, int entry, int64_t count) {
  if (count == 0 && bucket->nonfinite_size() == 0) return;
  while (bucket->nonfinite_size() < bucket->count_size()) bucket->add_nonfinite(0);
  bucket->set_nonfinite(entry, bucket->nonfinite(entry) + count);
}

void Add(v1::CurveBucket* bucket, record::Value value) {
  constexpr double kMost = std::numeric_limits<float>::max();
  const bool counts = value.has_value() && std::isfinite(*value);
  const float kept = counts ? static_cast<float>(std::clamp(*value, -kMost, kMost)) : 0;
  bucket->add_count(counts ? 1 : 0);
  bucket->add_mean(kept);
  bucket->add_least(kept);
  bucket->add_greatest(kept);
  AddNonfinite(bucket, bucket->count_size() - 1, value.has_value() && !counts ? 1 : 0);
}

// Adds an entry of another bucket.
void AddCopy(const v1::CurveBucket& from, int entry, v1::CurveBucket* bucket) {
  bucket->add_count(from.count(entry));
  bucket->add_mean(from.mean(entry));
  bucket->add_least(from.least(entry));
  bucket->add_greatest(from.greatest(entry));
  const int64_t nonfinite = entry < from.nonfinite_size() ? from.nonfinite(entry) : 0;
  AddNonfinite(bucket, bucket->count_size() - 1, nonfinite);
}

v1::CurveBucket EmptyAt(const v1::WorkerRecord& record) {
  v1::CurveBucket bucket;
  bucket.set_width(1);
  bucket.set_first_step(record.step().step());
  bucket.set_last_step(record.step().step());
  bucket.set_unix_nanos(record.unix_nanos());
  bucket.set_total_tokens(record.step().total_tokens());
  return bucket;
}

}  // namespace

v1::CurveBucket StepBucket(const v1::WorkerRecord& record) {
  v1::CurveBucket bucket = EmptyAt(record);
  for (const record::Quantity* quantity : kCurves<Of::kStep>) {
    Add(&bucket, quantity->step(record.step()));
  }
  return bucket;
}

v1::CurveBucket LayerBucket(const v1::WorkerRecord& record) {
  v1::CurveBucket bucket = EmptyAt(record);
  for (const v1::LayerStats& layer : record.step().layers()) {
    for (const record::Quantity* quantity : kCurves<Of::kLayer>) {
      Add(&bucket, MeasuredValueOf(*quantity, layer));
    }
  }
  return bucket;
}

v1::CurveBucket GpuBucket(const v1::WorkerRecord& record, const std::vector<v1::GpuInfo>& gpus) {
  v1::CurveBucket all = EmptyAt(record);
  for (const v1::GpuInfo& gpu : gpus) {
    v1::CurveBucket one = EmptyAt(record);
    bool any = false;
    for (const record::Quantity* quantity : kCurves<Of::kGpu>) {
      const record::Value value = quantity->gpu(gpu);
      any = any || value.has_value();
      Add(&one, value);
    }
    if (!any) continue;
    MergeInto(one, &all);
  }
  return all;
}

EntryOrder OrderOf(const v1::StoredColumns& stored, std::span<const std::string_view> names) {
  EntryOrder order{.stride = std::max(stored.names_size(), 1), .places = {}};
  for (const std::string_view name : names) {
    const auto place = std::ranges::find(stored.names(), name) - stored.names().begin();
    order.places.push_back(place == stored.names_size() ? -1 : static_cast<int>(place));
  }
  return order;
}

v1::CurveBucket Arranged(const v1::CurveBucket& stored, const EntryOrder& order) {
  v1::CurveBucket bucket;
  bucket.set_width(stored.width());
  bucket.set_first_step(stored.first_step());
  bucket.set_last_step(stored.last_step());
  bucket.set_unix_nanos(stored.unix_nanos());
  bucket.set_total_tokens(stored.total_tokens());
  for (int first = 0; first < stored.count_size(); first += order.stride) {
    for (const int place : order.places) {
      if (place >= 0 && first + place < stored.count_size()) {
        AddCopy(stored, first + place, &bucket);
      } else {
        Add(&bucket, std::nullopt);
      }
    }
  }
  return bucket;
}

int64_t BucketStart(int64_t step, int64_t width) {
  const int64_t wide = std::max<int64_t>(width, 1);
  return (std::max<int64_t>(step, 1) - 1) / wide * wide + 1;
}

void MergeInto(const v1::CurveBucket& later, v1::CurveBucket* into) {
  if (into->last_step() == 0) {
    const int64_t width = into->width();
    *into = later;
    into->set_width(width);
    return;
  }
  into->set_last_step(later.last_step());
  into->set_unix_nanos(later.unix_nanos());
  into->set_total_tokens(later.total_tokens());
  // A job has as many layers at every step; were it not so, the values of both are kept.
  while (into->count_size() < later.count_size()) Add(into, std::nullopt);
  for (int i = 0; i < later.nonfinite_size(); ++i) AddNonfinite(into, i, later.nonfinite(i));
  for (int i = 0; i < later.count_size(); ++i) {
    if (later.count(i) == 0) continue;
    const auto before = static_cast<double>(into->count(i));
    const auto more = static_cast<double>(later.count(i));
    const double mean = (into->mean(i) * before + later.mean(i) * more) / (before + more);
    const bool first = into->count(i) == 0;
    into->set_least(i, first ? later.least(i) : std::min(into->least(i), later.least(i)));
    into->set_greatest(i,
                       first ? later.greatest(i) : std::max(into->greatest(i), later.greatest(i)));
    into->set_mean(i, static_cast<float>(mean));
    into->set_count(i, into->count(i) + later.count(i));
  }
}

std::vector<v1::CurveBucket> Widen(const std::vector<v1::CurveBucket>& buckets, int64_t width) {
  std::vector<v1::CurveBucket> wide;
  wide.reserve(buckets.size());
  for (const v1::CurveBucket& bucket : buckets) {
    const int64_t start = BucketStart(bucket.first_step(), width);
    if (wide.empty() || BucketStart(wide.back().first_step(), width) != start) {
      wide.emplace_back().set_width(width);
    }
    MergeInto(bucket, &wide.back());
  }
  return wide;
}

int64_t WidthFor(const std::vector<v1::CurveBucket>& buckets, size_t limit) {
  if (buckets.empty()) return 1;
  int64_t width = std::max<int64_t>(buckets.front().width(), 1);
  while (true) {
    size_t count = 0;
    int64_t start = 0;
    for (const v1::CurveBucket& bucket : buckets) {
      const int64_t here = BucketStart(bucket.first_step(), width);
      if (here != start) ++count;
      start = here;
    }
    const bool widest = width > std::numeric_limits<int64_t>::max() / 2;
    if (widest || count <= std::max<size_t>(limit, 1)) return width;
    width *= 2;
  }
}

std::vector<v1::CurveBucket> Fit(std::vector<v1::CurveBucket> buckets, size_t points,
                                 int64_t least) {
  if (buckets.empty()) return buckets;
  const int64_t kept = std::max<int64_t>(buckets.front().width(), 1);
  int64_t width = points == 0 ? kept : WidthFor(buckets, points);
  while (width < least) width *= 2;
  return width == kept ? std::move(buckets) : Widen(buckets, width);
}

}  // namespace nsa::server
